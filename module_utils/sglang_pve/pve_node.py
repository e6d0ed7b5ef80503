"""Facts of a Proxmox VE node and of one container's configuration, read on the node; nothing is changed.

Keys are those of a facts document (docs/facts.md); what could not be read is absent, and a note says why.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import command, driver, foreign, gpus, host, pve_config
from .command import HungCommandError, MissingCommandError, Runner

TIMEOUT_S = 20.0
GIB = 1 << 30
# gpus.query's status -> gpu_error
GPU_ERRORS = {
    "absent": "absent",
    "hung": "timeout",
    "mismatch": "driver/library version mismatch",
    "no-devices": "no devices",
    "lost": "a card fell off the bus",
    "unknown-error": "unknown error",
    "error": "error",
}
MAJORS = ("nvidia", "nvidia-uvm", "nvidia-caps")
_CONTAINER_GROUP = re.compile(r"/lxc/(\d+)(?:/|$)", re.MULTILINE)


@dataclass
class Reader:
    """Reads below ``root``, runs commands with a time limit, and keeps what failed in ``notes``."""

    root: Path = Path("/")
    run: Runner = command.run
    notes: list[str] = field(default_factory=list)

    def text(self, path: str, why: str = "") -> str | None:
        """A file's content, None where it cannot be read; noted where ``why`` says what it would have told."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if why:
                self.notes.append(f"/{path}: {error.strerror}; {why} is not known")
            return None

    def output(self, *argv: str) -> str | None:
        """What a command printed, None where it is not there, hangs or fails, which is noted."""
        try:
            done = self.run(argv, TIMEOUT_S)
        except (MissingCommandError, HungCommandError) as error:
            self.notes.append(str(error))
            return None
        if done.rc != 0:
            said = " ".join((done.err or done.out).split())[:200]
            self.notes.append(f"{' '.join(argv)} ended with {done.rc}: {said}")
            return None
        return done.out

    def api(self, path: str, **query: Any) -> Any:
        """The answer of the node's own API, None where it gives none."""
        options = [word for name, value in query.items() for word in (f"--{name}", str(value))]
        said = self.output("pvesh", "get", path, *options, "--output-format", "json")
        try:
            return None if said is None else json.loads(said)
        except ValueError:
            self.notes.append(f"pvesh get {path} printed no JSON: {(said or '')[:80]!r}")
            return None


def read(vmid: int, reader: Reader) -> dict[str, Any]:
    """``{"node", "container"}`` of a facts document."""
    return {"node": node(reader), "container": container(vmid, reader)}


def node(reader: Reader) -> dict[str, Any]:
    """The node: Proxmox VE, kernel, driver, cards and who uses them."""
    root, seen = reader.root, gpus.query(reader.run, TIMEOUT_S, reader.root / "sys/bus/pci/devices")
    devices = reader.text("proc/devices", "whether a device number is current")
    found = {
        "name": (reader.text("proc/sys/kernel/hostname") or "").strip().partition(".")[0] or None,
        **status(reader.api("/nodes/localhost/status")),
        "driver": loaded_driver(reader.text("proc/driver/nvidia/version", "the loaded driver") or ""),
        "driver_installed": _installed_driver(reader),
        "majors": None if devices is None else majors(devices),
        "device_nodes": driver.device_nodes(root),
        "apparmor": (reader.text("sys/module/apparmor/parameters/enabled") or "N").strip() == "Y",
        "numa_cpus": {
            path.parent.name[4:]: path.read_text().strip()
            for path in sorted(root.glob("sys/devices/system/node/node[0-9]*/cpulist"))
        },
        **cards(seen, _information(reader)),
    }
    if seen["processes"] is not None:
        found["gpu_processes"] = [_user(process) for process in seen["processes"]]
    return {name: value for name, value in found.items() if value is not None or name.startswith("gpu_error")}


