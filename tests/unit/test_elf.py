"""The NEEDED entries of binaries, and the verdict over a stack's libraries, on files made byte by byte."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sglang_pve.elf import ElfError, cuda_majors, judge, needed

ADDRESS = 0x10000


def make_elf(path: Path, names: Sequence[str], kind: int = 2) -> Path:
    """Write a shared object with these NEEDED entries: header, two program headers, dynamic section, strings."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    offsets, at = [], 1
    for name in names:
        offsets.append(at)
        at += len(name) + 1
    start = 64 + 2 * 56
    size = (len(names) + 3) * 16
    entries = [(1, offset) for offset in offsets] + [(5, ADDRESS + start + size), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    total = start + size + len(strings)
    header = b"\x7fELF" + bytes([kind, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, ADDRESS, ADDRESS, total, total, 4096)
    where = struct.pack("<IIQQQQQQ", 2, 6, start, ADDRESS + start, ADDRESS + start, size, size, 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + load + where + dynamic + strings)
    return path


def test_needed_entries_in_their_order(tmp_path: Path) -> None:
    names = ["libcudart.so.13", "libtorch.so", "libc.so.6"]
    assert needed(make_elf(tmp_path / "a.so", names)) == names
    assert needed(make_elf(tmp_path / "none.so", [])) == []


def test_a_real_binary_says_what_its_loader_says() -> None:
    real = Path(sys.executable).resolve()
    seen = subprocess.run(["ldd", real], capture_output=True, text=True, check=True).stdout
    assert "libc.so.6" in needed(real) and all(name in seen for name in needed(real))


def test_other_files_have_none(tmp_path: Path) -> None:
    script = tmp_path / "libc.so"
    script.write_text("/* GNU ld script */ GROUP ( /lib/libc.so.6 )")
    (tmp_path / "empty.so").write_bytes(b"")
    assert needed(script) == needed(tmp_path / "empty.so") == []


@pytest.mark.parametrize("keep", [5, 40, 100, 180, 250])
def test_a_library_that_is_cut_short_is_named(tmp_path: Path, keep: int) -> None:
    library = make_elf(tmp_path / "cut.so", ["libcudart.so.13", "libc.so.6"])
    library.write_bytes(library.read_bytes()[:keep])
    with pytest.raises(ElfError, match=r"cut\.so"):
        needed(library)


@pytest.mark.parametrize("byte", range(16, 64))
def test_no_damage_of_the_header_is_more_than_an_error(tmp_path: Path, byte: int) -> None:
    library = make_elf(tmp_path / "bent.so", ["libcudart.so.13"])
    content = bytearray(library.read_bytes())
    content[byte] ^= 0xFF
    library.write_bytes(content)
    try:
        assert needed(library) in ([], ["libcudart.so.13"])
    except ElfError as error:
        assert "bent.so" in str(error)


def test_a_foreign_binary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="another class"):
        needed(make_elf(tmp_path / "i386.so", ["libcudart.so.13"], kind=1))


def test_only_names_that_carry_cudas_own_number_count(tmp_path: Path) -> None:
    make_elf(tmp_path / "torch/lib/libtorch_cuda.so", ["libcublasLt.so.13", "libcusparse.so.12", "libcufft.so.12"])
    make_elf(tmp_path / "plain.cpython-311-x86_64-linux-gnu.so", ["libc.so.6", "libnuma.so.1"])
    make_elf(tmp_path / "kernel/ops.abi3.so", ["libcudart.so.12", "libnvrtc.so.13"])
    (tmp_path / "link.so").symlink_to("kernel/ops.abi3.so")
    assert cuda_majors(tmp_path) == {
        "kernel/ops.abi3.so": {12: "libcudart.so.12", 13: "libnvrtc.so.13"},
        "torch/lib/libtorch_cuda.so": {13: "libcublasLt.so.13"},
    }


def test_one_library_of_another_cuda_is_an_error_that_names_it(tmp_path: Path) -> None:
    make_elf(tmp_path / "torch/libtorch_cuda.so", ["libcudart.so.12"])
    make_elf(tmp_path / "sgl_kernel/common_ops.abi3.so", ["libcudart.so.13", "libcublas.so.13"])
    (finding,) = judge(tmp_path, 12, {})
    assert (finding.id, finding.level, finding.where) == ("cuda-mixed", "error", "sgl_kernel/common_ops.abi3.so")
    assert "libcudart.so.13" in finding.seen and "CUDA 12" in finding.expected
    assert [found.where for found in judge(tmp_path, 13, {})] == ["torch/libtorch_cuda.so"]


def test_an_exception_has_a_reason_and_a_use(tmp_path: Path) -> None:
    make_elf(tmp_path / "torch/libtorch_cuda.so", ["libcudart.so.13"])
    make_elf(tmp_path / "hook_cu12.abi3.so", ["libcudart.so.12"])
    assert judge(tmp_path, 13, {"hook_*.so": "a twin that is never loaded"}) == []
    found = judge(tmp_path, 13, {"hook_*.so": "a twin", "gone/*.so": "another"})
    assert [(finding.id, finding.level) for finding in found] == [("cuda-exception-unused", "warning")]
