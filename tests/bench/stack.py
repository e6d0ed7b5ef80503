"""Install a stack as a play does, and compare with a bare `uv pip sync` of the same lock from the same wheelhouse.

Both begin without a cache, compile bytecode, and write to the same file system. What the play does beside uv counts:
it proves the hash of every wheel, reads every library, and imports the engine. Prints last:
install_s=... install_ratio_to_uv=... second_run_s=... disk_gib=...

usage: stack.py STACK WHEELHOUSE PYTHON
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "module_utils")]

from sglang_pve.stack import Stack, python_version  # noqa: E402
from sglang_pve.stack_install import install  # noqa: E402

from action_plugins.sglang_stack_info import read_stack  # noqa: E402

FIELDS = {"imports": "imports", "python": "pythons", "glibc_min": "glibc_min", "disk_gib": "disk_gib", "lane": "lane"}


def stack_of(name: str, python: str) -> Stack:
    data = read_stack(PROJECT / "stacks", name, python_version(python))
    more = {field: data[key] for key, field in FIELDS.items() if key in data}
    exceptions = data.get("cuda_exceptions", {})
    uv = data["uv"]
    return Stack(
        name, data["id"], data["lock"], data["engine"], uv["wheel"], uv["sha256"], cuda_exceptions=exceptions, **more
    )


def bare_uv(uv: Path, stack: Stack, wheelhouse: Path, work: Path, python: str) -> float:
    """Seconds that uv alone takes."""
    lock = work / "lock.txt"
    lock.write_text(stack.lock)
    offline = ["--offline", "--no-config", "--quiet", "--cache-dir", str(work / "cache")]
    begin = time.monotonic()
    subprocess.run([uv, "venv", *offline, "--python", python, work / "venv"], check=True)
    sync = [uv, "pip", "sync", *offline, "--python", work / "venv/bin/python", "--no-index"]
    sync += ["--find-links", wheelhouse, "--require-hashes", "--only-binary", ":all:"]
    sync += ["--compile-bytecode", "--link-mode", "hardlink", lock]
    subprocess.run(sync, check=True)
    return time.monotonic() - begin


def timed_install(stack: Stack, wheelhouse: Path, root: Path, python: str) -> float:
    begin = time.monotonic()
    install(stack, wheelhouse, root, python)
    return time.monotonic() - begin


def size_gib(root: Path) -> float:
    done = subprocess.run(["du", "--summarize", "--bytes", root], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) / 1024**3


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit((__doc__ or "").strip().splitlines()[-1])
    name, wheelhouse, python = sys.argv[1], Path(sys.argv[2]).absolute(), shutil.which(sys.argv[3])
    if python is None:
        sys.exit(f"no {sys.argv[3]} on this machine; set CONTAINER_PYTHON to one that {name} is locked for")
    stack = stack_of(name, python)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="bench-stack-") as work:
        root = Path(work) / "sglang/stacks"
        # Once unmeasured, so that the wheels are in the page cache for both.
        timed_install(stack, wheelhouse, root, python)
        shutil.rmtree(root)
        ours = timed_install(stack, wheelhouse, root, python)
        second = timed_install(stack, wheelhouse, root, python)
        disk = size_gib(root)
        uv = next(root.parent.glob("tools/uv-*/uv"))
        shutil.rmtree(root)
        bare = bare_uv(uv, stack, wheelhouse, Path(work), python)
    print(f"{name}, {python}: uv alone {bare:.1f} s")
    print(f"install_s={ours:.1f} install_ratio_to_uv={ours / bare:.2f} second_run_s={second:.3f} disk_gib={disk:.1f}")


if __name__ == "__main__":
    main()
