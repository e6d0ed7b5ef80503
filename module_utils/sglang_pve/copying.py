"""Copies files side by side, in one pass that hashes as it copies."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import BinaryIO, Callable

from .room import GIB
from .staged import Copied, File, StagingError, Target, part_of

BLOCK = 1 << 20
PROGRESS_SECONDS = 2.0
Say = Callable[[str], None]


def copy_all(source: Path, target: Target, files: Sequence[File], progress: Progress) -> list[Copied]:
    """Copy as many files at a time as there are cores, the biggest first, so that none is left alone at the end."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        jobs = [
            pool.submit(_copy, source, target, file, progress, stop)
            for file in sorted(files, key=lambda file: file.bytes, reverse=True)
        ]
        try:
            return [job.result() for job in as_completed(jobs)]
        except BaseException:
            # The first failure, or an interruption, ends the others too.
            stop.set()
            raise


def _copy(source: Path, target: Target, file: File, progress: Progress, stop: threading.Event) -> Copied:
    if stop.is_set():
        raise StagingError("ended, since another file failed")
    place = target.begin(file.path)
    part = part_of(place)
    try:
        digest = _copy_bytes(source / file.path, part, file, progress, stop)
        part.replace(place)
    except OSError as error:
        # One of a read or a write does not name the file.
        raise OSError(error.errno, error.strerror, error.filename or str(place)) from error
    finally:
        # Half a file in a full tmpfs would hold memory that everybody needs.
        part.unlink(missing_ok=True)
    copied = Copied(file.path, file.bytes, file.mtime_ns, digest)
    target.done(copied)
    return copied


def _copy_bytes(source: Path, part: Path, file: File, progress: Progress, stop: threading.Event) -> str:
    """Copy one file and return the SHA-256 of what was copied. Raises StagingError when the source was written to."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK))
    with source.open("rb", buffering=0) as reader, part.open("xb", buffering=0) as writer:
        before = os.fstat(reader.fileno())
        while count := reader.readinto(block):
            digest.update(block[:count])
            _write_all(writer, block[:count])
            progress.add(count)
            if stop.is_set():
                raise StagingError("ended, since another file failed")
        os.fchmod(writer.fileno(), stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
        # On a disk the journal must not say more than the disk holds after a power cut.
        os.fsync(writer.fileno())
        length = writer.tell()
        # The source's page cache is charged to the same container that the copy has to fit in.
        os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    as_planned = (before.st_size, before.st_mtime_ns, length) == (file.bytes, file.mtime_ns, file.bytes)
    if not as_planned or state(source.stat()) != state(before):
        raise StagingError(f"{source} changed while it was read. Run again when nothing writes to it")
    return digest.hexdigest()


def _write_all(writer: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[writer.write(data) :]


def state(info: os.stat_result) -> tuple[int, ...]:
    """What is another once a file was written to or replaced."""
    # The last cannot be set back, as the modification time can.
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


class Progress:
    """Says how far a copy is, at most every PROGRESS_SECONDS."""

    def __init__(self, target: Path, copy: Iterable[File], keep: Iterable[File], say: Say) -> None:
        self.target = target
        self.kept = sum(file.bytes for file in keep)
        self.total = self.kept + sum(file.bytes for file in copy)
        self.copied = 0
        self.say = say
        self.adding = threading.Lock()
        self.began = self.said = time.monotonic()
        again = f", {self.kept / GIB:.2f} GiB are there already" if self.kept else ""
        say(f"{target}: copying {(self.total - self.kept) / GIB:.2f} GiB{again}")

    def add(self, count: int) -> None:
        with self.adding:
            self.copied += count
            now = time.monotonic()
            if now - self.said >= PROGRESS_SECONDS:
                self.said = now
                done = self.kept + self.copied
                share = 100 * done // max(self.total, 1)
                self.say(f"{self.target}: {share} % {done / GIB:.2f} of {self.total / GIB:.2f} GiB {self._speed()}")

    def end(self) -> None:
        self.say(f"{self.target}: staged, 100 % {self.total / GIB:.2f} GiB {self._speed()}")

    def _speed(self) -> str:
        return f"{self.copied / GIB / max(time.monotonic() - self.began, 1e-9):.2f} GiB/s"
