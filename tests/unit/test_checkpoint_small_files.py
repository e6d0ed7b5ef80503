"""Files beside the weights: each one missing, a vocabulary that does not fit, links that lead out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from make_safetensors import CONFIG, make_checkpoint, write_index, write_safetensors
from sglang_pve import checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "m")
    return tmp_path / "m"


def found(model: Path) -> list[tuple[str, str]]:
    return [(finding["level"], finding["id"]) for finding in checkpoint.inspect(str(model))["findings"]]


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("tokenizer.json", ("error", "tokenizer-missing")),
        ("generation_config.json", ("warning", "generation-config-missing")),
        ("preprocessor_config.json", ("error", "preprocessor-missing")),
    ],
)
def test_a_small_file_that_is_missing(model: Path, name: str, finding: tuple[str, str]) -> None:
    assert found(model) == []
    (model / name).unlink()
    assert found(model) == [finding]


def test_a_chat_template_may_lie_in_three_places(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    assert found(model) == [("warning", "chat-template-missing")]
    for name in ("chat_template.jinja", "chat_template.json"):
        (model / name).write_text("x")
        assert found(model) == []
        (model / name).unlink()
    (model / "tokenizer_config.json").unlink()
    assert found(model) == [("warning", "chat-template-missing"), ("warning", "tokenizer-config-missing")]


def test_a_model_without_eyes_needs_no_preprocessor(model: Path) -> None:
    (model / "preprocessor_config.json").unlink()
    (model / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "vision_config"}))
    assert found(model) == []


@pytest.mark.parametrize(("size", "wrong"), [(15, False), (16, False), (17, True), (None, False), ("16", False)])
def test_an_embedding_with_fewer_rows_than_the_vocabulary(tmp_path: Path, size: Any, wrong: bool) -> None:
    layout = make_checkpoint(tmp_path)
    shard = next(iter(layout))
    layout[shard]["model.language_model.embed_tokens.weight"] = ("BF16", [16, 16])
    write_safetensors(tmp_path / shard, layout[shard])
    write_index(tmp_path, layout)
    config = {**CONFIG, "text_config": {**CONFIG["text_config"], "vocab_size": size}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (("error", "vocabulary-size") in found(tmp_path)) is wrong


def test_links_of_a_hub_cache_are_its_own_and_others_lead_out(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub/blobs", tmp_path / "hub/snapshots/abc"
    make_checkpoint(snapshot)
    blobs.mkdir(parents=True)
    for path in list(snapshot.iterdir()):
        path.rename(blobs / f"b{path.name}")
        path.symlink_to(f"../../blobs/b{path.name}")
    assert found(snapshot) == []
    other = tmp_path / "linked"
    other.mkdir()
    for path in snapshot.iterdir():
        (other / path.name).symlink_to(path)
    assert found(other) == [("note", "link-outside")]


HYBRID = {"num_hidden_layers": 64, "linear_num_value_heads": 48}


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ({"num_hidden_layers": 28}, {"full attention": 28}),
        (
            {**HYBRID, "full_attention_interval": 4},
            {"linear": 48, "full": 16},
        ),
        (
            {**HYBRID, "layer_types": ["full"] * 64},
            {"linear": 48, "full": 16},
        ),
        ({"num_hidden_layers": "many"}, {}),
        ({"num_hidden_layers": -1}, {}),
        ({"num_hidden_layers": 8, "linear_num_value_heads": 1, "full_attention_interval": 0}, {"linear": 6, "full": 2}),
    ],
)
def test_layers_by_kind(text: dict[str, Any], layers: dict[str, int]) -> None:
    told = {kind.split()[0]: count for kind, count in checkpoint.layers_of({"text_config": text}).items()}
    assert told == {kind.split()[0]: count for kind, count in layers.items()}
