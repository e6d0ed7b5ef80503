"""The GPUs that this container sees, as ``nvidia-smi`` tells them.

Sizes are MiB, as nvidia-smi prints them with ``nounits``.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from . import command
from .command import HungCommandError, MissingCommandError, Output, Runner

NVIDIA_SMI = "nvidia-smi"
GPU_FIELDS = (
    "index,uuid,name,memory.total,memory.used,driver_version,compute_cap,pci.bus_id,"
    "mig.mode.current,ecc.mode.current,persistence_mode"
)
# The name comes last: it is a command line, and commas in it are not quoted.
PROCESS_FIELDS = "pid,gpu_uuid,used_memory,process_name"
SYSFS_PCI = Path("/sys/bus/pci/devices")


def query(run: Runner = command.run, timeout_s: float = 20.0, sysfs: Path = SYSFS_PCI) -> dict[str, Any]:
    """Return ``{"status", "message", "driver", "gpus", "processes"}``.

    ``status`` is ok, absent (no nvidia-smi), hung (no answer within ``timeout_s`` seconds), mismatch (kernel module and
    libraries differ), no-devices, lost (a card fell off the bus, and nvidia-smi gives up on all), unknown-error or
    error; ``message`` says what was seen and, unless ok, what to do. Each GPU is ``{"index", "uuid", "name",
    "memory_total_mib", "memory_used_mib", "compute_cap", "pci_bus_id", "numa_node", "mig", "ecc", "persistence",
    "error", "card"}``; what the driver does not tell is None. ``mig`` is false for a card that knows none, ``ecc`` is
    Enabled or Disabled, ``error`` is what stands in place of its fields. ``processes`` is None where the driver could
    not list them.
    """
    status, message, output = _ask(run, timeout_s, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits")
    facts: dict[str, Any] = {"status": status, "message": message, "driver": None, "gpus": [], "processes": None}
    if status != "ok":
        return facts
    try:
        facts["gpus"], facts["driver"] = parse_gpus(output)
    except ValueError as exc:
        return {**facts, "status": "error", "message": f"{NVIDIA_SMI} printed what this version cannot read: {exc}"}
    if not facts["gpus"]:
        return {**facts, "status": "no-devices", "message": _ADVICE["no-devices"]}
    _add_numa_nodes(facts["gpus"], run, timeout_s, sysfs)
    status, _, output = _ask(run, timeout_s, f"--query-compute-apps={PROCESS_FIELDS}", "--format=csv,noheader,nounits")
    if status == "ok":
        facts["processes"] = parse_processes(output)
    return facts


def parse_gpus(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Read the rows of ``--query-gpu``: the GPUs, and the driver's version. Raises ValueError on another shape."""
    gpus: list[dict[str, Any]] = []
    driver = None
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(GPU_FIELDS.split(",")) or not row[0].strip().isdigit():
            raise ValueError(", ".join(row)[:200])
        fields = [_value(field) for field in row]
        _, uuid, name, total, used, driver_version, compute_cap, bus_id, mig, ecc, persistence = fields
        driver, total_mib = driver or driver_version, _whole(total)
        gpu = {
            "index": int(row[0]),
            "uuid": uuid,
            "name": name,
            "memory_total_mib": total_mib,
            "memory_used_mib": _whole(used),
            "compute_cap": compute_cap,
            "pci_bus_id": bus_id,
            "numa_node": None,
            "mig": mig == "Enabled",
            "ecc": ecc,
            "persistence": None if persistence is None else persistence == "Enabled",
            "error": next((text for text in map(str.strip, row) if _FAILED.fullmatch(text)), None),
        }
        gpus.append({**gpu, "card": card_slug(name, total_mib, compute_cap)})
    return gpus, driver


def parse_processes(text: str) -> list[dict[str, Any]]:
    """Read the rows of ``--query-compute-apps``. A pid of another namespace is None."""
    processes = []
    for line in text.splitlines():
        fields = line.split(",", 3)
        if len(fields) == 4:
            pid, uuid, used, name = (_value(field) for field in fields)
            processes.append({"pid": _whole(pid), "uuid": uuid, "used_mib": _whole(used), "name": name})
    return processes


