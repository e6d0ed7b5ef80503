"""A little disk space that is kept for the way back: a full disk must not keep a fleet from its rollback."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Callable, TypeVar

BYTES = 1024 * 1024
# One on each file system that a rollback writes to.
PLACES = (Path("/var/lib/sglang/.reserve"), Path("/opt/sglang/.reserve"))
# ZFS gives freed space back with its next transaction group, which takes at most 5 s by default.
PATIENCE_S = 6.0
PAUSE_S = 0.2

Result = TypeVar("Result")


def keep(places: Iterable[Path] = PLACES) -> None:
    """Make the reserves that are missing, where there is room for one and for as much again beside it."""
    for place in places:
        if place.exists() or not place.parent.is_dir():
            continue
        disk = os.statvfs(place.parent)
        if disk.f_bavail * disk.f_frsize < 2 * BYTES:
            continue
        unfinished = place.with_name(f"{place.name}.new")
        try:
            # Random, since a file system that compresses keeps no room for zeros.
            unfinished.write_bytes(os.urandom(BYTES))
            unfinished.replace(place)
        except OSError:
            unfinished.unlink(missing_ok=True)


def spend(write: Callable[[], Result], places: Iterable[Path] = PLACES) -> Result:
    """Do ``write``; where it finds the disk full, give the reserves up and do it again. Raises its OSError."""
    deadline = None
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if deadline is None:
                deadline = time.monotonic() + PATIENCE_S
                if not _give_up(places):
                    raise
            elif time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)


def _give_up(places: Iterable[Path]) -> bool:
    there = [place for place in places if place.exists()]
    for place in there:
        place.unlink()
    return bool(there)
