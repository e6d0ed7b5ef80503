"""The lab's checkpoint: real safetensors files of the right architecture, and the same bytes every time."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors

SCRIPT = Path(__file__).parents[2] / "lab/checkpoint/make_checkpoint.py"
DRAFT_LAYER = (
    "input_layernorm post_attention_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj"
    " self_attn.q_norm self_attn.k_norm mlp.gate_proj mlp.up_proj mlp.down_proj"
)
DRAFT = {f"mtp.layers.0.{name}.weight" for name in DRAFT_LAYER.split()} | {
    f"mtp.{name}.weight" for name in ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
}


def make(folder, *options):
    subprocess.run([sys.executable, SCRIPT, folder, *options], check=True, stdout=subprocess.PIPE)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def without_draft(tmp_path_factory):
    return make(tmp_path_factory.mktemp("without"), "--no-mtp")


def read(folder):
    """Every tensor of every file, as the safetensors library sees it: name to (file, shape, type)."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in safetensors.deserialize(file.read_bytes()):
            assert name not in found
            found[name] = (file.name, tensor["shape"], tensor["dtype"])
    return found


def index(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())


@pytest.mark.parametrize("kind", ["whole", "without_draft"])
def test_the_index_agrees_with_the_files(kind, request):
    folder = request.getfixturevalue(kind)
    tensors, stated = read(folder), index(folder)
    assert {name: file for name, (file, _, _) in tensors.items()} == stated["weight_map"]
    total = 0
    for _, shape, dtype in tensors.values():
        assert dtype == "BF16"
        size = 2
        for side in shape:
            size *= side
        total += size
    assert total == stated["metadata"]["total_size"]
    assert len(set(stated["weight_map"].values())) == 3


def test_it_is_small(whole):
    assert sum(file.stat().st_size for file in whole.iterdir()) < 60_000_000


def test_layers_follow_the_pattern_of_the_model(whole):
    tensors = read(whole)
    for layer in range(64):
        prefix = f"model.language_model.layers.{layer}."
        kinds = {name[len(prefix) :].split(".")[0] for name in tensors if name.startswith(prefix)}
        expected = "self_attn" if layer % 4 == 3 else "linear_attn"
        assert kinds == {expected, "mlp", "input_layernorm", "post_attention_layernorm"}
    shape = {name: found[1] for name, found in tensors.items()}
    linear, full = "model.language_model.layers.0.linear_attn.", "model.language_model.layers.3.self_attn."
    assert shape[linear + "in_proj_qkv.weight"] == [48 * 128 + 2 * 16 * 128, 8]
    assert shape[linear + "conv1d.weight"] == [10240, 1, 4]
    assert shape[linear + "A_log"] == shape[linear + "dt_bias"] == [48]
    assert shape[full + "q_proj.weight"] == [2 * 24 * 256, 8]
    assert shape[full + "k_proj.weight"] == [4 * 256, 8]
    assert {"lm_head.weight", "model.language_model.embed_tokens.weight", "model.visual.pos_embed.weight"} <= set(shape)


def test_the_draft_head_lies_in_two_shards(whole):
    places = {name: file for name, file in index(whole)["weight_map"].items() if name.startswith("mtp.")}
    assert set(places) == DRAFT
    assert len(DRAFT) == 15
    assert len(set(places.values())) == 2


def test_without_the_head_the_config_still_declares_it(without_draft):
    assert not [name for name in index(without_draft)["weight_map"] if "mtp" in name]
    text = json.loads((without_draft / "config.json").read_text())["text_config"]
    assert text["mtp_num_hidden_layers"] == 1


def test_the_same_bytes_every_time(whole, tmp_path):
    make(tmp_path)
    for file in whole.iterdir():
        again = (tmp_path / file.name).read_bytes()
        assert hashlib.sha256(again).digest() == hashlib.sha256(file.read_bytes()).digest(), file.name


def test_weights_are_small_finite_numbers(whole):
    data = (whole / "model-00003-of-00003.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert set(data[start + 1 :: 2]) == {0x3B, 0x3C, 0xBB, 0xBC}


def test_the_tokenizer_has_one_token_for_each_byte_and_mark(whole):
    found = json.loads((whole / "tokenizer.json").read_text())
    vocabulary = found["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert all(letter.isprintable() and not letter.isspace() for letter in vocabulary)
    # The byte-level alphabet is a published one: a space is shown as a G with a dot, printable ASCII as itself.
    assert vocabulary["\u0120"] == 0x20
    assert vocabulary["A"] == 0x41
    marks = {token["content"]: token["id"] for token in found["added_tokens"]}
    assert sorted(marks.values()) == list(range(256, 266))
    config = json.loads((whole / "config.json").read_text())
    assert config["image_token_id"] == marks["<|image_pad|>"]
    assert config["text_config"]["eos_token_id"] == marks["<|im_end|>"]
    assert max(marks.values()) < config["text_config"]["vocab_size"]
