"""One safetensors file: what its header says, judged exactly as the ``safetensors`` library judges it.

A file is 8 bytes (the header's length, little-endian), the header (a JSON object) and the data. Nothing of the data is
read here. Where a rule looks odd (a tensor given as an array, a name given twice), it is because the library, and so
the engine, accepts or refuses just that; the tests compare the two.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from .findings import Finding

# Bits of one element, for every type that safetensors 0.8.0 knows.
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
FIELDS = ("dtype", "shape", "data_offsets")
LFS_START = b"version https://git-lfs"

# The library stops at 100 MB; these bounds keep a hostile header under 128 MB of memory and one second. A real shard
# with 1,500 tensors has a header of 0.2 MB.
HEADER_LIMIT = 8 << 20
SEPARATOR_LIMIT = 600_000
# serde_json's: deeper input is refused.
DEPTH_LIMIT = 127
WORD = 1 << 64
AGAIN = "Copy or download this file again."


class CheckpointError(Exception):
    """A file that cannot be loaded. ``finding`` says why; its ``where`` is empty, the caller knows the name."""

    def __init__(self, id: str, seen: str, expected: str, cure: str = AGAIN) -> None:
        self.finding = Finding(id, "error", seen, expected, cure)
        super().__init__(f"{id}: {seen}; expected {expected}")


class Tensor(NamedTuple):
    """A tensor's place in its file: ``begin`` and ``end`` are bytes from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin

    @property
    def elements(self) -> int:
        """Stored elements; a packed format (two 4-bit weights in a U8) holds more parameters than that."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """``repeated`` names tensors that the header gives twice (the last one counts); ``digest`` is a hex SHA-256."""

    tensors: dict[str, Tensor]
    repeated: tuple[str, ...]
    digest: str


class _Repeated(dict[str, Any]):
    """A JSON object with a key twice: the last value counts, and ``pairs`` has them all."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def parse_header(stream: BinaryIO, file_size: int) -> Header:
    """The header of a safetensors file of ``file_size`` bytes, read from its start.

    Raises CheckpointError, and nothing else, for everything that the library would refuse: ids ``empty-file``,
    ``lfs-pointer``, ``html-page``, ``header-*``, ``tensor-*``, ``shard-truncated``, ``shard-trailing-data``,
    ``unreadable-file``; docs/checkpoint.md says what each means.
    """
    try:
        raw = _read(stream, file_size)
    except OSError as error:
        raise CheckpointError("unreadable-file", f"reading failed: {error}", "a readable file") from error
    entries = _load(raw)
    _once(entries, ("__metadata__",), "the header")
    _check_metadata(entries.get("__metadata__"))
    pairs = [(name, _tensor(name, entry)) for name, entry in _pairs(entries) if name != "__metadata__"]
    tensors = dict(pairs)
    repeated = () if len(tensors) == len(pairs) else _repeated(name for name, _ in pairs)
    end = _check_layout(tensors)
    _check_size(file_size - 8 - len(raw), end)
    return Header(tensors, repeated, hashlib.sha256(raw).hexdigest())


def _invalid(seen: str, expected: str, id: str = "header-invalid") -> CheckpointError:
    return CheckpointError(id, seen, expected)


def _read(stream: BinaryIO, file_size: int) -> bytes:
    if file_size == 0:
        raise CheckpointError("empty-file", "0 bytes", "a safetensors file")
    prefix = stream.read(8)
    if prefix == LFS_START[:8] and stream.read(len(LFS_START) - 8) == LFS_START[8:]:
        raise CheckpointError(
            "lfs-pointer",
            "a Git LFS pointer (a text of about 130 bytes)",
            "the file that it stands for",
            "Run `git lfs pull` in the checkpoint's directory, or download the file.",
        )
    if len(prefix) < 8:
        raise _invalid(f"{len(prefix)} bytes", "at least 8, the header's length")
    length = int.from_bytes(prefix, "little")
    if length > file_size - 8:
        if prefix.lstrip()[:1] == b"<":
            raise CheckpointError("html-page", f"a web page (it begins with {prefix!r})", "a safetensors file")
        raise _invalid(
            f"a header length of {length} bytes (the file begins with {prefix!r})",
            f"at most the {file_size - 8} bytes that follow it",
            "header-length",
        )
    if length > HEADER_LIMIT:
        raise CheckpointError("header-too-large", f"a header of {length} bytes", f"at most {HEADER_LIMIT}")
    raw = stream.read(length)
    if len(raw) != length:
        raise CheckpointError("shard-truncated", f"{length - len(raw)} bytes of the header are gone", "a whole header")
    return raw