def status(answer: Any) -> dict[str, Any]:
    """Facts in the API's ``/nodes/NODE/status``; empty where there is no answer."""
    if not isinstance(answer, Mapping):
        return {}
    version = re.search(r"pve-manager/([0-9.]+)", str(answer.get("pveversion", "")))
    kernel = answer.get("current-kernel") or {}
    total = (answer.get("memory") or {}).get("total")
    found = {
        "pve_version": version[1] if version else None,
        "kernel": kernel.get("release"),
        "memory_gib": total / GIB if total else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def loaded_driver(text: str) -> str | None:
    """The version in ``/proc/driver/nvidia/version``, of the closed or the open module."""
    match = re.search(r"(?m)^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else None


def _installed_driver(reader: Reader) -> str | None:
    said = reader.output("modinfo", "-F", "version", "nvidia")
    return said.strip() or None if said else None


def majors(text: str) -> dict[str, int]:
    """NVIDIA's drivers in ``/proc/devices``. The first was called nvidia-frontend before driver 550."""
    found = {}
    for number, name in re.findall(r"(?m)^\s*(\d+)\s+(nvidia\S*)$", text.partition("Block devices:")[0]):
        name = "nvidia" if name == "nvidia-frontend" else name
        if name in MAJORS:
            found[name] = int(number)
    return found


def _information(reader: Reader) -> dict[str, dict[str, str]]:
    """PCI address -> fields of ``/proc/driver/nvidia/gpus/*/information``, which answers when nvidia-smi does not."""
    found = {}
    for path in sorted(reader.root.glob("proc/driver/nvidia/gpus/*/information")):
        text = reader.text(str(path.relative_to(reader.root))) or ""
        pairs = (line.partition(":") for line in text.splitlines())
        found[_address(path.parent.name)] = {name.strip(): value.strip() for name, _, value in pairs}
    return found


def _address(text: str) -> str:
    """A PCI address as the kernel writes it: nvidia-smi gives the domain eight digits and capitals."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def cards(seen: Mapping[str, Any], information: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """``gpus``, ``persistence`` and ``gpu_error`` from gpus.query's answer and the kernel's own list of cards."""
    failed = seen["status"] != "ok"
    found: dict[str, Any] = {
        "gpu_error": GPU_ERRORS[seen["status"]] if failed else None,
        "gpu_error_text": seen["message"] if failed else None,
    }
    if failed:
        lost = {
            _address(text)
            for text in re.findall(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", seen["message"])
        }
        listed = [
            {
                "uuid": fields.get("GPU UUID"),
                "bdf": address,
                "minor": _number(fields.get("Device Minor")),
                "name": fields.get("Model"),
                # Of the others it is not known whether they answer.
                **({"error": seen["message"]} if address in lost else {}),
            }
            for address, fields in information.items()
        ]
        return {**found, **({"gpus": listed} if listed else {})}
    modes = [gpu["persistence"] for gpu in seen["gpus"] if gpu["persistence"] is not None]
    if modes:
        found["persistence"] = all(modes)
    found["gpus"] = [_card(gpu, information) for gpu in seen["gpus"]]
    return found


def _card(gpu: Mapping[str, Any], information: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    bdf = _address(gpu["pci_bus_id"]) if gpu["pci_bus_id"] else None
    return {
        "uuid": gpu["uuid"],
        "bdf": bdf,
        "index": gpu["index"],
        "minor": _number(information.get(bdf or "", {}).get("Device Minor")),
        "name": gpu["name"],
        "compute_capability": gpu["compute_cap"],
        "memory_mib": gpu["memory_total_mib"],
        "numa_node": gpu["numa_node"],
        "mig": gpu["mig"],
        "ecc": gpu["ecc"],
        "error": gpu["error"],
    }


def _user(process: Mapping[str, Any]) -> dict[str, Any]:
    """A process on a card; it is looked at and never touched."""
    pid = process["pid"]
    found = {
        "gpu_uuid": process["uuid"],
        "pid": pid,
        "user": foreign.user_of(pid) if pid is not None else "",
        "command": (host.command_line(pid) if pid is not None else "") or process["name"] or "",
        "memory_mib": process["used_mib"],
    }
    with contextlib.suppress(OSError):  # it ended meanwhile
        found["vmid"] = container_of(Path(f"/proc/{pid}/cgroup").read_text())
    return found


def container_of(cgroup: str) -> int | None:
    """The container that a process is in, from its /proc/PID/cgroup; None for one of the node's own."""
    match = _CONTAINER_GROUP.search(cgroup)
    return int(match[1]) if match else None


def container(vmid: int, reader: Reader) -> dict[str, Any]:
    """The container: whether it runs, and its configuration."""
    said = reader.output("pct", "status", str(vmid)) or ""
    running = re.search(r"^status:\s*(\w+)", said, re.MULTILINE)
    found: dict[str, Any] = {"vmid": vmid, **({"status": running[1]} if running else {})}
    text = reader.text(f"etc/pve/lxc/{vmid}.conf", "what is pending, and which snapshots there are,")
    if text is None:
        answer = reader.api(f"/nodes/localhost/lxc/{vmid}/config", **pve_config.CURRENT)
        return {**found, **({"config": pve_config.facts(pve_config.parse_api(answer))} if answer else {})}
    config = pve_config.parse(text)
    pending = pve_config.is_pending(
        config, reader.text(f"var/lib/lxc/{vmid}/config", "whether the configuration is pending")
    )
    if running and running[1] == "running" and pending is not None:
        found["running_config_pending"] = pending
    return {**found, "config": pve_config.facts(config)}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
