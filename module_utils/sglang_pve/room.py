"""Whether a copy fits where it shall go: the file system's free space and, in tmpfs, the container's memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
# tmpfs must not take the last of the memory: what runs beside it would be killed.
RESERVE = GIB // 2
# cgroup v1 writes "no limit" as a number near 2**63.
UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Memory:
    """Bytes: what the container may use and what it uses, page cache that can be dropped not counted."""

    limit: int
    used: int

    @property
    def free(self) -> int:
        return self.limit - self.used


@dataclass(frozen=True)
class Need:
    """A copy in bytes: ``copy`` is still to be written, ``staged`` is there already, ``stale`` goes away first."""

    copy: int
    staged: int = 0
    stale: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.copy + other.copy, self.staged + other.staged, self.stale + other.stale)


def shortage(place: str, need: Need, free: int | None, memory: Memory | None) -> str | None:
    """Why ``need`` does not fit in ``place``, with the sum; None when it fits.

    ``free`` are the file system's free bytes, None where it has no limit of its own. ``memory`` is given when the
    place is in memory.
    """
    ask = f"{need.copy} bytes ({need.copy / GIB:.2f} GiB) are needed in {place} beyond the {need.staged} staged already"
    if need.stale:
        ask += f" and the {need.stale} of an older copy, which go first"
    more = need.copy - need.stale
    if free is not None and more > free:
        return f"{ask}; its file system has {free} free: {more - free} too few"
    if memory is not None and more > memory.free - RESERVE:
        return (
            f"{ask}; it is in memory, of which the container may use {memory.limit} and uses {memory.used}, "
            f"and {RESERVE} stay free: {more - memory.free + RESERVE} too few. df does not show this limit"
        )
    return None


def free_bytes(path: Path) -> int | None:
    """Free bytes of the file system of ``path`` or its nearest existing parent; None for a tmpfs without a size."""
    info = os.statvfs(_existing(path))
    return info.f_bavail * info.f_frsize if info.f_blocks else None


def device(path: Path) -> int:
    """The file system that ``path`` lies, or would lie, in."""
    return _existing(path).stat().st_dev


def in_memory(path: Path) -> bool:
    """Whether ``path`` lies, or would lie, in a tmpfs or ramfs."""
    number = device(path)
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted and source.split()[0] in ("tmpfs", "ramfs"):
            return True
    return False


def read_memory(root: Path = Path("/")) -> Memory | None:
    """The memory that this process may use: of the views that the system under ``root`` offers, the one that has least.

    Where the limit is set on a control group above the visible ones, as Proxmox VE does, no group shows it;
    /proc/meminfo, which lxcfs fills, then has it.
    """
    views = (machine_memory(root), *group_memory(root))
    return min((view for view in views if view), key=lambda view: view.free, default=None)


def machine_memory(root: Path = Path("/")) -> Memory | None:
    """What /proc/meminfo says; None where it does not say it."""
    try:
        fields = _fields(root / "proc/meminfo")
        total, available = fields["MemTotal:"] * 1024, fields["MemAvailable:"] * 1024
    except (OSError, KeyError, ValueError):
        return None
    return Memory(total, total - available)


def group_memory(root: Path = Path("/")) -> list[Memory]:
    """Of every control group from this process's own up to the container's that has a limit (v2, then v1)."""
    views: list[Memory | None] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        # A container may be shown a path that begins outside of it; its own group is then the top.
        inner = top.joinpath(path.lstrip("/"))
        views += [_cgroup(group, *names) for group in (inner, *inner.parents) if group == top or top in group.parents]
    return [view for view in views if view]


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _cgroup(directory: Path, limit_file: str, usage_file: str, prefix: str) -> Memory | None:
    try:
        limit_text = (directory / limit_file).read_text().strip()
        usage = int((directory / usage_file).read_text())
        fields = _fields(directory / "memory.stat")
        # Not the "cache" or "file" field: it counts tmpfs, which nothing can drop.
        dropable = fields[f"{prefix}active_file"] + fields[f"{prefix}inactive_file"]
    except (OSError, KeyError, ValueError):
        return None
    if limit_text == "max" or int(limit_text) >= UNLIMITED:
        return None
    return Memory(int(limit_text), usage - dropable)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _fields(path: Path) -> dict[str, int]:
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines() if line.strip()}
