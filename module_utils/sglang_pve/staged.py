"""A directory that staging fills: its lock, its journal of what was done, and the marker that makes it valid.

The journal comes first and says which files are ours; no other file is ever replaced or deleted. The marker comes last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, Callable

MARKER = ".sglang-staged.json"
JOURNAL = ".sglang-staging.jsonl"
PART = ".sglang-part"
NEW = ".new"
SCHEMA = 1


class StagingError(Exception):
    """A checkpoint that cannot be staged; the message says what was seen, what was expected and what to do."""


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
    """The directory ``path``. Whatever changes it needs the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the directory, made where it is missing, against a second run; ``waiting`` is called before a wait.

        The lock is on the directory itself, so no lock file is left behind.
        """
        while True:
            try:
                _make(self.path)
                handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError as error:
                raise StagingError(
                    f"the target {self.path} is no directory and cannot be made one ({error.strerror}). "
                    "Remove what is there or name another target"
                ) from error
            try:
                for place in (self.path, self.path.parent):
                    _check_owner(place)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waiting()
                    fcntl.flock(handle, fcntl.LOCK_EX)
                # The run before may have removed the directory; then this lock holds nothing.
                if self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(handle)):
                    yield
                    return
            finally:
                os.close(handle)

    def marker(self) -> dict[str, Any] | None:
        """The marker, with ``files`` as a list of Copied; None where the directory is not valid."""
        try:
            marker = json.loads((self.path / MARKER).read_bytes())
            files = [Copied(**row) for row in marker["files"]]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return {**marker, "files": files} if marker.get("schema") == SCHEMA and "digest" in marker else None

    def owned(self) -> dict[str, Copied | None]:
        """What staging made here, by path: whole files as Copied, files that were only begun as None."""
        marker = self.marker()
        owned: dict[str, Copied | None] = {file.path: file for file in marker["files"]} if marker else {}
        try:
            lines = (self.path / JOURNAL).read_bytes().splitlines()
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
        """Bytes of a regular file here, None where there is none."""
        path = self.path / name
        return path.lstat().st_size if path.is_file() and not path.is_symlink() else None

    def start(self, keep: Iterable[Copied], drop: Iterable[str]) -> None:
        """Make the directory invalid and rid it of our files in ``drop``, so that only ``keep`` is left."""
        keep, drop = list(keep), list(drop)
        self._write(JOURNAL, [*map(asdict, keep), *({"path": name} for name in drop)])
        (self.path / MARKER).unlink(missing_ok=True)
        for name in drop:
            self._remove(name)

    def begin(self, name: str) -> None:
        """To be called before the first byte of a file is written."""
        self._append({"path": name})
        _make((self.path / name).parent)

    def done(self, file: Copied) -> None:
        self._append(asdict(file))

    def finish(self, source: Path, digest: str, files: Iterable[Copied]) -> None:
        """Make the directory valid."""
        rows = [asdict(file) for file in sorted(files, key=lambda file: file.path)]
        self._write(JOURNAL, rows)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        marker = {"schema": SCHEMA, "source": str(source), "digest": digest, "staged_at": now, "files": rows}
        self._write(MARKER, [marker])

    def clear(self) -> list[str]:
        """Remove what is ours and the directories left empty; returns the foreign files that stay."""
        owned = self.owned()
        # The marker goes first and the journal last: killed in between, the rest is still known to be ours.
        (self.path / MARKER).unlink(missing_ok=True)
        for name in owned:
            self._remove(name)
        left = self.foreign(owned)
        for name in (MARKER + NEW, JOURNAL + NEW, JOURNAL):
            (self.path / name).unlink(missing_ok=True)
        inner = {self.path / parent for name in owned for parent in Path(name).parents}
        for directory in sorted(inner | {self.path}, reverse=True):
            with contextlib.suppress(OSError):
                directory.rmdir()
        return left

    def _listed(self) -> Iterator[str]:
        for directory, inner, names in os.walk(self.path):
            for path in (Path(directory) / name for name in [*inner, *names]):
                if path.is_symlink() or not path.is_dir():
                    yield str(path.relative_to(self.path))

    def _remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        part_of(self.path / name).unlink(missing_ok=True)

    def _append(self, row: dict[str, Any]) -> None:
        with (self.path / JOURNAL).open("a") as journal:
            journal.write(json.dumps(row) + "\n")
            journal.flush()
            os.fsync(journal.fileno())

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        """One JSON object a line, all or nothing."""
        new = self.path / (name + NEW)
        with new.open("w") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
            stream.flush()
            os.fsync(stream.fileno())
        new.chmod(0o644)
        new.replace(self.path / name)


def _make(directory: Path) -> None:
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        # mkdir obeys the umask, and the service user has to pass.
        place.chmod(0o755)


def _check_owner(place: Path) -> None:
    # /dev/shm is open to everybody: a stranger's directory there would let them put links in our way.
    owner = place.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise StagingError(
            f"{place} belongs to user id {owner}, expected {os.geteuid()} or 0. Remove it or name another target"
        )
