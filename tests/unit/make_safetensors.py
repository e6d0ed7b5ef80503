"""Real safetensors files and whole small checkpoints for the tests, written without the safetensors library."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from sglang_pve.shard import BITS
from sglang_pve.staged import JOURNAL, MARKER

MTP_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")),
)
MTP = (
    "mtp.fc.weight",
    "mtp.norm.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.pre_fc_norm_hidden.weight",
    *(f"mtp.layers.0.{part}.weight" for part in MTP_LAYER),
)
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {"max_position_embeddings": 262144, "mtp_num_hidden_layers": 1},
    "vision_config": {"depth": 2},
}


def size_of(dtype: str, shape: list[int]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements * BITS[dtype] // 8


def join(header: bytes | dict[str, Any], data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def header_of(tensors: dict[str, tuple[str, list[int]]]) -> tuple[dict[str, Any], int]:
    """The header for tensors laid down one after the other, and the bytes of data that it names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return header, end


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header, length = header_of(tensors)
    # Bytes that differ by file and place, so that a mixed-up copy shows.
    pattern = (path.name * (1 + 65536 // len(path.name))).encode()[:65521]
    path.write_bytes(join(header, (pattern * (1 + length // len(pattern)))[:length]))


def write_index(directory: Path, shards: dict[str, dict[str, tuple[str, list[int]]]]) -> None:
    total = sum(size_of(*tensor) for tensors in shards.values() for tensor in tensors.values())
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def make_checkpoint(
    directory: Path, *, shards: int = 3, per_shard: int = 4, width: int = 16, mtp: bool = True
) -> dict[str, dict[str, tuple[str, list[int]]]]:
    """A complete checkpoint; each tensor is BF16 of ``width`` x ``width``. The MTP head lies in the last shard.

    Returns what each shard holds, so that a test can change it and write the shard or the index again.
    """
    directory.mkdir(parents=True, exist_ok=True)
    layout: dict[str, dict[str, tuple[str, list[int]]]] = {}
    for number in range(1, shards + 1):
        names = [f"model.layers.{number}.{i}.weight" for i in range(per_shard)]
        if mtp and number == shards:
            names += MTP
        layout[f"model-{number:05}-of-{shards:05}.safetensors"] = {name: ("BF16", [width, width]) for name in names}
    for shard, tensors in layout.items():
        write_safetensors(directory / shard, tensors)
    write_index(directory, layout)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (directory / "generation_config.json").write_text("{}")
    (directory / "preprocessor_config.json").write_text("{}")
    return layout


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its content, but for what staging keeps for itself."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in (MARKER, JOURNAL)
    }
