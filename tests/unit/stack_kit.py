"""Tiny wheels, and a stack made of them, for the tests of the stack install."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from sglang_pve.lockfile import stack_id
from sglang_pve.stack import Stack, python_version

PYTHON = "/usr/bin/python3"
REPOSITORY = Path(__file__).resolve().parents[2]
UV_VERSION = "9.9.9"
UV_WHEEL = f"uv-{UV_VERSION}-py3-none-any.whl"
INSTALL = """
import json, sys
from pathlib import Path
from sglang_pve.stack import Stack
from sglang_pve.stack_install import install
stack, wheelhouse, root, python = json.loads(sys.argv[1])
print(install(Stack(**stack), Path(wheelhouse), Path(root), python))
"""


def real_uv() -> Path:
    found = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert found, "the project's environment has no uv"
    return Path(found)


def metadata(name: str, version: str, tag: str = "py3-none-any", more: str = "") -> dict[str, str]:
    """The files that make an archive a wheel, but for its RECORD."""
    info = f"{name}-{version}.dist-info"
    return {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    source: str = "",
    tag: str = "py3-none-any",
    more: str = "",
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a wheel that holds one module of the package's name; ``more`` are lines of its METADATA."""
    path = directory / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    texts = {f"{name}.py": source, **metadata(name, version, tag, more)}
    held = {**{file: text.encode() for file, text in texts.items()}, **(files or {})}
    record = "".join(map(_row, held, held.values())) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in {**held, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(file, content)
    return path


def _row(file: str, content: bytes) -> str:
    """A file's line in a RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{file},sha256={digest},{len(content)}\n"


def make_uv_wheel(directory: Path, program: bytes | None = None) -> Path:
    """Write a wheel with the real uv, or with another program in its place."""
    path = directory / UV_WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"uv-{UV_VERSION}.data/scripts/uv", program or real_uv().read_bytes())
        for file, text in metadata("uv", UV_VERSION).items():
            archive.writestr(file, text)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lock_of(*wheels: Path) -> str:
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{sha256(wheel)}\n")
    return "".join(lines)


def make_stack(wheelhouse: Path, uv_wheel: Path, source: str = "") -> Stack:
    """A stack of an engine and a helper package of this source, their wheels in ``wheelhouse``."""
    wheelhouse.mkdir(exist_ok=True)
    if uv_wheel.parent != wheelhouse:
        (wheelhouse / UV_WHEEL).hardlink_to(uv_wheel)
    engine = make_wheel(wheelhouse, "sglang", "0.5.11", "import helper\nprint('noise')\n")
    lock = lock_of(engine, make_wheel(wheelhouse, "helper", "1.2", source))
    return Stack(
        name="tiny",
        id=stack_id(lock, python_version(PYTHON), UV_VERSION),
        lock=lock,
        engine="0.5.11",
        uv_wheel=UV_WHEEL,
        uv_sha256=sha256(uv_wheel),
        imports=["sglang"],
    )


def start_install(stack: Stack, wheelhouse: Path, root: Path) -> subprocess.Popen[str]:
    """Start an install in a process of its own; it prints True or False, whether it changed anything."""
    arguments = json.dumps([dataclasses.asdict(stack), str(wheelhouse), str(root), PYTHON])
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, arguments],
        env={"PYTHONPATH": str(REPOSITORY / "module_utils"), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
