"""How each quantization format is told to leave the MTP head as it is.

The engine (SGLang 0.5.11) names the head's modules ``mtp.layers.0...`` (models/qwen3_5_mtp.py) and fuses q, k, v and
gate, up into ``qkv_proj`` and ``gate_up_proj``, and does not tell the draft's quantizer what was fused. Names as they
stand in the checkpoint, such as ``mtp.layers.0.self_attn.q_proj``, then match in some formats and not in others. So
each format gets one entry, in its own way of matching, for the whole head. Sources: the engine's layers/quantization.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .hold import RefusedError

# quant_method: keys of its list (the first that is there counts) and the entry.
_LISTS: dict[str, tuple[tuple[str, ...], str]] = {
    "compressed-tensors": (("ignore",), r"re:mtp\..*"),  # compressed_tensors/utils.py: a pattern, or a part of the text
    "quark": (("exclude",), r"re:mtp\..*"),  # quark/utils.py
    "fp8": (("ignored_layers", "modules_to_not_convert"), "mtp"),  # utils.py: a part of the dotted path
    "mxfp8": (("ignored_layers", "modules_to_not_convert"), "mtp"),
    "fbgemm_fp8": (("modules_to_not_convert",), "mtp"),
    "blockwise_int8": (("ignored_layers",), "mtp"),
    "bitsandbytes": (("llm_int8_skip_modules",), "mtp"),  # bitsandbytes.py: one name of the dotted path
    "awq": (("modules_to_not_convert",), "mtp."),  # awq/awq.py: part of the text
    "modelopt": (("ignore",), "mtp*"),  # modelopt_quant.py: one name of the dotted path, with wildcards
}
# quant_method: key of its table, the name there, and what is said of it. The first name that matches counts.
_TABLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gptq": ("dynamic", r"-:mtp\..*", {}),  # utils.py, get_dynamic_override: "-:" leaves out
    "auto-round": ("extra_config", r"mtp\..*", {"bits": 16, "data_type": "float"}),  # auto_round.py: 16 bits are none
}


def without_head(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of config.json's ``quantization_config`` that leaves the head out; equal to it when it does so already.

    Raises RefusedError for a format that cannot, or that is not known here.
    """
    # The engine takes one without a name for ModelOpt's.
    method = str(quantization.get("quant_method", "modelopt")).lower().replace("_tensors", "-tensors")
    if method.startswith("modelopt"):
        if "quant_algo" not in quantization and isinstance(quantization.get("quantization"), dict):
            return {**quantization, **modelopt_file_without_head(quantization)}
        method = "modelopt"
    if "linear_fp8_config" in quantization:
        raise RefusedError(
            "config.json has a linear_fp8_config, with which the engine quantizes every layer, the MTP head's too; "
            "expected a format with an ignore list. Attach the head to another variant of the model"
        )
    if method in _LISTS:
        keys, entry = _LISTS[method]
        key = next((key for key in keys if key in quantization), keys[-1])
        return {**quantization, key: _with(quantization.get(key), entry)}
    if method in _TABLES:
        key, name, value = _TABLES[method]
        # A pattern before ours that matches everything would win.
        others = {other: rule for other, rule in (quantization.get(key) or {}).items() if other != name}
        return {**quantization, key: {name: value, **others}}
    raise RefusedError(
        f"config.json has quantization {method!r}, of which it is not known how to leave the MTP head out; "
        f"expected one of {', '.join(sorted([*_LISTS, *_TABLES]))}. Attach the head to another variant of the model"
    )


def modelopt_file_without_head(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same for ``hf_quant_config.json``, which ModelOpt writes beside config.json."""
    inner = dict(content["quantization"])
    inner["exclude_modules"] = _with(inner.get("exclude_modules"), _LISTS["modelopt"][1])
    return {**content, "quantization": inner}


def _with(entries: Any, entry: str) -> list[Any]:
    known = list(entries or [])
    return known if entry in known else [*known, entry]
