"""Holds a directory against a second run, and says who holds it. No lock file is left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Callable


class RefusedError(Exception):
    """What is not done; the message says what was seen, what was expected and what to do."""


@contextlib.contextmanager
def held(directory: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold ``directory``, made where it is missing; ``waiting`` is told who has it before a wait. Raises RefusedError.

    Two runs that hold several directories take them in one order (sorted), so that neither waits for the other.
    """
    try:
        make_directory(directory)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RefusedError(
            f"{directory} is no directory and cannot be made one ({error.strerror}). "
            "Remove what is there or name another place"
        ) from error
    try:
        for place in (directory, directory.parent):
            check_owner(place)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(holder(handle))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def holder(handle: int) -> str:
    """Who holds the open directory, such as ``pid 812 (python3 -m sglang_pve.staging ...)``."""
    inode = f":{os.fstat(handle).st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        # 1: FLOCK  ADVISORY  WRITE 812 00:2f:1234 0 EOF; a waiting one has an arrow before its kind.
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(inode):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{fields[4]}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                return f"pid {fields[4]} ({' '.join(words).strip()[:120]})"
    return "another run"


def make_directory(directory: Path) -> None:
    """Make it and those above it, open for everybody to pass."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        # mkdir obeys the umask, and the service user has to pass.
        place.chmod(0o755)


def check_owner(place: Path) -> None:
    """Raise RefusedError for a stranger's directory: in /dev/shm they could put links in our way."""
    owner = place.lstat().st_uid
    if owner not in (0, os.geteuid()):
        raise RefusedError(
            f"{place} belongs to user id {owner}, expected {os.geteuid()} or 0. Remove it or name another place"
        )
