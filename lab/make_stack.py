"""Make a lab's wheelhouse and stack: the stand-in engine's wheel, uv's wheel, and a lock with their hashes.

Writes LAB_DIR/wheelhouse/ and LAB_DIR/stacks/sglang-0.5.11-lab/, and prints each file that changed, so that nothing is
printed when all of it was there already. uv's version and hashes come from the project's own lock; its wheel is kept in
CACHE_DIR for the next lab.

usage: make_stack.py LAB_DIR CACHE_DIR
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
STACK = "sglang-0.5.11-lab"
STACK_YML = """\
# The lab's stack is one wheel, the stand-in engine.
schema: 1
engine: "0.5.11"
flags: sglang-0.5.11
lane: cu130
python: ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]
driver_min: 580
disk_gib: 0.5
imports: [sglang]
uv:
  wheel: {wheel}
  sha256: {sha256}
"""


def put(path: Path, content: bytes) -> None:
    """Write a file where it differs, under another name first, and print its path."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)
    print(path)


def uv_wheel(cache: Path) -> Path:
    """The wheel of the uv that the project's lock names, from the cache or else from the package index."""
    entry = re.search(r"(?m)^uv==(\S+)(.*\\\n)*.*", (PROJECT / "requirements/dev.txt").read_text())
    if entry is None:
        sys.exit(
            "requirements/dev.txt has no entry uv==VERSION; expected the project's lock, as `make lock-dev` writes it."
        )
    folder = cache / f"uv-{entry[1]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            requirement = Path(work) / "uv.txt"
            requirement.write_text(entry[0] + "\n")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            command += ["--only-binary", ":all:", "--dest", f"{work}/wheels", "--requirement", str(requirement)]
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0:
                sys.exit(f"pip could not download uv {entry[1]} (its words are above); the lab needs its wheel once.")
            (Path(work) / "wheels").rename(folder)
    return next(folder.glob("uv-*.whl"))


def main() -> None:
    lab, cache = Path(sys.argv[1]), Path(sys.argv[2])
    builder = PROJECT / "lab/engine/build_wheel.py"
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, builder, work], check=True, stdout=subprocess.DEVNULL)
        engine = next(Path(work).glob("*.whl"))
        wheels = {path.name: path.read_bytes() for path in (engine, uv_wheel(cache))}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in wheels.items()}
    for name, content in wheels.items():
        put(lab / "wheelhouse" / name, content)
    uv = next(name for name in wheels if name.startswith("uv-"))
    put(lab / "stacks" / STACK / "lock.txt", f"sglang==0.5.11 --hash=sha256:{digests[engine.name]}\n".encode())
    put(lab / "stacks" / STACK / "stack.yml", STACK_YML.format(wheel=uv, sha256=digests[uv]).encode())


if __name__ == "__main__":
    main()
