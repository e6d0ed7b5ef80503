"""Real kernels of an installed stack of SGLang 0.5.11, compiled for SM 12.0 with the CUDA_HOME that is made for it.

INSTALLED names the stack's directory; it is only read. Run by `make test-kernels`, not by CI: 150 s on 2 cores.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from sglang_pve.cuda_home import design, newest_gcc
from sglang_pve.cuda_home_files import manifest_of, write
from sglang_pve.elf import needed
from sglang_pve.host_compiler import Compiler, choose, find

ROOT = Path(__file__).resolve().parents[2]
KNOWN = yaml.safe_load((ROOT / "stacks/sglang-0.5.11-cu130/stack.yml").read_text())["compilers"]


def make_home(home: Path, compiler: Compiler | None = None) -> Path:
    """The overlay of the stack, outside it, with the compiler that would be taken or the one given."""
    packages = next(Path(os.environ["INSTALLED"]).glob("venv/lib/python3*/site-packages"))
    overlay = design(packages, Path("/nonexistent"))
    assert overlay.findings == []
    chosen = choose(find(), {**KNOWN, "package": ""}, newest_gcc(overlay))
    taken = compiler or chosen.compiler
    assert taken is not None, chosen.findings
    header = overlay.target("include/cuda.h")
    assert header is not None
    write(home, manifest_of(overlay, taken, chosen.why), header)
    return home


def build(home: Path, *kernels: str) -> subprocess.CompletedProcess[str]:
    """Compile in the environment of a start script (templates/release/run.j2), with caches beside ``home``."""
    venv, cache = Path(os.environ["INSTALLED"]) / "venv", home.parent
    environment = {
        "PATH": f"{venv}/bin:{home}/bin:{home}/host:/usr/bin:/bin",
        "CUDA_HOME": str(home),
        "CC": f"{home}/host/gcc",
        "CXX": f"{home}/host/g++",
        "NVCC_CCBIN": f"{home}/host/g++",
        "HOME": str(cache),
        "FLASHINFER_WORKSPACE_BASE": str(cache),
        "FLASHINFER_CUDA_ARCH_LIST": "12.0f",
        "TVM_FFI_CACHE_DIR": str(cache / "tvm-ffi"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [str(venv / "bin/python"), str(ROOT / "tests/kernels/build.py"), *kernels]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    print(*(line for line in done.stdout.splitlines() if line.endswith(" s")), sep="\n")
    return done


def test_kernels_of_engine_and_flashinfer_compile(tmp_path: Path) -> None:
    done = build(make_home(tmp_path / "cuda"), "activation", "page", "sampling")
    assert done.returncode == 0, done.stdout + done.stderr
    made = {
        path.stem.partition("_bf16")[0]: needed(path) for path in tmp_path.rglob("*.so") if "cuda" not in path.parts
    }
    assert made.keys() == {"sgl_kernel_jit_activation", "page", "sampling"}
    assert all("libcudart.so.13" in libraries for libraries in made.values())


def test_a_compiler_that_is_known_bad_does_not_build_the_engines_kernel(tmp_path: Path) -> None:
    bad = [one for one in find() if one.version.rpartition(".")[0] in KNOWN["bad"]]
    if not bad:
        pytest.skip(f"this machine has none of g++ {', '.join(KNOWN['bad'])}")
    done = build(make_home(tmp_path / "cuda", bad[0]), "activation")
    assert done.returncode != 0 and "select_kernel" in done.stdout + done.stderr
