"""Facts of the container that need nothing but its python3: system, memory, disks, listeners, servers, units.

Sizes are bytes. Everything is read under ``/proc`` and ``/sys``; the one program that is run is ``systemctl``.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import account, command, driver, room
from .command import HungCommandError, MissingCommandError, Runner
from .masking import masked

PROC = Path("/proc")
RUN_PATHS = ("/run", "/tmp", "/dev/shm")
TCP_LISTEN = "0A"
RELEASE_VARIABLE = "SGLANG_PVE_RELEASE"
UNIT_PROPERTIES = {
    "load": "LoadState",
    "active": "ActiveState",
    "sub": "SubState",
    "enabled": "UnitFileState",
    "main_pid": "MainPID",
    "restarts": "NRestarts",
    "since": "StateChangeTimestamp",
    "result": "Result",
    "exit_status": "ExecMainStatus",
    "job": "Job",
}
SYSTEMCTL_TIMEOUT_S = 20.0
COMPILER_TIMEOUT_S = 20.0


def facts(paths: Iterable[str] = ()) -> dict[str, Any]:
    """Return the container's facts.

    ``disks`` has one entry for each of ``paths``, about the file system that the path is or would be on. ``glibc`` is
    None on another C library. Keys: python, glibc, os {id, version}, arch, memory, cpus, numactl, disks, mounts,
    listeners, servers, accounts, compiler {name, path}, device_nodes and libraries (of NVIDIA's driver, driver.py).
    """
    mounts = parse_mountinfo((PROC / "self/mountinfo").read_text())
    return {
        "python": platform.python_version(),
        "glibc": glibc_version(),
        "os": os_release(),
        "arch": platform.machine(),
        "memory": memory(),
        "cpus": cpus(),
        "numactl": shutil.which("numactl") is not None,
        "disks": {path: disk(path, mounts) for path in paths},
        "mounts": {path: _mount_of(path, mounts) for path in RUN_PATHS},
        "listeners": listeners(),
        "servers": servers(),
        "accounts": account.read(),
        "compiler": compiler(),
        "device_nodes": driver.device_nodes(),
        "libraries": driver.libraries(),
    }


def glibc_version() -> str | None:
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    return name.split()[-1] if name.startswith("glibc ") else None


def os_release() -> dict[str, str]:
    """``{"id": "debian", "version": "12"}``; empty strings where the file does not say."""
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        text = ""
    found = {key: value.strip("\"'") for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)}
    return {"id": found.get("ID", ""), "version": found.get("VERSION_ID", "")}


def compiler(run: Runner = command.run) -> dict[str, str | None]:
    """The C++ compiler that nvcc would call: ``{"name": "g++ 13.3", "path"}``; name is "none" where there is none.

    None where it does not say what it is.
    """
    path = shutil.which("c++") or shutil.which("g++")
    if path is None:
        return {"name": "none", "path": None}
    try:
        said = run([path, "--version"], COMPILER_TIMEOUT_S).out
    except (MissingCommandError, HungCommandError):
        said = ""
    first, version = said.partition("\n")[0], re.search(r"(\d+\.\d+)(\.\d+)?\s*$", said.partition("\n")[0])
    kind = "g++" if "Free Software Foundation" in said else first.split(" ")[0]
    return {"name": f"{kind} {version[1]}" if version else None, "path": path}


# --- memory and disks


def memory(root: Path = Path("/")) -> dict[str, int | None]:
    """Return ``{"limit_bytes", "total_bytes", "available_bytes", "used_bytes"}`` of the system under ``root``.

    ``limit_bytes`` is the tightest limit of the control groups that this process is in, None without one;
    ``used_bytes`` leaves out the page cache but holds what lies in tmpfs, since only the first is given back on demand.
    """
    machine = room.machine_memory(root)
    if machine is None:
        raise OSError(f"{root / 'proc/meminfo'} has no MemTotal and MemAvailable; expected Linux with /proc mounted")
    groups = room.group_memory(root)
    least = min((machine, *groups), key=lambda view: view.free)
    return {
        "limit_bytes": min((view.limit for view in groups if view.limit <= machine.limit), default=None),
        "total_bytes": machine.limit,
        "available_bytes": max(least.free, 0),
        "used_bytes": least.used,
    }


def cpus(proc: Path = PROC) -> str | None:
    """Return the CPUs that this process, like all of the container, may use now: ``0-31``, by the node's numbers."""
    match = re.search(r"(?m)^Cpus_allowed_list:\s*(\S+)$", _read(proc / "self/status"))
    return match[1] if match else None


def parse_mountinfo(text: str) -> list[dict[str, Any]]:
    """Read ``/proc/self/mountinfo``: ``[{"mount", "fs", "flags"}]``, later mounts last."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if separator and len(fields) >= 6:
            # Blanks and the like are octal escapes there.
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4])
            mounts.append({"mount": point, "fs": right.split()[0], "flags": fields[5].split(",")})
    return mounts


def existing_parent(path: str) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    here = Path(path)
    while not here.exists() and here != here.parent:
        here = here.parent
    return here


def disk(path: str, mounts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``{"free_bytes", "total_bytes", "fs", "mount"}``; free is what an ordinary user may still write."""
    usage = os.statvfs(existing_parent(path))
    mount = _mount_of(path, mounts)
    return {
        "free_bytes": usage.f_bavail * usage.f_frsize,
        "total_bytes": usage.f_blocks * usage.f_frsize,
        "fs": mount["fs"],
        "mount": mount["mount"],
    }


def _mount_of(path: str, mounts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    real = existing_parent(path).resolve()
    above = {str(real), *(str(parent) for parent in real.parents)}
    # Of two mounts on one point the later one is seen.
    candidates = [mount for mount in mounts if mount["mount"] in above]
    best = max(enumerate(candidates), key=lambda item: (len(item[1]["mount"]), item[0]), default=None)
    return dict(best[1]) if best else {"mount": "", "fs": "", "flags": []}


# --- processes


def listeners(proc: Path = PROC) -> list[dict[str, Any]]:
    """Return who listens on TCP: ``[{"port", "address", "pid", "unit", "command"}]``, by port.

    ``pid`` is None where the socket's owner may not be seen (another user's, seen without root).
    """
    sockets: dict[str, tuple[str, int]] = {}
    for name in ("tcp", "tcp6"):
        sockets.update(parse_tcp(_read(proc / "net" / name)))
    owners: dict[str, int] = {}
    for pid in _pids(proc):
        for inode in _socket_inodes(proc / str(pid)) & sockets.keys():
            owners.setdefault(inode, pid)
    found = []
    for inode, (address, port) in sockets.items():
        owner = owners.get(inode)
        unit, line = (None, None) if owner is None else (unit_of(owner, proc), command_line(owner, proc))
        found.append({"port": port, "address": address, "pid": owner, "unit": unit, "command": line})
    return sorted(found, key=lambda entry: (entry["port"], entry["address"]))


def parse_tcp(text: str) -> dict[str, tuple[str, int]]:
    """Read ``/proc/net/tcp`` or ``tcp6``: inode -> (address, port) of the listening sockets."""
    sockets = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == TCP_LISTEN:
            address, port = fields[1].split(":")
            sockets[fields[9]] = (_address(address), int(port, 16))
    return sockets


def _address(text: str) -> str:
    # The kernel prints the address in words of 32 bits, each in the machine's (little-endian) order.
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    ip = ipaddress.ip_address(raw)
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def servers(proc: Path = PROC) -> list[dict[str, Any]]:
    """Return the running servers: ``[{"pid", "release", "gpu", "unit", "command"}]``.

    A server is a process with SGLANG_PVE_RELEASE in its environment; its children inherit that and are left out.
    """
    environments = {pid: env for pid in _pids(proc) if RELEASE_VARIABLE in (env := _environment(proc / str(pid)))}
    return [
        {
            "pid": pid,
            "release": env[RELEASE_VARIABLE],
            "gpu": env.get("CUDA_VISIBLE_DEVICES"),
            "unit": unit_of(pid, proc),
            "command": command_line(pid, proc),
        }
        for pid, env in environments.items()
        if _parent(proc / str(pid)) not in environments
    ]


def unit_of(pid: int, proc: Path = PROC) -> str | None:
    """The systemd unit that a process belongs to (``sglang@3.service``), None outside of any."""
    return parse_unit(_read(proc / str(pid) / "cgroup"))


def parse_unit(text: str) -> str | None:
    """Read ``/proc/PID/cgroup``. A service may have control groups of its own below it: the outermost name counts."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd"):
            for part in path.split("/"):
                if part.endswith((".service", ".scope")) and part != "init.scope":
                    return part
    return None


def command_line(pid: int, proc: Path = PROC) -> str:
    """A process's command line in 200 characters; what follows an option named after a secret is masked."""
    words = _read(proc / str(pid) / "cmdline").split("\0")
    text = " ".join(masked(words)).strip() or _read(proc / str(pid) / "comm")
    return " ".join(text.split())[:200]


def _pids(proc: Path) -> list[int]:
    return sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit())  # noqa: PTH208 (one string an entry is enough)


def _socket_inodes(process: Path) -> set[str]:
    inodes = set()
    try:
        for entry in os.scandir(process / "fd"):
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))  # noqa: PTH115
            if match:
                inodes.add(match.group(1))
    except OSError:
        # The process ended while it was read, or belongs to another user.
        pass
    return inodes


