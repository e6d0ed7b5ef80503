"""Build the wheel of the stand-in engine: standard library only, no network, the same bytes every time.

usage: build_wheel.py OUTDIR [--flags FILE]
"""

import argparse
import base64
import hashlib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = HERE.parent.parent / "stacks/flags/sglang-0.5.11.tsv"
NAME = "sglang-0.5.11-py3-none-any.whl"
_INFO = "sglang-0.5.11.dist-info"
_METADATA = """\
Metadata-Version: 2.1
Name: sglang
Version: 0.5.11
Summary: Stand-in for SGLang 0.5.11 in a lab without GPUs; not the engine
Requires-Python: >=3.9
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: sglang-pve-lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\nsglang = sglang.cli:main\n"


def members(flags):
    """Every file of the wheel in order, by its name in it, RECORD last."""
    sources = sorted((HERE / "sglang").rglob("*.py"))
    files = {str(file.relative_to(HERE)): file.read_bytes() for file in sources}
    files["sglang/flags.tsv"] = Path(flags).read_bytes()
    files[f"{_INFO}/METADATA"] = _METADATA.encode()
    files[f"{_INFO}/WHEEL"] = _WHEEL.encode()
    files[f"{_INFO}/entry_points.txt"] = _ENTRY_POINTS.encode()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{_INFO}/RECORD"] = (record + f"{_INFO}/RECORD,,\n").encode()
    return files


def build(folder, flags=FLAGS):
    """Write the wheel into a folder. Returns its path and the SHA-256 of its bytes."""
    path = Path(folder) / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    # Stored, not compressed: what a compressor makes depends on its version.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as wheel:
        for name, data in members(flags).items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            wheel.writestr(entry, data)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def main():
    """Build from the command line."""
    parser = argparse.ArgumentParser(description="Build the wheel of the stand-in engine.")
    parser.add_argument("outdir", help="folder that the wheel is written to")
    parser.add_argument("--flags", default=FLAGS, help="table of the engine's flags")
    options = parser.parse_args()
    path, digest = build(options.outdir, options.flags)
    print(f"{path.name} {digest}")


if __name__ == "__main__":
    main()