def _load(raw: bytes) -> dict[str, Any]:
    """The header as an object, after JSON rules of the library that Python's own parser does not have."""
    if sum(map(raw.count, (b",", b"[", b"{"))) > SEPARATOR_LIMIT:
        raise CheckpointError("header-too-large", "too many values", f"fewer than {SEPARATOR_LIMIT}")
    try:
        loaded = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
        if b"\\u" in raw:
            # A lone surrogate is no text; encoding is the cheapest way to find one.
            json.dumps(loaded, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise _invalid(f"not JSON ({error})", "a JSON object in UTF-8", "header-not-json") from error
    if not isinstance(loaded, dict):
        raise _invalid(f"a JSON {type(loaded).__name__}", "a JSON object", "header-not-json")
    return loaded


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else _Repeated(pairs)


def _pairs(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return value.pairs if isinstance(value, _Repeated) else value.items()


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("number out of range")
    return value


def _integer(text: str) -> int | float:
    # Beyond 64 bits, and for -0, the library takes a number for a floating one, which no field accepts.
    return _float(text) if len(text) > 20 or text == "-0" else int(text)


def _constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _repeated(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name, times in Counter(names).items() if times > 1))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."


def _once(value: dict[str, Any], names: Iterable[str], where: str) -> None:
    if isinstance(value, _Repeated):
        twice = set(names).intersection(_repeated(key for key, _ in value.pairs))
        if twice:
            raise _invalid(f"{where} gives {', '.join(sorted(twice))} twice", "each field once", "header-field-twice")


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for _, value in _pairs(metadata)):
        raise _invalid("__metadata__ with something else than text", "an object of strings")


def _tensor(name: str, entry: Any) -> Tensor:
    where = f"tensor {_show(name)}"
    if isinstance(entry, list) and len(entry) == len(FIELDS):
        entry = dict(zip(FIELDS, entry))
    if not isinstance(entry, dict) or any(field not in entry for field in FIELDS):
        raise _invalid(f"{where} without all of {', '.join(FIELDS)}", "an object with these fields")
    _once(entry, FIELDS, where)
    if len(entry) > len(FIELDS) and _depth(entry) >= DEPTH_LIMIT:
        raise _invalid(f"{where} is nested too deeply", f"at most {DEPTH_LIMIT} levels")
    dtype, shape, offsets = (entry[field] for field in FIELDS)
    if isinstance(dtype, dict) and [value for _, value in _pairs(dtype)] == [None]:
        (dtype,) = dtype
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _invalid(f"{where} of type {_show(dtype)}", f"one of {', '.join(BITS)}", "tensor-type")
    if not _sizes(shape):
        raise _invalid(f"{where} of shape {_show(shape)}", "a list of sizes")
    if not _sizes(offsets) or len(offsets) != 2:
        raise _invalid(f"{where} with data_offsets {_show(offsets)}", "two offsets")
    tensor = Tensor(dtype, tuple(shape), *offsets)
    if _bytes(where, tensor) != tensor.bytes:
        raise _invalid(
            f"{where}, {dtype} of shape {_show(shape)}, takes {tensor.bytes} bytes of the file",
            f"{_bytes(where, tensor)} bytes by type and shape",
            "tensor-size",
        )
    return tensor


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < WORD for size in value)


def _bytes(where: str, tensor: Tensor) -> int:
    """Bytes that type and shape ask for, with the library's 64-bit arithmetic: it refuses what overflows on the way."""
    bits = 1
    for factor in (*tensor.shape, BITS[tensor.dtype]):
        bits *= factor
        if bits >= WORD:
            raise _invalid(f"{where} of shape {_show(list(tensor.shape))}", "a size that fits 64 bits")
    if bits % 8:
        raise _invalid(f"{where} of {bits} bits", "whole bytes")
    return bits // 8


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [child for children in inner for child in children if isinstance(child, (dict, list))]
    return deepest


def _check_layout(tensors: dict[str, Tensor]) -> int:
    """The end of the data in bytes; tensors lie one after the other, without a hole and without sharing a byte."""
    end, before = 0, "the start"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != end:
            overlaps = tensor.begin < end
            word = "overlaps" if overlaps else "leaves a hole after"
            seen = f"tensor {_show(name)} begins at {tensor.begin} and {word} {before}"
            raise _invalid(seen, f"it to begin at {end}", "tensor-overlap" if overlaps else "tensor-hole")
        end, before = tensor.end, _show(name)
    return end


def _check_size(present: int, named: int) -> None:
    if present < named:
        raise CheckpointError(
            "shard-truncated",
            f"{present} bytes of data, {named - present} bytes too few",
            f"the {named} bytes that the header names",
        )
    if present > named:
        raise CheckpointError(
            "shard-trailing-data",
            f"{present} bytes of data, {present - named} bytes too many",
            f"the {named} bytes that the header names",
        )
