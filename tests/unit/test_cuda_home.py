"""The CUDA_HOME of a stack: what it leads to, what it refuses, and that it takes away what it made and no more."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_pve import cuda_home_files
from sglang_pve.cuda_home import Overlay, design, newest_gcc
from sglang_pve.cuda_home_files import CudaHomeError, is_made, listing, manifest_of, read_manifest, remove, write
from sglang_pve.elf import needed
from sglang_pve.host_compiler import Compiler, find

from tests.unit import cuda_kit

pytestmark = pytest.mark.skipif(not find(), reason="this machine has no g++, with which the stub is linked")
COMPILER = Compiler("/usr/bin/gcc", "/usr/bin/g++", "11.3.0")
NOWHERE = Path("/nonexistent/cuda")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    return cuda_kit.installed(tmp_path / "stack")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "stack/cuda"


def make(home: Path, overlay: Overlay) -> dict[str, Any]:
    assert overlay.findings == []
    manifest = manifest_of(overlay, COMPILER, "known good")
    write(home, manifest, overlay.target("include/cuda.h") or NOWHERE)
    return manifest


def seen(overlay: Overlay) -> list[tuple[str, str]]:
    return [(finding.id, finding.level) for finding in overlay.findings]


def tree(root: Path) -> dict[str, str]:
    """Every file and link below ``root``, and what it holds or leads to."""
    paths = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    return {str(p.relative_to(root)): str(p.readlink()) if p.is_symlink() else p.read_bytes().hex() for p in paths}


def test_packages_alone_make_a_whole_toolkit(packages: Path, home: Path) -> None:
    cuda_kit.pip_13(packages)
    overlay = design(packages, NOWHERE)
    make(home, overlay)
    assert (overlay.nvcc, overlay.cccl, newest_gcc(overlay)) == ("13.0", "3.0.1", 14)
    assert "release 13.0" in subprocess.run([home / "bin/nvcc"], capture_output=True, text=True, check=True).stdout
    for path in ("include/cuda_runtime.h", "include/curand.h", "include/cccl/cub/version.cuh", "include/nv/target"):
        assert (home / path).is_file() and (home / "targets/x86_64-linux" / path).is_file()
    for path in ("nvvm/bin/cicc", "lib64/libcudart.so", "lib/libcurand.so", "targets/x86_64-linux/lib/libcudart.so.13"):
        assert (home / path).is_file()
    assert (home / "host/g++").resolve() == Path("/usr/bin/g++").resolve()
    assert not (home / "lib64/a.cmake").exists() and not (home / "include/cub").exists()


def test_kernels_link_against_the_drivers_name(packages: Path, home: Path, tmp_path: Path) -> None:
    cuda_kit.pip_13(packages)
    make(home, design(packages, NOWHERE))
    source, made = tmp_path / "kernel.c", tmp_path / "kernel.so"
    source.write_text("int cuTensorMapEncodeTiled(int); int launch(void) { return cuTensorMapEncodeTiled(1); }")
    argv = [home / "host/gcc", "-shared", "-fPIC", "-Wl,--as-needed", "-Wl,--no-undefined", "-o", made, source]
    subprocess.run([*argv, f"-L{home}/lib64/stubs", "-lcuda", "-lc"], check=True)
    assert "libcuda.so.1" in needed(made)


@pytest.mark.parametrize(("version", "own"), [("12.8", "2.7.0"), ("12.9", "2.8.2"), ("13.0", "3.0.1")])
def test_a_system_toolkit_is_taken_as_it_is(packages: Path, home: Path, tmp_path: Path, version: str, own: str) -> None:
    toolkit = cuda_kit.toolkit(tmp_path / "toolkit", version, own)
    before = tree(toolkit)
    overlay = design(packages, toolkit)
    make(home, overlay)
    assert (overlay.nvcc, overlay.cccl) == (version, own)
    assert (home / "lib64/stubs/libcuda.so").read_text() == "the toolkit's"
    assert tree(toolkit) == before and read_manifest(home) is not None
    remove(home)
    assert tree(toolkit) == before and not home.exists()


@pytest.mark.parametrize(
    ("version", "own", "other", "taken"),
    [
        ("12.8", "2.7.0", "3.0.1", "2.7.0"),
        ("12.8", "3.0.1", "2.8.2", "2.8.2"),
        ("12.8", "3.0.1", "3.0.1", None),
        ("12.9", "2.7.0", "2.8.2", "2.8.2"),
        ("12.9", "2.7.0", "3.0.1", "3.0.1"),
        ("12.9", "2.7.0", "2.7.0", None),
        ("13.0", "2.7.0", "3.0.1", "3.0.1"),
    ],
)
def test_cccl_goes_with_nvcc(
    packages: Path, tmp_path: Path, version: str, own: str, other: str, taken: str | None
) -> None:
    toolkit = cuda_kit.toolkit(tmp_path / "toolkit", version, own)
    cuda_kit.package(packages, "nvidia_cuda_cccl", "cuda_cccl", cuda_kit.cccl("include", other))
    overlay = design(packages, toolkit)
    if taken is None:
        assert seen(overlay) == [("cccl-unfit", "error")] and f"CCCL {own} in" in overlay.findings[0].seen
        return
    place = "include/cccl" if version == "13.0" else "include"
    for name in (f"{place}/cuda/ptx", f"{place}/thrust/version.h", "include/nv/target"):
        target = overlay.target(name)
        assert target is not None and target.read_text() == taken
    assert overlay.findings == []


def test_packages_fill_what_a_toolkit_lacks(packages: Path, home: Path, tmp_path: Path) -> None:
    toolkit = cuda_kit.toolkit(tmp_path / "toolkit", "12.9", "2.8.2")
    for path in ("include/curand.h", "include/curand_kernel.h", "lib64/stubs/libcuda.so"):
        (toolkit / path).unlink()
    cuda_kit.pip_12(packages)
    overlay = design(packages, toolkit)
    make(home, overlay)
    assert (home / "include/curand.h").resolve().is_relative_to(packages / "nvidia/curand")
    assert (home / "include/cuda_runtime.h").resolve().is_relative_to(toolkit)
    # Both have the directory, so each header is a link of its own.
    assert not (home / "include/crt").is_symlink() and (home / "include/crt/host_config.h").is_symlink()
    assert not (home / "include/__init__.py").exists()


def test_of_two_contents_the_toolkits_is_taken_and_said(packages: Path, tmp_path: Path) -> None:
    toolkit = cuda_kit.toolkit(tmp_path / "toolkit", "12.9", "2.8.2")
    cuda_kit.pip_12(packages)
    cuda_kit.put(packages / "nvidia/curand", {"include/curand.h": "another"})
    overlay = design(packages, toolkit)
    assert seen(overlay) == [("cuda-header-conflict", "warning")]
    assert "curand.h with different contents" in overlay.findings[0].seen
    assert overlay.target("include/curand.h") == toolkit / "include/curand.h"


def test_two_packages_that_differ_are_an_error(packages: Path, tmp_path: Path) -> None:
    toolkit = cuda_kit.toolkit(tmp_path / "toolkit", "12.9", "2.8.2")
    for name in ("one", "two"):
        cuda_kit.package(packages, f"nvidia_{name}", name, {"include/deep/same.h": "same", "include/deep/x.h": name})
    overlay = design(packages, toolkit)
    assert seen(overlay) == [("cuda-header-conflict", "error")]
    assert overlay.findings[0].seen.startswith("deep/x.h with")
    assert "nvidia/one/include and" in overlay.findings[0].where


def test_a_header_that_another_package_has_overwritten_is_found(packages: Path) -> None:
    cuda_kit.pip_13(packages)
    assert design(packages, NOWHERE).findings == []
    cuda_kit.package(packages, "nvidia_other", "cu13", {"include/curand.h": "another"})
    overlay = design(packages, NOWHERE)
    assert seen(overlay) == [("cuda-header-conflict", "error")]
    assert overlay.findings[0].where == "nvidia_curand-1.0 and nvidia_other-1.0"


def test_a_missing_header_names_the_package_that_brings_it(packages: Path, tmp_path: Path) -> None:
    cuda_kit.pip_13(packages)
    (packages / "nvidia/cu13/include/curand.h").unlink()
    overlay = design(packages, cuda_kit.toolkit(tmp_path / "toolkit", "13.0", "3.0.1"))
    assert seen(overlay) == [("cuda-home-lacks", "error")]
    assert overlay.findings[0].seen == "no include/curand.h" and "Add nvidia-curand" in overlay.findings[0].cure
    toolkit = cuda_kit.toolkit(tmp_path / "old", "12.9", "2.8.2")
    (toolkit / "nvvm/bin/cicc").unlink()
    shutil.rmtree(packages / "nvidia")
    overlay = design(packages, toolkit)
    assert seen(overlay) == [("cuda-home-lacks", "error")] and "cuda-toolkit-12-9" in overlay.findings[0].cure


def test_headers_of_another_release_and_no_nvcc_are_errors(packages: Path, tmp_path: Path) -> None:
    assert seen(design(packages, NOWHERE)) == [("nvcc-missing", "error")]
    toolkit = cuda_kit.toolkit(tmp_path / "toolkit", "12.9", "2.8.2")
    cuda_kit.put(toolkit, cuda_kit.runtime("12.8"))
    overlay = design(packages, toolkit)
    assert seen(overlay) == [("cuda-release-differs", "error")]
    assert overlay.findings[0].seen == "headers of CUDA 12.8"


def test_the_second_time_nothing_is_done_and_a_change_changes_only_what_differs(packages: Path, home: Path) -> None:
    cuda_kit.pip_13(packages)
    manifest = make(home, design(packages, NOWHERE))
    assert is_made(home, manifest)
    kept = (home / "include/cuda.h").lstat().st_ino
    (packages / "nvidia/cu13/include/curand_uniform.h").write_text("new")
    (packages / "nvidia/cu13/bin/nvcc.profile").unlink()
    overlay = design(packages, NOWHERE)
    later = manifest_of(overlay, Compiler("/usr/bin/gcc-11", "/usr/bin/g++-11", "11.4.0"), "")
    assert not is_made(home, later)
    write(home, later, overlay.target("include/cuda.h") or NOWHERE)
    assert is_made(home, later) and (home / "include/cuda.h").lstat().st_ino == kept
    assert (home / "include/curand_uniform.h").read_text() == "new"
    assert not (home / "bin/nvcc.profile").is_symlink()
    assert str((home / "host/cc").readlink()) == "/usr/bin/gcc-11"
    assert "g++-11 11.4.0" in listing(later) and "g++ 11.3.0" in listing(manifest)


@pytest.mark.parametrize("path", ["include/curand.h", "lib64", "lib64/stubs/libcuda.so"])
def test_what_is_not_ours_is_never_replaced(packages: Path, home: Path, path: str) -> None:
    cuda_kit.pip_13(packages)
    cuda_kit.put(home, {path: "somebody's"})
    before = tree(home)
    with pytest.raises(CudaHomeError, match=f"{path} is there and was not made by this module"):
        make(home, design(packages, NOWHERE))
    assert tree(home) == before


def test_removal_takes_what_was_made_and_no_more(packages: Path, home: Path) -> None:
    assert not remove(home)
    cuda_kit.pip_13(packages)
    before = tree(packages)
    make(home, design(packages, NOWHERE))
    cuda_kit.put(home, {"include/mine.h": "mine"})
    (home / "include/curand.h").unlink()
    (home / "include/curand.h").symlink_to("/mine/too.h")
    (home / "lib64/empty").mkdir()
    assert remove(home, dry_run=True) and read_manifest(home) is not None
    assert remove(home)
    assert tree(home) == {"include/mine.h": b"mine".hex(), "include/curand.h": "/mine/too.h"}
    assert (home / "lib64/empty").is_dir() and tree(packages) == before


KILLED = """
import json, os, signal, sys
from pathlib import Path
from sglang_pve import cuda_home_files
home, manifest, header, after = Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
links = 0
real = Path.symlink_to
def link(path, target):
    global links
    links += 1
    if links > after:
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, target)
Path.symlink_to = link
cuda_home_files.write(home, manifest, header)
"""


@pytest.mark.parametrize("after", [0, 7])
def test_a_killed_run_is_completed_or_taken_away(packages: Path, home: Path, after: int) -> None:
    cuda_kit.pip_13(packages)
    overlay = design(packages, NOWHERE)
    manifest = manifest_of(overlay, COMPILER, "")
    header = overlay.target("include/cuda.h") or NOWHERE
    argv = [sys.executable, "-c", KILLED, str(home), json.dumps(manifest), str(header), str(after)]
    environment = {**os.environ, "PYTHONPATH": str(Path(cuda_home_files.__file__).parents[1])}
    done = subprocess.run(argv, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL and not is_made(home, manifest)
    if after:
        write(home, manifest, header)
        assert is_made(home, manifest)
    remove(home)
    assert not home.exists()


def test_a_manifest_that_is_damaged_is_named(packages: Path, home: Path) -> None:
    for text in ("{", '{"schema": 9}', "[]"):
        cuda_kit.put(home, {"manifest.json": text})
        with pytest.raises(CudaHomeError, match=r"manifest\.json"):
            remove(home)
