"""parse_header against the safetensors library: the same verdict and the same tensors for any file.

`make fuzz` gives every property FUZZ_CASES cases, new ones each time, and a second for each.
"""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_safetensors import header_of, join, size_of
from sglang_pve.shard import BITS, HEADER_LIMIT, CheckpointError, Header, parse_header

CASES = int(os.environ.get("FUZZ_CASES", "0"))
SETTINGS = settings(
    max_examples=CASES or 400, deadline=1000 if CASES else None, suppress_health_check=[HealthCheck.too_slow]
)
DTYPES = sorted(BITS)


def ours(data: bytes) -> Header | CheckpointError:
    try:
        return parse_header(io.BytesIO(data), len(data))
    except CheckpointError as error:
        return error


def theirs(data: bytes) -> dict[str, Any] | None:
    try:
        return dict(safetensors.deserialize(data))
    except safetensors.SafetensorError:
        return None


def assert_agreement(data: bytes) -> None:
    mine, reference = ours(data), theirs(data)
    if reference is None:
        assert isinstance(mine, CheckpointError), f"accepted, the library refuses: {data[:300]!r}"
        return
    assert isinstance(mine, Header), f"{mine}, the library accepts: {data[:300]!r}"
    start = 8 + int.from_bytes(data[:8], "little")
    read = {
        name: (tensor.dtype, list(tensor.shape), data[start + tensor.begin : start + tensor.end])
        for name, tensor in mine.tensors.items()
    }
    assert read == {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in reference.items()}


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, tuple[str, list[int]]]:
    names = draw(st.lists(st.text(max_size=12), max_size=6, unique=True))
    shapes = st.lists(st.integers(0, 6), max_size=3)
    # Four-bit and six-bit tensors of odd sizes do not end on a byte: a file with one is a broken file.
    return {name: (draw(st.sampled_from(DTYPES)), draw(shapes)) for name in names if name != "__metadata__"}


def data_for(length: int) -> bytes:
    return bytes(i % 251 for i in range(length))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 40) | st.integers(2**63, 2**65) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@SETTINGS
@given(layouts())
def test_files_that_were_written_by_the_rules(layout: dict[str, tuple[str, list[int]]]) -> None:
    header, length = header_of(layout)
    assert_agreement(join(header, data_for(length)))


@SETTINGS
@given(layouts(), st.data())
def test_headers_with_one_field_changed(layout: dict[str, tuple[str, list[int]]], data: st.DataObject) -> None:
    header, length = header_of(layout)
    name = data.draw(st.sampled_from(sorted(header)))
    change = data.draw(st.sampled_from(["entry", "field", "drop", "extra", "shift", "array", "resize"]))
    entry = header[name]
    if change == "entry" or name == "__metadata__":
        header[name] = data.draw(JSON_VALUES)
    elif change == "field":
        entry[data.draw(st.sampled_from(sorted(entry)))] = data.draw(JSON_VALUES)
    elif change == "drop":
        del entry[data.draw(st.sampled_from(sorted(entry)))]
    elif change == "extra":
        entry[data.draw(st.text(max_size=5))] = data.draw(JSON_VALUES)
    elif change == "shift":
        shift = data.draw(st.integers(-3, 3))
        entry["data_offsets"] = [max(0, offset + shift) for offset in entry["data_offsets"]]
    elif change == "array":
        header[name] = list(entry.values())[:: data.draw(st.sampled_from([1, -1]))]
    else:
        entry["shape"] = data.draw(st.lists(st.integers(0, 2**64), max_size=4))
    assert_agreement(join(header, data_for(length)))


@SETTINGS
@given(layouts(), st.integers(-9, 9))
def test_files_cut_short_and_files_with_more(layout: dict[str, tuple[str, list[int]]], change: int) -> None:
    header, length = header_of(layout)
    whole = join(header, data_for(length))
    assert_agreement(whole[:change] if change < 0 else whole + bytes(change))


