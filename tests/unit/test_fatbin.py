"""Which GPUs a CUDA library's code is for, on files made byte by byte; flag words as in what nvcc 13.0 made."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sglang_pve.elf import ElfError
from sglang_pve.fatbin import Target, targets

PTX, CODE = 1, 2
# nvcc 13.0, -gencode arch=compute_X,code=sm_X for 90, 90a, 120, 120a, 120f, and code=compute_120.
SEEN = {
    "sm_90": (CODE, 90, 0x8011),
    "sm_90a": (CODE, 90, 0x108011),
    "sm_120": (CODE, 120, 0x1000011),
    "sm_120a": (CODE, 120, 0x1108011),
    "sm_120f": (CODE, 120, 0x1200011),
    "compute_120": (PTX, 120, 0x8011),
}


def make_library(path: Path, images: Sequence[tuple[int, int, int]], gap: int = 8) -> Path:
    """A shared object whose section .nv_fatbin holds one container for each image, ``gap`` zeros apart."""
    code = b""
    for kind, number, flags in images:
        image = struct.pack("<HHIQIIHHIIIQ", kind, 0x101, 64, 24, 0, 0, 0, 0, number, 0, 0, flags).ljust(
            64, b"\0"
        ) + bytes(24)
        code += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(image)) + image + bytes(gap)
    names = b"\0.shstrtab\0.nv_fatbin\0"
    table = 64 + len(names) + len(code)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 56, 0, 64, 3, 1)
    )
    sections = [(0, 0, 0, 0), (1, 3, 64, len(names)), (11, 1, 64 + len(names), len(code))]
    entries = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 1, 0) for name, kind, at, size in sections
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + names + code + entries)
    return path


def test_each_target_is_named_as_nvcc_was_told(tmp_path: Path) -> None:
    library = make_library(tmp_path / "a.so", list(SEEN.values()))
    assert {target.name for target in targets(library)} == set(SEEN)


@pytest.mark.parametrize(
    ("name", "runs", "does_not"),
    [
        ("sm_90", [90], [80, 100, 120]),
        ("sm_90a", [90], [91, 100, 120]),
        ("sm_120", [120, 121], [90, 100, 103]),
        ("sm_120a", [120], [121, 100]),
        ("sm_120f", [120, 121], [100, 130]),
        ("compute_120", [120, 121, 130], [90, 100]),
    ],
)
def test_what_a_card_runs(tmp_path: Path, name: str, runs: list[int], does_not: list[int]) -> None:
    (target,) = targets(make_library(tmp_path / "a.so", [SEEN[name]]))
    assert [sm for sm in runs + does_not if target.runs_on(sm)] == runs


def test_ptx_of_one_gpu_runs_there_alone() -> None:
    assert not Target(90, "a", True).runs_on(120)
    assert not Target(100, "f", True).runs_on(120)


def test_files_without_device_code_have_no_target(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no library")
    assert targets(tmp_path / "text") == set()
    assert targets(make_library(tmp_path / "empty.so", [])) == set()
    assert targets(Path(sys.executable).resolve()) == set()


def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    whole = make_library(tmp_path / "a.so", [SEEN["sm_120"]]).read_bytes()
    faults = {
        "cut.so": whole[:-100],
        "kind.so": whole.replace(struct.pack("<HHI", CODE, 0x101, 64), struct.pack("<HHI", 9, 0x101, 64)),
    }
    faults["magic.so"] = whole.replace(struct.pack("<I", 0xBA55ED50), b"oops")
    for name, content in faults.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ElfError, match=name):
            targets(path)