def _environment(process: Path) -> dict[str, str]:
    pairs = (item.partition("=") for item in _read(process / "environ").split("\0"))
    return {key: value for key, _, value in pairs if key}


def _parent(process: Path) -> int:
    # The second field is the name in brackets, which may hold blanks and brackets itself.
    fields = _read(process / "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# --- units


def unit_states(units: Sequence[str], run: Runner = command.run) -> dict[str, dict[str, Any]]:
    """Return the state of each unit, from one call of systemctl.

    ``{unit: {"load", "active", "sub", "enabled", "main_pid", "restarts", "since", "result", "exit_status", "job"}}``:
    ``since`` is ISO 8601 in UTC, None before the first start; ``job`` is the number of what systemd is about to do with
    it, 0 for nothing; a unit that does not exist has load ``not-found``. Raises RuntimeError where systemd does not
    answer for every one of them.
    """
    if not units:
        return {}
    argv = ["systemctl", "show", "--no-pager", "--property=" + ",".join(UNIT_PROPERTIES.values()), "--", *units]
    try:
        output = run(argv, SYSTEMCTL_TIMEOUT_S)
    except (MissingCommandError, HungCommandError) as exc:
        raise RuntimeError(f"the units' states cannot be read: {exc}; expected systemd as process 1") from exc
    states = parse_units(output.out)
    if output.rc != 0 or len(states) != len(units):
        raise RuntimeError(
            f"systemctl show ended with {output.rc} and told of {len(states)} of {len(units)} units: "
            f"{output.err.strip()[:300] or 'no message'}; expected systemd as process 1 and valid unit names"
        )
    return dict(zip(units, states))


def parse_units(text: str) -> list[dict[str, Any]]:
    """Read the blocks of ``systemctl show`` (C locale, UTC), in their order."""
    states = []
    for block in re.split(r"\n\s*\n", text.strip()):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if not values:
            continue
        state: dict[str, Any] = {key: values.get(name, "") for key, name in UNIT_PROPERTIES.items()}
        for key in ("main_pid", "restarts", "exit_status", "job"):
            state[key] = int(state[key] or 0)
        states.append({**state, "since": _iso(state["since"])})
    return states


def _iso(text: str) -> str | None:
    """``Tue 2026-12-01 03:36:00 UTC`` as ``2026-12-01T03:36:00+00:00``."""
    match = re.search(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC", text)
    if not match:
        return None
    moment = datetime.strptime(" ".join(match.groups()), "%Y-%m-%d %H:%M:%S")
    return moment.replace(tzinfo=timezone.utc).isoformat()
