"""Which shared libraries a binary asks the loader for, read from the file itself: no readelf, nothing is loaded.

Format: System V ABI, chapters 4 and 5 (program header, dynamic section). Only 64-bit little-endian files are read,
which is what every machine with such a GPU runs.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from .findings import Finding

MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 0, 1, 5, 10
# The libraries whose number is CUDA's own major version; those of cufft, cusparse and cusolver count otherwise.
_CUDA = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti)\.so\.(\d+)(?:\.\d+)*")


class ElfError(ValueError):
    """A file that begins like an ELF binary and cannot be read as one; the message names it."""


def needed(path: Path) -> list[str]:
    """The names of DT_NEEDED in their order; [] for a file that is no ELF binary, or a static one.

    Raises ElfError for a damaged or foreign binary, OSError where the file cannot be read.
    """
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            return []
        try:
            return _needed(stream)
        except (struct.error, ValueError) as exc:
            raise ElfError(f"{path}: {exc}; expected a whole 64-bit little-endian ELF file") from exc


def _needed(stream: BinaryIO) -> list[str]:
    if stream.read(2) != b"\x02\x01":
        raise ValueError("another class or byte order")
    offset, size, count = struct.unpack_from("<Q14xHH", _at(stream, 32, 26))
    if size != 56:
        raise ValueError(f"program headers of {size} bytes")
    table = _at(stream, offset, size * count)
    headers = [struct.unpack_from("<I4xQQ8xQ", table, size * index) for index in range(count)]
    dynamic = next(((place, length) for kind, place, _, length in headers if kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return []
    entries = []
    for tag, value in struct.iter_unpack("<QQ", _at(stream, *dynamic)):
        if tag == _DT_NULL:
            break
        entries.append((tag, value))
    tags = dict(entries)
    names = [value for tag, value in entries if tag == _DT_NEEDED]
    if not names:
        return []
    if not {_DT_STRTAB, _DT_STRSZ} <= tags.keys():
        raise ValueError("a dynamic section without a string table")
    for kind, place, address, length in headers:
        if kind == _PT_LOAD and address <= tags[_DT_STRTAB] < address + length:
            strings = _at(stream, place + tags[_DT_STRTAB] - address, tags[_DT_STRSZ])
            return [_string(strings, name) for name in names]
    raise ValueError("a string table outside every segment")


def _at(stream: BinaryIO, offset: int, length: int) -> bytes:
    # Looked at first: a damaged length must not fill the memory.
    if offset + length > os.fstat(stream.fileno()).st_size:
        raise ValueError("cut short")
    stream.seek(offset)
    return stream.read(length)


def _string(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if not 0 <= start <= end:
        raise ValueError("a name outside the string table")
    return strings[start:end].decode(errors="replace")


def libraries(root: Path) -> Iterator[Path]:
    """Every shared library under ``root`` (a ``site-packages``), links left out, sorted."""
    for path in sorted(root.rglob("*.so*")):
        if re.search(r"\.so(\.\d+)*$", path.name) and path.is_file() and not path.is_symlink():
            yield path


def cuda_majors(root: Path) -> dict[str, dict[int, str]]:
    """The libraries under ``root`` that need CUDA: path below ``root`` -> {CUDA's major: the name that says so}.

    Raises ElfError and OSError.
    """
    found: dict[str, dict[int, str]] = {}
    for path in libraries(root):
        for match in filter(None, map(_CUDA.fullmatch, needed(path))):
            majors = found.setdefault(str(path.relative_to(root)), {})
            majors.setdefault(int(match.group(1)), match.group(0))
    return found


def judge(root: Path, major: int, exceptions: Mapping[str, str]) -> list[Finding]:
    """What is wrong with the libraries of a stack whose lane is CUDA ``major``: one error finding a library, or none.

    ``exceptions``: a pattern of paths below ``root`` -> why such a library may need another CUDA. A pattern that
    nothing matches is a warning: its reason no longer holds. A stack without any library that needs CUDA passes.
    """
    used: set[str] = set()
    found = []
    for path, majors in cuda_majors(root).items():
        others = [name for number, name in sorted(majors.items()) if number != major]
        if not others:
            continue
        patterns = {pattern for pattern in exceptions if fnmatch(path, pattern)}
        used |= patterns
        if not patterns:
            found.append(
                Finding(
                    "cuda-mixed",
                    "error",
                    f"needs {', '.join(others)}",
                    f"libraries of CUDA {major} alone, as every other of this lane",
                    "Lock its build for this lane's CUDA, or give a reason under cuda_exceptions in stack.yml.",
                    path,
                )
            )
    found.extend(
        Finding(
            "cuda-exception-unused",
            "warning",
            f"no library of another CUDA matches {pattern!r}",
            "an exception that is needed",
            "Remove it from cuda_exceptions in stack.yml.",
        )
        for pattern in sorted(exceptions.keys() - used)
    )
    return found