@SETTINGS
@given(layouts(), st.data())
def test_files_with_bytes_changed(layout: dict[str, tuple[str, list[int]]], data: st.DataObject) -> None:
    header, length = header_of(layout)
    changed = bytearray(join(header, data_for(length)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert_agreement(bytes(changed))


@SETTINGS
@given(st.binary(max_size=200), st.booleans())
def test_noise(noise: bytes, framed: bool) -> None:
    assert_agreement(join(noise, b"") if framed else noise)


ONE = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


def unknown_field(value: str) -> str:
    return f'{{"a":{ONE[:-1]},"x":{value}}}}}'


@pytest.mark.parametrize(
    "header",
    [
        f'{{"a":{ONE},"a":{ONE}}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":' + ONE + "}",
        f'{{"a":7,"a":{ONE}}}',
        f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{ONE}}}',
        f'{{"__metadata__":{{"k":1,"k":"v"}},"a":{ONE}}}',
        '{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"a":["U8",[1],[0,1]]}',
        '{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}',
        '{"a":{"dtype":"U8","shape":[9223372036854775808,0],"data_offsets":[0,0]}}',
        '{"a":{"dtype":"U8","shape":[1099511627776,1099511627776,0],"data_offsets":[0,0]}}',
        f'{{"\\ud800":{ONE}}}',
        f'{{"\\ud83d\\ude00":{ONE}}}',
        f'{{"":{ONE}}}',
        "\ufeff{}",
        *(unknown_field("[" * depth + "]" * depth) for depth in (100, 125, 126, 3000)),
        *(unknown_field(number) for number in ("NaN", "1e999", "-1e400", "9" * 300, "9" * 5000)),
    ],
)
@pytest.mark.parametrize("length", [0, 1])
def test_what_only_the_library_would_think_of(header: str, length: int) -> None:
    assert_agreement(join(header.encode(), bytes(length)))


@pytest.mark.parametrize(
    ("data", "id", "word"),
    [
        (b"", "empty-file", "0 bytes"),
        (b"1234567", "header-invalid", "7 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "lfs-pointer", "Git LFS"),
        (b"<!DOCTYPE html><html>Not found</html>", "html-page", "web page"),
        ((10**6).to_bytes(8, "little") + b"{}", "header-length", "1000000"),
        (join(b"{not json", b""), "header-not-json", "not JSON"),
        (
            join({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(10)),
            "shard-truncated",
            "6 bytes too few",
        ),
        (
            join({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(19)),
            "shard-trailing-data",
            "3 bytes too many",
        ),
        (
            join({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}, bytes(8)),
            "tensor-size",
            "takes 8 bytes",
        ),
        (
            join(
                {n: {"dtype": "U8", "shape": [4], "data_offsets": [b, b + 4]} for n, b in (("a", 0), ("b", 5))},
                bytes(9),
            ),
            "tensor-hole",
            "hole",
        ),
        (
            join(
                {n: {"dtype": "U8", "shape": [4], "data_offsets": [b, b + 4]} for n, b in (("a", 0), ("b", 3))},
                bytes(7),
            ),
            "tensor-overlap",
            "overlaps",
        ),
    ],
)
def test_each_fault_is_named(data: bytes, id: str, word: str) -> None:
    error = ours(data)
    assert isinstance(error, CheckpointError)
    assert error.finding.id == id
    assert word in error.finding.seen
    assert error.finding.cure


@pytest.mark.parametrize(
    "header",
    [
        b"[" * (HEADER_LIMIT - 1),
        b'{"a":' * (HEADER_LIMIT // 5),
        b"[" + b"{}," * (HEADER_LIMIT // 3 - 2) + b"0]",
        b"[" + b'{"":0},' * 90_000 + b"0]",
        b'{"\xf0\x9f\x98\x80":"' + b"x" * (HEADER_LIMIT - 40) + b'"}',
        b"0" * (HEADER_LIMIT + 1),
        b'{"a":{"dtype":"U8","shape":[' + b"0," * 500_000 + b'0],"data_offsets":[0,0]}}',
        b"{" + b'"a":0,' * 400_000 + b'"a":0}',
    ],
    ids=["arrays", "objects", "values", "maps", "wide text", "too long", "dimensions", "one name"],
)
def test_a_hostile_header_stays_small(header: bytes) -> None:
    data = join(header, b"")
    stream = io.BytesIO(data)
    tracemalloc.start()
    try:
        parse_header(stream, len(data))
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 128 << 20


def test_a_file_that_shrinks_while_it_is_read() -> None:
    header, length = header_of({"a": ("F32", [2])})
    whole = join(header, bytes(length))
    with pytest.raises(CheckpointError, match="shard-truncated"):
        parse_header(io.BytesIO(whole[:20]), len(whole))


def test_a_disk_error_is_the_modules_own_error() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(CheckpointError, match="unreadable-file"):
        parse_header(Broken(), 100)


def test_json_of_a_large_checkpoint_is_read_whole() -> None:
    layout = {f"model.layers.{i}.mlp.up_proj.weight": ("BF16", [5, 3]) for i in range(5000)}
    header, length = header_of(layout)
    mine = ours(join(json.dumps(header).encode(), bytes(length)))
    assert isinstance(mine, Header)
    assert sum(tensor.bytes for tensor in mine.tensors.values()) == 5000 * size_of("BF16", [5, 3])
