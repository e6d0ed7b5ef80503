"""Whether tensors are the MTP head that a config.json describes: their names, shapes and types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .hold import RefusedError
from .mtp import expected, some, text_config
from .shard import Tensor

# What the engine loads into a layer that is not quantized; it converts between them.
FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_LAYER = re.compile(r"^mtp\.layers\.\d+\.")
_PREFIX = re.compile(r"^mtp\.(?:layers\.\d+\.)?")
# All experts of a layer in one tensor; these two names have no ".weight".
_FUSED = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def check(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """Raise RefusedError unless ``tensors`` are the whole head of a model with this config.json.

    Returns what is worth a warning: a type that the engine has to convert.
    """
    wanted = shapes(config, tensors)
    wrong = [
        *(f"{name} is missing" for name in wanted if name not in tensors),
        *(f"{name} is none of its tensors" for name in tensors if name not in wanted),
    ]
    for name in wanted.keys() & tensors.keys():
        tensor = tensors[name]
        if tensor.shape != wanted[name]:
            wrong.append(f"{name} has shape {list(tensor.shape)}, expected {list(wanted[name])}")
        if tensor.dtype not in FLOATS:
            wrong.append(f"{name} is quantized ({tensor.dtype}), expected one of {', '.join(FLOATS)}")
    if wrong:
        raise RefusedError(
            f"the source is not the MTP head that config.json describes: {some(wrong)}. "
            "Take the head of the unquantized model that this checkpoint was made from"
        )
    declared = dtype(config)
    odd = sorted({tensor.dtype for tensor in tensors.values() if FLOATS[tensor.dtype] != declared})
    return [f"the head is {', '.join(odd)} and config.json says {declared}: the engine converts it"] if odd else []


def dtype(config: dict[str, Any]) -> str | None:
    """The type that config.json names for weights, such as ``bfloat16``; None when it names none."""
    for part in (text_config(config), config):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return str(part[key]).rpartition(".")[2]
    return None


def shapes(config: dict[str, Any], names: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the head, by name. Source: SGLang 0.5.11, models/qwen3_5.py and qwen3_5_mtp.py.

    A mixture of experts may have its experts in one tensor or in many; ``names`` decide which of the two is asked for.
    """
    text = text_config(config)
    hidden, heads = _size(text, "hidden_size"), _size(text, "num_attention_heads")
    head_dim = text.get("head_dim") or hidden // heads
    keys = _size(text, "num_key_value_heads") * head_dim
    # The output gate comes out of the same projection.
    queries = heads * head_dim * (2 if text.get("attn_output_gate", True) else 1)
    parts: dict[str, tuple[int, ...]] = {
        "fc": (hidden, 2 * hidden),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
    }
    wanted = expected(config)
    if text.get("num_experts"):
        experts = _experts(text, hidden, any(".experts.0." in name for name in names))
        parts |= experts
        layers = {match[0] for match in map(_LAYER.match, wanted) if match}
        wanted += [layer + part + ("" if part in _FUSED else ".weight") for layer in sorted(layers) for part in experts]
    else:
        inner = _size(text, "intermediate_size")
        parts |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    # What is left are norms over the hidden size.
    return {name: parts.get(_part(name), (hidden,)) for name in wanted}


def _part(name: str) -> str:
    return _PREFIX.sub("", name).removesuffix(".weight")


def _experts(text: Mapping[str, Any], hidden: int, single: bool) -> dict[str, tuple[int, ...]]:
    count, inner = _size(text, "num_experts", 4096), _size(text, "moe_intermediate_size")
    shared = _size(text, "shared_expert_intermediate_size")
    parts: dict[str, tuple[int, ...]] = {
        "mlp.gate": (count, hidden),
        "mlp.shared_expert_gate": (1, hidden),
        "mlp.shared_expert.gate_proj": (shared, hidden),
        "mlp.shared_expert.up_proj": (shared, hidden),
        "mlp.shared_expert.down_proj": (hidden, shared),
    }
    if not single:
        return {**parts, _FUSED[0]: (count, 2 * inner, hidden), _FUSED[1]: (count, hidden, inner)}
    for number in range(count):
        parts |= {f"mlp.experts.{number}.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        parts[f"mlp.experts.{number}.down_proj"] = (hidden, inner)
    return parts


def _size(text: Mapping[str, Any], key: str, limit: int = 1 << 24) -> int:
    value = text.get(key)
    # A wild number would grow a wild list.
    if type(value) is not int or not 0 < value <= limit:
        raise RefusedError(f"config.json has {key} {value!r}, expected a number: the head's shapes follow from it")
    return value
