"""What of an installed stack is no longer what its wheels brought: a file that is gone, cut short or edited.

Every package lists its files with size and SHA-256 (packaging.python.org, "Recording installed projects"). Sizes are
compared for all of them, which takes under a second for 50,000; bytes only of those written after the stack's marker,
which is written last.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from .stack import MARKER

# More names help nobody.
SHOWN = 3
CHUNK = 1 << 20


def files(stack: Path) -> list[str]:
    """Paths below ``stack`` that are not as they were installed, in order. Raises OSError where it has no marker."""
    finished = (stack / MARKER).stat().st_mtime
    # Two packages may bring the same file, of which the last installed is there.
    brought: dict[str, list[tuple[str, str]]] = {}
    bad: list[str] = []
    for record in stack.glob("venv/lib/python*/site-packages/*.dist-info/RECORD"):
        place = str(record.parent.parent)
        try:
            for name, digest, size in _rows(record):
                path = name if name.startswith("/") else f"{place}/{name}"
                brought.setdefault(path, []).append((digest, size))
        # What no longer lists its files was altered itself.
        except (OSError, ValueError, csv.Error):
            bad.append(str(record))
    bad += [path for path, known in brought.items() if not _as_installed(Path(path), known, finished)]
    return sorted(os.path.relpath(path, stack) for path in bad)


def sentence(stack: Path) -> str:
    """What is wrong with a finished stack and what to do; empty where nothing is, or where it is not finished."""
    try:
        found = files(stack)
    except OSError:
        return ""
    if not found:
        return ""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        f"stack {stack.name} was altered on disk after it was installed: {', '.join(found[:SHOWN])}{more}. "
        f"A stack is never edited; stop the servers that use it, remove {stack} and deploy again"
    )


def _rows(record: Path) -> Iterator[tuple[str, str, str]]:
    """Name, digest and size of each file that a package lists with both, less bytecode, which an install makes anew."""
    with record.open(encoding="utf-8", newline="") as lines:
        for row in csv.reader(lines):
            if len(row) == 3 and row[1] and row[2] and not row[0].endswith(".pyc"):
                yield row[0], row[1], row[2]


def _as_installed(path: Path, known: list[tuple[str, str]], finished: float) -> bool:
    """Whether a file is one of those that packages brought, each a digest and a size."""
    try:
        seen = path.stat()
        digests = [digest for digest, size in known if size == str(seen.st_size)]
        if not digests or seen.st_mtime <= finished:
            return bool(digests)
        return any(_digest(path, digest.partition("=")[0]) == digest for digest in digests)
    except (OSError, ValueError):
        return False


def _digest(path: Path, algorithm: str) -> str:
    """A file's digest as RECORD writes it. Raises OSError, and ValueError for an algorithm nobody knows."""
    made = hashlib.new(algorithm)
    with path.open("rb") as content:
        while block := content.read(CHUNK):
            made.update(block)
    return f"{algorithm}={base64.urlsafe_b64encode(made.digest()).decode().rstrip('=')}"
