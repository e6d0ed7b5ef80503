"""Whether a checkpoint's bytes are those that were published, or those of the first look.

Digests come from what huggingface_hub laid down, where it did, else from the first reading. A download that has the
right size can still hold wrong bytes (huggingface_hub issue 3643), which no structure check sees.

Sources: huggingface_hub 1.14, ``_local_folder.py`` (``.cache/huggingface/download/NAME.metadata``: commit, etag, time),
``file_download.py`` (cache layout: ``blobs/ETAG`` behind the links of ``snapshots/REVISION/``). An etag of 64 digits is
the file's SHA-256 (stored with LFS or Xet), one of 40 is git's SHA-1 of it as a blob.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .findings import Finding
from .server import write_atomic

SCHEMA = 1
CHUNK = 1 << 20
HUB = ".cache/huggingface/download"
MANIFESTS = Path("/var/lib/sglang/checkpoints")
Identity = tuple[int, int, int]  # bytes, mtime in ns, inode


class IntegrityError(Exception):
    """The checkpoint or its manifest cannot be used; the message says why and what to do."""


@dataclass
class _Count:
    """Bytes read so far, by all reading threads."""

    done: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count


def manifest_of(checkpoint: Path, folder: Path = MANIFESTS) -> Path:
    """Where the digests of a checkpoint are kept: outside of it, since it may be on read-only storage."""
    name = hashlib.sha256(os.fsencode(checkpoint.resolve())).hexdigest()[:16]
    return folder / f"{name}.json"


def files_of(checkpoint: Path) -> dict[str, Path]:
    """Regular files of the directory (links followed), without hidden ones. Raises IntegrityError."""
    try:
        return {
            path.name: path for path in sorted(checkpoint.iterdir()) if path.is_file() and not path.name.startswith(".")
        }
    except OSError as error:
        raise IntegrityError(f"{checkpoint} cannot be listed: {error.strerror}; correct the path") from error


def published(checkpoint: Path) -> dict[str, str]:
    """What the hub said of each file, as far as huggingface_hub kept it: name -> etag of 40 or 64 hex digits."""
    found = {}
    for name, path in files_of(checkpoint).items():
        etag = ""
        try:
            etag = (checkpoint / HUB / f"{name}.metadata").read_text(encoding="utf-8").split("\n")[1].strip()
        except (OSError, IndexError, ValueError):
            if path.is_symlink() and path.resolve().parent.name == "blobs":
                etag = path.resolve().name
        if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag):
            found[name] = etag
    return found


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> {"sha256", "bytes", "identity", "source"}; empty without a file. Raises IntegrityError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise IntegrityError(f"{path} has schema {content['schema']!r}, this version reads {SCHEMA}; remove it")
        return {str(name): dict(entry) for name, entry in content["files"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{path} cannot be read ({error!r}); remove it to make a new one") from error


@dataclass
class Reading:
    """What one call read. ``left`` are names that it had no time for; call again until it is empty."""

    entries: dict[str, dict[str, Any]]
    findings: list[Finding]
    left: list[str]
    bytes_total: int
    bytes_done: int
    new: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "files": len(self.entries),
            "left": self.left,
            "bytes_total": self.bytes_total,
            "bytes_done": self.bytes_done,
            "new": self.new,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def verify(
    checkpoint: Path,
    manifest: Path,
    since: float = 0,
    seconds: float = float("inf"),
    workers: int = 0,
    accept: bool = False,
    skip: Collection[str] = (),
) -> Reading:
    """Read every file with all cores and compare it with the manifest and with what the hub said.

    A file is not read again where the manifest says that it was read at or after ``since`` (seconds since the epoch)
    and where size, time of change and inode are the same: with 0 only changed files are read, and a long reading goes
    on with the ``since`` of its first call. Those of ``skip`` are not read either. After ``seconds`` no further file is
    begun. What was read is kept in ``manifest``; a digest that disagrees never replaces the one that is there, unless
    ``accept`` says that files were replaced on purpose. Raises IntegrityError.
    """
    known, told, files = read_manifest(manifest), published(checkpoint), files_of(checkpoint)
    if accept:
        known = {name: entry for name, entry in known.items() if name in files}
    due = {name: path for name, path in files.items() if name not in skip and _is_due(known.get(name), path, since)}
    size = {name: path.stat().st_size for name, path in files.items()}
    count = _Count(sum(each for name, each in size.items() if name not in due))
    reading = Reading({}, [], [], sum(size.values()), 0, [])
    deadline = time.monotonic() + seconds

    def read(name: str) -> tuple[str, dict[str, Any] | Finding | None]:
        if time.monotonic() > deadline:
            return name, None
        return name, _read(name, due[name], count)

    # The largest first: the end is then not one thread's work.
    order = sorted(due, key=lambda name: -size[name])
    with ThreadPoolExecutor(max_workers=workers or os.cpu_count() or 1) as pool:
        for name, result in pool.map(read, order):
            if result is None:
                reading.left.append(name)
            elif isinstance(result, Finding):
                reading.findings.append(result)
            else:
                _judge(reading, name, result, None if accept else known.get(name), told.get(name))
    for name in sorted(known.keys() - files.keys()):
        seen = "it was there when the digests were taken, and is not now"
        reading.findings.append(
            Finding("file-gone", "error", seen, "every file of the checkpoint", "Copy it again.", name)
        )
    for name in files.keys() - due.keys() - set(skip):
        reading.entries[name] = known[name]
        reading.findings += _against_hub(name, known[name], told.get(name))
    reading.bytes_done = count.done
    kept = {**known, **reading.entries}
    if kept != known:
        text = json.dumps({"schema": SCHEMA, "checkpoint": str(checkpoint), "files": kept}, indent=1, sort_keys=True)
        write_atomic(manifest, text + "\n")
    return reading


def _identity(status: os.stat_result) -> Identity:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _is_due(entry: dict[str, Any] | None, path: Path, since: float) -> bool:
    if entry is None or float(entry.get("read", 0)) < since:
        return True
    return list(_identity(path.stat())) != entry.get("identity")


def _read(name: str, path: Path, total: _Count) -> dict[str, Any] | Finding:
    """Digests of one file, or why there are none."""
    sha256, view, begun = hashlib.sha256(), memoryview(bytearray(CHUNK)), time.time()
    try:
        with path.open("rb", buffering=0) as stream:
            before = os.fstat(stream.fileno())
            blob = (
                hashlib.sha1(b"blob %d\0" % before.st_size, usedforsecurity=False) if before.st_size < CHUNK else None
            )
            count = stream.readinto(view)
            while count:
                sha256.update(view[:count])
                if blob:
                    blob.update(view[:count])
                total.add(count)
                count = stream.readinto(view)
            after = path.stat()
    except OSError as error:
        seen = f"reading failed: {error.strerror}"
        return Finding("unreadable-file", "error", seen, "a readable file", "Mend its mode or the disk.", name)
    if _identity(before) != _identity(after):
        seen, cure = "it changed while it was read", "Wait until the copy or download has ended, then verify again."
        return Finding("file-changing", "error", seen, "a file at rest", cure, name)
    entry = {"sha256": sha256.hexdigest(), "bytes": before.st_size, "identity": list(_identity(before)), "read": begun}
    return {**entry, "blob": blob.hexdigest()} if blob else entry


def _judge(reading: Reading, name: str, entry: dict[str, Any], known: dict[str, Any] | None, etag: str | None) -> None:
    """Take a file's digest into the reading, or say what it disagrees with."""
    wrong = _against_hub(name, entry, etag)
    if not wrong and known and known["sha256"] != entry["sha256"]:
        same = known["bytes"] == entry["bytes"]
        seen = f"sha256 {entry['sha256'][:16]}…, {'the same size' if same else str(entry['bytes']) + ' bytes'}"
        expected = f"{known['sha256'][:16]}… of {known['bytes']} bytes, as when it was first read"
        cure = "Copy it again; if it was replaced on purpose, run with -e sglang_accept_changes=true."
        wrong = [Finding("file-altered", "error", seen, expected, cure, name)]
    reading.findings += wrong
    if wrong:
        return
    if known is None:
        reading.new.append(name)
    reading.entries[name] = {**entry, "source": "hub" if etag else "first reading"}


def _against_hub(name: str, entry: dict[str, Any], etag: str | None) -> list[Finding]:
    actual = entry["sha256"] if etag and len(etag) == 64 else entry.get("blob")
    if etag is None or actual is None or actual == etag:
        return []
    cure = "Delete it and download it again; its size says nothing."
    seen, expected = f"digest {actual[:16]}…", f"{etag[:16]}…, which the hub published"
    return [Finding("file-not-as-published", "error", seen, expected, cure, name)]
