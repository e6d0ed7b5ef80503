"""A head attached to a quantized checkpoint is left out of the quantization, as each format matches names.

The matchers are written after those of SGLang 0.5.11; they are given the names that the engine has for the head's
modules, with q, k, v and gate, up fused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attach_kit as kit
import pytest
from sglang_pve import attach, checkpoint
from sglang_pve.hold import RefusedError
from sglang_pve.unquantized import without_head

LAYER = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
HEAD = [f"mtp.layers.0.{part}" for part in LAYER]
BODY = [f"model.layers.{layer}.{part}" for layer in (0, 3, 63) for part in LAYER] + ["lm_head"]


def pattern_or_text(name: str, entries: Sequence[str]) -> bool:
    """compressed-tensors and quark."""
    return any(re.match(e[3:], name) if e.startswith("re:") else e.lower() in name.lower() for e in entries)


def path_part(name: str, entries: Sequence[str]) -> bool:
    """fp8 and its kin, where a fused module is compared as what was fused."""
    plain = name.replace("qkv_proj", "q_proj").replace("gate_up_proj", "up_proj")
    return any(f".{entry}." in f".{plain}." for entry in entries)


def text(name: str, entries: Sequence[str]) -> bool:
    """awq."""
    return any(entry in name for entry in entries)


def wildcard(name: str, entries: Sequence[str]) -> bool:
    """modelopt."""
    patterns = [entry.replace(".", r"\.").replace("*", ".*") for entry in entries]
    return any(re.fullmatch(pattern, part) for pattern in patterns for part in (name, *name.split(".")))


def dynamic(name: str, rules: dict[str, Any]) -> bool:
    """gptq: the first rule that matches counts, and one with a minus leaves out."""
    first = next((rule for rule in rules if re.match(rule[2:], name)), "+:")
    return first.startswith("-:")


def sixteen_bits(name: str, rules: dict[str, Any]) -> bool:
    """auto-round."""
    return next((rule["bits"] for pattern, rule in rules.items() if re.fullmatch(pattern, name)), 4) == 16


FORMATS: list[tuple[dict[str, Any], str, Callable[[str, Any], bool]]] = [
    ({"quant_method": "compressed-tensors", "ignore": ["lm_head"]}, "ignore", pattern_or_text),
    ({"quant_method": "compressed-tensors"}, "ignore", pattern_or_text),
    ({"quant_method": "quark", "exclude": ["lm_head"]}, "exclude", pattern_or_text),
    ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}, "modules_to_not_convert", path_part),
    ({"quant_method": "fp8", "ignored_layers": [], "modules_to_not_convert": ["lm_head"]}, "ignored_layers", path_part),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "modules_to_not_convert", path_part),
    ({"quant_method": "fbgemm_fp8"}, "modules_to_not_convert", path_part),
    ({"quant_method": "blockwise_int8"}, "ignored_layers", path_part),
    ({"quant_method": "bitsandbytes"}, "llm_int8_skip_modules", path_part),
    ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": None}, "modules_to_not_convert", text),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "ignore", wildcard),
    ({"quant_algo": "FP8"}, "ignore", wildcard),
    ({"quant_method": "gptq", "bits": 4}, "dynamic", dynamic),
    ({"quant_method": "gptq", "dynamic": {"+:.*": {"bits": 8}}}, "dynamic", dynamic),
    ({"quant_method": "auto-round", "bits": 4, "extra_config": {".*": {"bits": 4}}}, "extra_config", sixteen_bits),
]


@pytest.mark.parametrize(("before", "key", "matches"), FORMATS)
def test_the_whole_head_is_left_out_and_no_more_of_the_model(
    before: dict[str, Any], key: str, matches: Callable[[str, Any], bool]
) -> None:
    kept = json.dumps(before)
    after = without_head(before)
    assert json.dumps(before) == kept
    assert {name: value for name, value in after.items() if name != key} == {
        name: value for name, value in before.items() if name != key
    }
    empty: Any = type(after[key])()
    assert [name for name in HEAD if matches(name, before.get(key) or empty)] == []
    assert [name for name in HEAD if not matches(name, after[key])] == []
    assert [matches(name, after[key]) for name in BODY] == [matches(name, before.get(key) or empty) for name in BODY]
    assert without_head(after) == after


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "w4afp8"}, "not known how to leave the MTP head out"),
        ({"quant_method": "compressed-tensors", "linear_fp8_config": {}}, "quantizes every layer"),
    ],
)
def test_formats_that_cannot(quantization: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        without_head(quantization)


def lost(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    kit.lab.make(tmp_path / "official")
    kit.lab.make(tmp_path / "lost", with_draft=False)
    kit.edit(tmp_path / "lost/config.json", change)
    return tmp_path / "lost"


@pytest.mark.parametrize("where", ["beside", "inside", "compression_config"])
def test_config_json_says_so(tmp_path: Path, where: str) -> None:
    quantization = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    key = "compression_config" if where == "compression_config" else "quantization_config"

    def quantize(config: dict[str, Any]) -> None:
        (config["text_config"] if where == "inside" else config)[key] = quantization

    base = lost(tmp_path, quantize)
    before = (base / "config.json").read_bytes()
    place = tmp_path / "attached"
    attach.attach(attach.plan(base, [tmp_path / "official"]), place, print)
    config = json.loads((place / "config.json").read_text())
    part = config["text_config"] if where == "inside" else config
    assert part[key]["ignore"] == ["lm_head", r"re:mtp\..*"]
    part[key]["ignore"].pop()
    assert config == json.loads(before)
    assert (base / "config.json").read_bytes() == before and not (place / "config.json").is_symlink()
    assert checkpoint.inspect(str(place))["mtp"]["complete"]


def test_the_file_of_modelopt_says_so(tmp_path: Path) -> None:
    base = lost(tmp_path, lambda config: None)
    content = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (base / "hf_quant_config.json").write_text(json.dumps(content))
    place = tmp_path / "attached"
    attach.attach(attach.plan(base, [tmp_path / "official"]), place, print)
    made = json.loads((place / "hf_quant_config.json").read_text())
    assert made["quantization"].pop("exclude_modules") == ["lm_head", "mtp*"]
    assert made["producer"] == content["producer"]
    assert (place / "config.json").is_symlink()
    assert checkpoint.inspect(str(place))["quantization"]["exclude_modules"] == ["lm_head", "mtp*"]
