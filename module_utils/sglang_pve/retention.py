"""Retention: what a container keeps of releases, stacks and compiled kernels, and what it may free.

Kept are the releases of the newest verified states of the fleet (the present one, the one that a rollback goes to, and
``count`` more), whatever a server's link or a running process names, and the stacks of all these.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import history, host, release
from .stack import MARKER

# Releases and stacks are named by 12 hexadecimal digits of a hash; a directory of another name is not ours.
ID = re.compile(r"[0-9a-f]{12}")
# The present state and the one before it are never freed, however small the count.
ALWAYS_KEPT = 2


@dataclass(frozen=True)
class Item:
    """One directory that may go. ``kind``: release, stack, unfinished stack or kernels (the stack's JIT cache)."""

    kind: str
    path: Path
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": str(self.path), "bytes": self.bytes}


def size_of(path: Path) -> int:
    """Bytes that a file or tree takes on its disk; a file with several names counts once, a link is not followed."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for name in [str(path), *(os.path.join(top, name) for top, dirs, files in os.walk(path) for name in dirs + files)]:  # noqa: PTH118 (a string an entry is enough)
        try:
            status = os.lstat(name)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
    return total


def kept_releases(entries: Iterable[history.Entry], linked: Iterable[str], count: int) -> set[str]:
    """Ids to keep: of the newest ``count`` + 2 verified states, and ``linked``, which servers name or run now."""
    states = history.line(entries)[-(count + ALWAYS_KEPT) :]
    return {name for state in states for name in state.values()} | set(linked)


def in_use(root: Path, proc: Path = host.PROC) -> tuple[set[str], set[str]]:
    """Ids of the releases that links or processes name, and of the stacks that processes were started from."""
    links = {release.linked(directory) for directory in (root / "servers").glob("*")}
    releases = {name for name in links if name} | {found["release"] for found in host.servers(proc)}
    stacks = set()
    for process in proc.glob("[0-9]*"):
        try:
            program = os.fsdecode((process / "cmdline").read_bytes().split(b"\0")[0])
        except OSError:
            continue
        stacks.add(program.partition(f"{root}/stacks/")[2].split("/")[0])
    return releases, stacks - {""}


def named(directory: Path) -> list[Path]:
    """Directories below ``directory`` that carry an id; a link is none of ours."""
    found = directory.iterdir() if directory.is_dir() else iter(())
    return sorted(path for path in found if ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink())


def choose(
    root: Path,
    cache: Path,
    entries: Iterable[history.Entry],
    count: int,
    keep_stacks: Iterable[str] = (),
    proc: Path = host.PROC,
) -> tuple[list[Item], list[str]]:
    """What may go, and why something stays that would (release that cannot be read: its stack is not known).

    ``keep_stacks`` are ids that stay besides, such as the one that this deployment installed.
    """
    linked, running = in_use(root, proc)
    keep = kept_releases(entries, linked, count)
    stacks, doubts = set(keep_stacks) | running, []
    everything = release.read_all(root / "releases")
    for name in sorted(keep & everything.keys()):
        content: Mapping[str, Any] | None = everything[name]["manifest"]
        if content is None:
            doubts.append(f"{everything[name]['error']}; no stack is removed until that is settled")
        else:
            stacks.add(content["stack"]["id"])
    items = [Item("release", path, size_of(path)) for path in named(root / "releases") if path.name not in keep]
    if doubts:
        return items, doubts
    for path in named(root / "stacks"):
        if path.name not in stacks:
            kind = "stack" if (path / MARKER).exists() else "unfinished stack"
            items.append(Item(kind, path, size_of(path)))
    items += [Item("kernels", path, size_of(path)) for path in named(cache) if path.name not in stacks]
    return items, doubts


def remove(items: Iterable[Item]) -> None:
    """Remove them. A stack loses its marker first, and a release its name, so that none is ever taken for whole."""
    for item in items:
        path = item.path
        if item.kind == "stack":
            (path / MARKER).unlink(missing_ok=True)
        elif item.kind == "release":
            # remove_unfinished() takes away such a name after an interruption.
            path = path.rename(path.with_name(f".{path.name}.freed"))
        shutil.rmtree(path)
