"""The part of a stack's proof that its own Python runs, as the service user, in a server's environment.

``python -c TEXT CHECK ARGUMENTS``: CHECK is a key of CHECKS, ARGUMENTS a JSON object. Prints one JSON object on its
last line; what the engine prints comes before it. In it ``error`` is why the check failed, ``cannot`` why this
machine cannot show it. Only this text is sent, so it imports nothing of the project.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

Result = dict[str, Any]
NO_DRIVER: Result = {"cannot": "the loader finds no libcuda.so.1 of a driver"}
# bfloat16 keeps 8 bits: a product of up to 16 is off by a sixteenth at most.
TOLERANCE = 0.07
# To be free on a card before a second process goes there: a server that runs must not be the one that lacks memory.
ROOM_MIB = 2048


def driver() -> int | None:
    """What cuInit of the loader's own libcuda.so.1 gives: 0 with a driver and a card, None where there is no library.

    A library that is only there to link with (stubs/libcuda.so) does not give 0, so it never counts as a driver.
    """
    try:
        code: int = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        return None
    return code


def look(tools: list[str]) -> Result:
    """What the proof depends on: driver, programs on PATH, and what nvcc and the host compiler say of themselves."""
    home = os.environ.get("CUDA_HOME", "")
    cxx = os.environ.get("NVCC_CCBIN") or os.environ.get("CXX") or "c++"
    says = {name: _says([program, "--version"]) for name, program in {"nvcc": f"{home}/bin/nvcc", "cxx": cxx}.items()}
    release = re.search(r"\brelease (\d+\.\d+)", says["nvcc"])
    version = re.search(r"(\d+\.\d+(?:\.\d+)?)\s*$", says["cxx"].partition("\n")[0])
    return {
        "cuda": driver(),
        "tools": {name: shutil.which(name) or "" for name in tools},
        "path": os.environ["PATH"],
        "cuda_home": home,
        "nvcc": release.group(1) if release else "",
        "cxx": cxx,
        "cxx_version": version.group(1) if version else "",
        "says": says,
        "arch_list": os.environ.get("FLASHINFER_CUDA_ARCH_LIST", ""),
    }


def _says(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    return (done.stdout or done.stderr).strip()


def place(stack: str) -> Result:
    """Up to five paths of the stack that this user may write; there should be none."""
    found: list[str] = []
    for folder, _, names in os.walk(stack):
        found += [path for path in (folder, *(f"{folder}/{name}" for name in names)) if os.access(path, os.W_OK)]
        if len(found) >= 5:
            break
    return {"writable": found[:5]}


def packages() -> Result:
    return {"packages": {found.metadata["Name"]: found.version for found in metadata.distributions()}}


def imports(name: str) -> Result:
    try:
        importlib.import_module(name)
    except ImportError as exc:
        # Without a driver this library is what is missing; anything else is a fault with and without one.
        if driver() is None and "libcuda.so.1: cannot open shared object file" in str(exc):
            return NO_DRIVER
        raise
    uses_driver = "/libcuda.so" in Path("/proc/self/maps").read_text(encoding="utf-8")
    # What loads with a library to link with (stubs/libcuda.so) in the driver's place shows nothing.
    return NO_DRIVER if uses_driver and driver() != 0 else {}


def parse(argv: list[str]) -> Result:
    """Give the planned words to the engine's own parser, which may not complete a shortened option."""
    server_args = importlib.import_module("sglang.srt.server_args")
    parser = argparse.ArgumentParser(prog="sglang.launch_server", allow_abbrev=False)
    server_args.ServerArgs.add_cli_args(parser)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(argv)
    except SystemExit:
        return {"error": said.getvalue().strip().rpartition("error: ")[2]}
    return {}


def headers(names: list[str]) -> Result:
    """Let nvcc look for each header where the engine's kernels look."""
    home = os.environ["CUDA_HOME"]
    source = "".join(f"#if !__has_include(<{name}>)\nproof_lacks {name}\n#endif\n" for name in names)
    argv = [f"{home}/bin/nvcc", "-E", "-x", "cu", "-", f"-I{home}/include", f"-I{home}/include/cccl"]
    argv.append(f"-I{sysconfig.get_path('include')}")
    done = subprocess.run(argv, input=source, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return {"error": (done.stderr or done.stdout).strip()}
    return {"lacking": [line.split()[1] for line in done.stdout.splitlines() if line.startswith("proof_lacks ")]}


def flashinfer(function: str, sm: str) -> Result:
    """Compile and link one of flashinfer's kernels; it is not loaded, which would need a driver."""
    if driver() != 0:
        # What flashinfer would ask the driver for. A list that the servers get stays.
        os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", sm)
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)().build(verbose=False)
    return {}


def engine(kernel: dict[str, str], sm: str) -> Result:
    """Compile one of the engine's own kernels for the card's architecture, whatever card is here."""
    torch = importlib.import_module("torch")
    major, minor = (int(part) for part in sm.split("."))
    with importlib.import_module(kernel["arch"]).override_jit_cuda_arch(major, minor):
        getattr(importlib.import_module(kernel["module"]), kernel["build"])(torch.bfloat16)
    return {}


def gpu(kernel: dict[str, str], uuid: str) -> Result:
    """Launch the engine's kernel on one card and compare with what the CPU computes."""
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    code = driver()
    if code is None:
        return NO_DRIVER
    if code:
        return {"error": f"cuInit gives {code}"}
    free = _says(["nvidia-smi", f"--id={uuid}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"])
    if free.isdigit() and int(free) < ROOM_MIB:
        return {"cannot": f"{free} MiB are free: a server uses this card"}
    torch = importlib.import_module("torch")
    given = torch.linspace(-4, 4, 64 * 256).reshape(64, 256).bfloat16()
    expected = torch.nn.functional.silu(given[:, :128].float()) * given[:, 128:].float()
    launch = getattr(importlib.import_module(kernel["module"]), kernel["launch"])
    off = float((launch(given.cuda()).float().cpu() - expected).abs().max())
    return {} if off <= TOLERANCE else {"error": f"results are off by up to {off:g}"}


CHECKS = {
    "look": look,
    "place": place,
    "packages": packages,
    "import": imports,
    "parse": parse,
    "headers": headers,
    "flashinfer": flashinfer,
    "engine": engine,
    "gpu": gpu,
}


def main() -> None:
    try:
        result: Result = CHECKS[sys.argv[1]](**json.loads(sys.argv[2]))  # type: ignore[operator]
    except BaseException as exc:
        result = {"error": f"{type(exc).__name__}: {exc}", "trace": traceback.format_exc()[-4000:]}
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