def parse_topology(text: str) -> dict[int, int | None]:
    """Read ``nvidia-smi topo -m``: GPU index -> NUMA node, None where the driver knows none or several."""
    nodes: dict[int, int | None] = {}
    column = None
    for line in text.splitlines():
        # The header is underlined on a terminal and in some driver versions in a pipe too.
        fields = [field.strip() for field in re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t")]
        if "NUMA Affinity" in fields:
            column = fields.index("NUMA Affinity")
            continue
        gpu = re.fullmatch(r"GPU(\d+)", fields[0])
        if gpu and column is not None and column < len(fields):
            nodes[int(gpu.group(1))] = _node(fields[column])
    return nodes


def card_slug(name: str | None, memory_mib: int | None, compute_cap: str | None) -> str:
    """Name a card type for files and tables: ``rtx-pro-6000-blackwell-workstation-edition-96gb-sm120``.

    The size is the driver's figure in GiB, rounded; a part that is not known is left out.
    """
    parts = [re.sub(r"[^a-z0-9]+", "-", re.sub(r"^nvidia\s+", "", (name or "unknown").lower())).strip("-")]
    if memory_mib is not None:
        parts.append(f"{round(memory_mib / 1024)}gb")
    if compute_cap is not None:
        parts.append("sm" + compute_cap.replace(".", ""))
    return "-".join(parts)


def sysfs_numa_node(bus_id: str, sysfs: Path = SYSFS_PCI) -> tuple[bool, int | None]:
    """Whether the kernel shows this device, and its NUMA node (None where the board has none)."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return True, _node((sysfs / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except OSError:
        return False, None


def _add_numa_nodes(gpus: list[dict[str, Any]], run: Runner, timeout_s: float, sysfs: Path) -> None:
    unknown = []
    for gpu in gpus:
        known, gpu["numa_node"] = sysfs_numa_node(gpu["pci_bus_id"] or "", sysfs)
        if not known:
            unknown.append(gpu)
    if unknown:
        status, _, output = _ask(run, timeout_s, "topo", "-m")
        nodes = parse_topology(output) if status == "ok" else {}
        for gpu in unknown:
            gpu["numa_node"] = nodes.get(gpu["index"])


_ADVICE = {
    "absent": "nvidia-smi is not in the container; install the driver's user-space part of the node's version there",
    "mismatch": "the node's kernel module and the container's libraries differ; install the node's driver version in "
    "the container, then restart the container",
    "no-devices": "nvidia-smi runs and shows no device; pass /dev/nvidia0 and its siblings to the container",
    "lost": "look at `dmesg` on the node for Xid lines; the card comes back with a restart of the node",
    "unknown-error": "in a container that worked its device rules were lost, as after a daemon-reload on the node: "
    "restart the container; else look at `dmesg` on the node",
    "error": "look at `dmesg` on the node for NVRM and Xid lines",
}
# Words of nvidia-smi -> status; it prints some on stdout and some on stderr.
_FAILURES = {
    "Driver/library version mismatch": "mismatch",
    "No devices were found": "no-devices",
    "GPU is lost": "lost",
    "Unable to determine the device handle": "lost",
    "Unknown Error": "unknown-error",
}
# In place of a field; [N/A], [Not Supported] and the like are no failure.
_FAILED = re.compile(r"(?i)\[(GPU is lost|Unknown Error|GPU requires reset|ERR!)[^]]*\]|ERR!")


def _ask(run: Runner, timeout_s: float, *arguments: str) -> tuple[str, str, str]:
    """Run nvidia-smi once: its status, the message, and what it printed."""
    try:
        output = run([NVIDIA_SMI, *arguments], timeout_s)
    except MissingCommandError:
        return "absent", _ADVICE["absent"], ""
    except HungCommandError as exc:
        return "hung", f"{exc}; the driver hangs: look at `dmesg` on the node, a restart of the node may be needed", ""
    if output.rc == 0 and "No devices were found" not in output.out:
        return "ok", "", output.out
    status = _failure(output)
    said = next((line.strip() for line in (output.out + "\n" + output.err).splitlines() if line.strip()), "nothing")
    return status, f"nvidia-smi ended with {output.rc} and said: {said[:300]}; {_ADVICE[status]}", ""


def _failure(output: Output) -> str:
    text = output.out + output.err
    return next((status for words, status in _FAILURES.items() if words in text), "error")


def _value(field: str) -> str | None:
    """A field's text; ``[N/A]``, ``[Not Supported]``, ``[GPU is lost]`` and the like are None."""
    text = field.strip()
    return None if not text or text in ("N/A", "ERR!") or text.startswith("[") else text


def _whole(text: str | None) -> int | None:
    """A number, with its unit where the driver prints one in spite of ``nounits``."""
    match = re.fullmatch(r"(\d+)(?: MiB)?", text or "")
    return int(match[1]) if match else None


def _node(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
