"""Checkpoints with and without a head, for the tests of attaching: the lab's own, with the model's tensor names."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import safetensors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "lab/checkpoint"))

import make_checkpoint as lab  # noqa: E402

HEAD_NAMES = sorted(lab.draft_head())
# As the library spells the types.
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn"}
Tensor = tuple[str, list[int], bytes]


def read(file: Path) -> dict[str, Tensor]:
    """Every tensor of a file as the safetensors library reads it: type, shape and data."""
    found = safetensors.deserialize(file.read_bytes())
    return {name: (entry["dtype"], list(entry["shape"]), bytes(entry["data"])) for name, entry in found}


def head_of(directory: Path) -> dict[str, Tensor]:
    """The head of a checkpoint, read by the library from the files that its index names."""
    places = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    files = {shard for name, shard in places.items() if name.startswith("mtp.")}
    tensors = {name: tensor for shard in files for name, tensor in read(directory / shard).items()}
    return {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}


def write(file: Path, tensors: dict[str, Tensor]) -> Path:
    """Write a file with the safetensors library."""
    buffers = {name: ctypes.create_string_buffer(data, len(data)) for name, (_, _, data) in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(
            dtype=DTYPES[dtype], shape=shape, data_ptr=ctypes.addressof(buffers[name]), data_len=len(data)
        )
        for name, (dtype, shape, data) in tensors.items()
    }
    file.write_bytes(safetensors.serialize(specs, {"format": "pt"}))
    return file


def edit(file: Path, change: Any) -> None:
    """Change a JSON file in place: ``change`` gets its content."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a directory, so that two looks are equal only when nothing was touched."""
    return {
        str(path.relative_to(directory)): (path.lstat().st_ino, path.lstat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
