"""A directory that staging fills: its journal of what was done, the marker that makes it valid, and its name.

Until it is whole it lies hidden beside its place, so nobody can take half of it for a checkpoint. The journal comes
first and says which files are ours; no other file is ever replaced or deleted. The marker comes last, then the name.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

from .hold import RefusedError, check_owner, make_directory

MARKER = ".sglang-staged.json"
JOURNAL = ".sglang-staging.jsonl"
WORK = ".sglang-staging"
PART = ".sglang-part"
NEW = ".new"
SCHEMA = 1


class StagingError(RefusedError):
    """A checkpoint that cannot be staged."""


@dataclass(frozen=True)
class File:
    """A file of the source: ``path`` relative to it, ``bytes``, and when it was changed, in nanoseconds."""

    path: str
    bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Copied(File):
    """A file that was copied whole; ``sha256`` (hex) is of the bytes that were read and written."""

    sha256: str

    def is_copy_of(self, file: File) -> bool:
        return (self.path, self.bytes, self.mtime_ns) == (file.path, file.bytes, file.mtime_ns)


def part_of(path: Path) -> Path:
    """Where a file lies until it is whole."""
    return path.with_name(f".{path.name}{PART}")


class Target:
    """The copy at ``path``. Whatever changes it holds the lock of the directory that it lies in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path.with_name(f".{path.name}{WORK}")
        self._appending = threading.Lock()

    @property
    def place(self) -> Path:
        """Where the files are now: at ``path``, or hidden while they are not whole."""
        return self.path if self.path.is_dir() and any(self.path.iterdir()) else self.work

    def check(self) -> None:
        """Raise RefusedError where the place is taken by something that is no directory of ours."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise StagingError(f"the target {self.path} is no directory. Remove what is there or name another target")
        if self.path.is_mount():
            raise StagingError(f"the target {self.path} is a mount point. Name a directory in it")
        for place in (self.path, self.work):
            if place.exists():
                check_owner(place)
        if self.place == self.path and self.work.exists():
            raise StagingError(f"both {self.path} and {self.work} are there. Remove the second, an unfinished copy")

    def marker(self) -> dict[str, Any] | None:
        """The marker, with ``files`` as a list of Copied; None where the copy is not whole."""
        return self._marker(self.path)

    @staticmethod
    def _marker(place: Path) -> dict[str, Any] | None:
        try:
            marker = json.loads((place / MARKER).read_bytes())
            files = [Copied(**row) for row in marker["files"]]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return {**marker, "files": files} if marker.get("schema") == SCHEMA and "digest" in marker else None

    def owned(self) -> dict[str, Copied | None]:
        """What staging made here, by path: whole files as Copied, files that were only begun as None."""
        marker = self._marker(self.place)
        owned: dict[str, Copied | None] = {file.path: file for file in marker["files"]} if marker else {}
        try:
            lines = (self.place / JOURNAL).read_bytes().splitlines()
        except FileNotFoundError:
            return owned
        for line in lines:
            # A run that was killed may leave half a line.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                row = json.loads(line)
                path = row["path"]
                if ".." not in PurePosixPath(path).parts and not path.startswith("/"):
                    owned[path] = Copied(**row) if "sha256" in row else None
        return owned

    def foreign(self, owned: Iterable[str]) -> list[str]:
        ours = {name + new for name in (MARKER, JOURNAL) for new in ("", NEW)}
        for name in owned:
            ours |= {name, str(part_of(Path(name)))}
        return sorted(set(self._listed()) - ours)

    def size(self, name: str) -> int | None:
        """Bytes of a regular file of the copy, None where there is none."""
        path = self.place / name
        return path.lstat().st_size if path.is_file() and not path.is_symlink() else None

    def start(self, keep: Iterable[Copied], drop: Iterable[str]) -> None:
        """Hide the copy and rid it of our files in ``drop``, so that only ``keep`` is left."""
        keep, drop = list(keep), list(drop)
        if self.place == self.path:
            self.path.rename(self.work)
        make_directory(self.work)
        self._write(JOURNAL, [*map(asdict, keep), *({"path": name} for name in drop)])
        (self.work / MARKER).unlink(missing_ok=True)
        for name in drop:
            self._remove(self.work, name)

    def begin(self, name: str) -> Path:
        """To be called before the first byte of a file is written; returns where it goes."""
        self._append({"path": name})
        make_directory((self.work / name).parent)
        return self.work / name

    def done(self, file: Copied) -> None:
        self._append(asdict(file))

    def finish(self, source: Path, digest: str, files: Iterable[Copied]) -> None:
        """Make the copy valid and give it its name."""
        rows = [asdict(file) for file in sorted(files, key=lambda file: file.path)]
        self._write(JOURNAL, rows)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        marker = {"schema": SCHEMA, "source": str(source), "digest": digest, "staged_at": now, "files": rows}
        self._write(MARKER, [marker])
        self.work.rename(self.path)

    def clear(self) -> list[str]:
        """Remove what is ours and the directories left empty; returns the foreign files that stay."""
        owned, place = self.owned(), self.place
        # The marker goes first and the journal last: killed in between, the rest is still known to be ours.
        (place / MARKER).unlink(missing_ok=True)
        for name in owned:
            self._remove(place, name)
        left = self.foreign(owned)
        for name in (MARKER + NEW, JOURNAL + NEW, JOURNAL):
            (place / name).unlink(missing_ok=True)
        inner = {place / parent for name in owned for parent in Path(name).parents}
        for directory in sorted(inner | {place}, reverse=True):
            with contextlib.suppress(OSError):
                directory.rmdir()
        return left

    def _listed(self) -> Iterator[str]:
        for directory, inner, names in os.walk(self.place):
            for path in (Path(directory) / name for name in [*inner, *names]):
                if path.is_symlink() or not path.is_dir():
                    yield str(path.relative_to(self.place))

    @staticmethod
    def _remove(place: Path, name: str) -> None:
        (place / name).unlink(missing_ok=True)
        part_of(place / name).unlink(missing_ok=True)

    def _append(self, row: dict[str, Any]) -> None:
        with self._appending, (self.work / JOURNAL).open("a") as journal:
            journal.write(json.dumps(row) + "\n")
            journal.flush()
            os.fsync(journal.fileno())

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        """One JSON object a line, all or nothing."""
        new = self.work / (name + NEW)
        with new.open("w") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
            stream.flush()
            os.fsync(stream.fileno())
        new.chmod(0o644)
        new.replace(self.work / name)
