"""Which GPUs the code in a CUDA library is for, read from the file itself: no cuobjdump, nothing is loaded.

A library holds its device code in the ELF section ``.nv_fatbin``: containers with a header each, and in them one image
for each source file and target. Their layout is not published; here it is as read in libraries that nvcc 13.0 made for
known targets (2026-12-01), and in those of torch 2.11.0 and sglang-kernel 0.4.2.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .elf import MAGIC, ElfError

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_CONTAINER = 0xBA55ED50
_PTX, _CODE = 1, 2
# Of an image's flags: its target's letter, as in sm_120a (that GPU alone) and sm_120f (its family).
_EXACT, _FAMILY = 1 << 20, 1 << 21


@dataclass(frozen=True)
class Target:
    """What an image is for: ``number`` is 120 for SM 12.0; ``letter`` "", "a" or "f"; PTX is compiled at load."""

    number: int
    letter: str
    ptx: bool

    @property
    def name(self) -> str:
        return f"{'compute' if self.ptx else 'sm'}_{self.number}{self.letter}"

    def runs_on(self, sm: int) -> bool:
        """Whether a GPU of SM ``sm`` (120 for 12.0) runs it.

        Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility" and "Compute Capability": code runs on the
        same major version with an equal or higher minor one, PTX on every later one, "a" on its own GPU alone.
        """
        if self.letter == "a":
            return sm == self.number
        same_major = sm // 10 == self.number // 10
        return sm >= self.number and (same_major or (self.ptx and not self.letter))


def targets(path: Path) -> set[Target]:
    """The targets of every image in a library; nothing for one without device code.

    Raises ElfError for a damaged file, OSError where it cannot be read.
    """
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            return set()
        try:
            return {target for place, length in _sections(stream) for target in _images(stream, place, length)}
        except (struct.error, ValueError) as exc:
            raise ElfError(f"{path}: {exc}; expected a whole 64-bit ELF file with code of CUDA") from exc


def _sections(stream: BinaryIO) -> Iterator[tuple[int, int]]:
    """Offset and length of each section with device code."""
    (table,) = struct.unpack("<Q", _at(stream, 40, 8))
    size, count, names = struct.unpack("<HHH", _at(stream, 58, 6))
    if not count:
        return
    headers = [struct.unpack("<II16xQQ", _at(stream, table + size * index, 40)) for index in range(count)]
    strings = _at(stream, *headers[names][2:])
    for name, _, place, length in headers:
        if strings[name:].split(b"\0", 1)[0].decode(errors="replace") in SECTIONS:
            yield place, length


def _images(stream: BinaryIO, place: int, length: int) -> Iterator[Target]:
    end = place + length
    while place < end:
        magic, _, header, size = struct.unpack("<IHHQ", _at(stream, place, 16))
        # Containers are aligned; what lies between them is zero.
        if magic != _CONTAINER:
            if magic:
                raise ValueError(f"no container of device code at {place}")
            place += 8
            continue
        place += header
        inside, place = place, place + size
        while inside < place:
            kind, _, header, size = struct.unpack("<HHIQ", _at(stream, inside, 16))
            number, _, _, flags = struct.unpack("<IIIQ", _at(stream, inside + 28, 20))
            if not header or kind not in (_PTX, _CODE):
                raise ValueError(f"an image of kind {kind} at {inside}")
            yield Target(number, "a" if flags & _EXACT else "f" if flags & _FAMILY else "", kind == _PTX)
            inside += header + size


def _at(stream: BinaryIO, offset: int, length: int) -> bytes:
    if offset + length > os.fstat(stream.fileno()).st_size:
        raise ValueError("cut short")
    stream.seek(offset)
    return stream.read(length)
