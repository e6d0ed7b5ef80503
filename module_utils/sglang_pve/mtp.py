"""The MTP head of a checkpoint: which tensors it should have and which it has. File names say nothing about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .findings import Finding
from .shard import Tensor

PREFIX = "mtp."
_SHARED = ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
)
_DENSE = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# A quantized head keeps a tensor's place under these names.
_PACKED = (".qweight", ".weight_packed")


@dataclass(frozen=True)
class Head:
    """``declared`` by config.json; ``tensors`` is their number, ``missing`` their names, ``bytes`` their size."""

    declared: bool
    tensors: int
    bytes: int
    complete: bool
    missing: list[str]
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("declared", "tensors", "bytes", "complete", "missing")}


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of config.json: ``text_config``, or all of it where the file is flat."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def some(names: Iterable[str]) -> str:
    """``7 (a, b, c, d and 3 more)``: how many, and enough names to find the others."""
    ordered = sorted(names)
    rest = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    return f"{len(ordered)} ({', '.join(ordered[:4])}{rest})"


def is_head(name: str) -> bool:
    return name.startswith(PREFIX)


def expected(config: dict[str, Any]) -> list[str]:
    """Names of a complete head's tensors, 15 for one layer. Source: SGLang 0.5.11, models/qwen3_5_mtp.py.

    A mixture of experts has other ``mlp`` tensors; of it only the rest is asked for.
    """
    parts = _LAYER if text_config(config).get("num_experts") else _LAYER + _DENSE
    stems = [*_SHARED, *(f"layers.{n}.{part}" for n in range(max(1, _layers(config))) for part in parts)]
    return [f"mtp.{stem}.weight" for stem in stems]


def describe(config: dict[str, Any], tensors: Mapping[str, Tensor], unseen: Collection[str]) -> Head:
    """The head among ``tensors``.

    ``unseen`` are tensors of shards that could not be read. These shards have their own finding, so the lack of their
    tensors is told in ``missing`` and not found a second time.
    """
    head = {name: tensor for name, tensor in tensors.items() if is_head(name)}
    declared = _layers(config) > 0
    wanted = expected(config)
    missing = [name for name in wanted if name not in head and not _packed(name, head)]
    return Head(
        declared,
        len(head),
        sum(tensor.bytes for tensor in head.values()),
        bool(head) and not missing,
        missing if declared or head else [],
        _judge(declared, bool(head), [name for name in missing if name not in unseen], len(wanted)),
    )


def _judge(declared: bool, present: bool, lost: list[str], wanted: int) -> list[Finding]:
    cure = "Take a variant that kept the head, or serve without speculative decoding."
    if present and lost:
        seen = f"an MTP head without {some(lost)} tensors; the engine would draft with random weights"
        return [Finding("mtp-incomplete", "error", seen, f"all {wanted} mtp.* tensors", cure)]
    if declared and lost:
        seen = "config.json declares an MTP head and no shard that is read holds mtp.* tensors"
        return [Finding("mtp-declared-but-absent", "warning", seen, f"{wanted} mtp.* tensors", cure)]
    if present and not declared:
        seen = "mtp.* tensors, and config.json has no mtp_num_hidden_layers"
        return [Finding("mtp-undeclared", "note", seen, "a config.json that names its MTP head", "Nothing to do.")]
    return []


def _layers(config: dict[str, Any]) -> int:
    # The engine builds one layer whatever the number; the bound keeps a wild one from growing a wild list.
    layers = text_config(config).get("mtp_num_hidden_layers")
    return min(max(layers, 0), 64) if type(layers) is int else 0


def _packed(name: str, head: Mapping[str, Tensor]) -> bool:
    return any(name[: -len(".weight")] + packed in head for packed in _PACKED)
