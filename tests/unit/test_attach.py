"""A head attached to a checkpoint that lost it, read back with the safetensors library; and what is refused."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attach_kit as kit
import pytest
from sglang_pve import attach, checkpoint, staging
from sglang_pve.attach import HEAD, MARKER
from sglang_pve.hold import RefusedError

INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
FC = "mtp.fc.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as it was published, and the checkpoint that lost the head; not to be changed."""
    place = tmp_path_factory.mktemp("models")
    kit.lab.make(place / "official")
    kit.lab.make(place / "lost", with_draft=False)
    return place


@pytest.fixture
def official(models: Path) -> Path:
    return models / "official"


@pytest.fixture
def lost(models: Path, tmp_path: Path) -> Path:
    """A checkpoint without a head whose small files a test may change."""
    place = tmp_path / "lost é"
    place.mkdir()
    for path in (models / "lost").iterdir():
        (place / path.name).symlink_to(path) if path.suffix == ".safetensors" else shutil.copy2(path, place)
    return place


@pytest.fixture
def head(official: Path, tmp_path: Path) -> Path:
    """The head in a file of its own."""
    return kit.write(tmp_path / "head.safetensors", kit.head_of(official))


@pytest.fixture
def place(lost: Path) -> Path:
    return lost.with_name("attached")


def make(lost: Path, place: Path, *sources: Path, extract: bool = False) -> bool:
    wanted = attach.plan(lost, sources, extract)
    attach.preview(wanted, place)
    return attach.attach(wanted, place, print)


def refused(lost: Path, place: Path, *sources: Path, extract: bool = False) -> str:
    """Why it is refused; nothing may be left of the attempt."""
    before = sorted(lost.parent.iterdir())
    with pytest.raises(RefusedError) as caught:
        make(lost, place, *sources, extract=extract)
    assert sorted(lost.parent.iterdir()) == before
    return str(caught.value)


@pytest.mark.parametrize("kind", ["file", "shards", "model", "two shards of a model"])
def test_the_head_is_read_back_as_it_was(official: Path, head: Path, lost: Path, place: Path, kind: str) -> None:
    before = kit.snapshot(lost)
    sources = {"file": [head], "shards": [official / SHARDS[1], official / SHARDS[2]], "model": [official]}.get(kind)
    if sources is None:
        # A download of only what the index names for the head.
        (lost.parent / "part").mkdir()
        for name in (INDEX, *SHARDS[1:]):
            (lost.parent / "part" / name).symlink_to(official / name)
        sources = [lost.parent / "part"]
    assert make(lost, place, *sources, extract=kind == "shards")
    assert kit.read(place / HEAD) == kit.head_of(official) == kit.head_of(place)
    assert sorted(kit.head_of(place)) == kit.HEAD_NAMES
    report = checkpoint.inspect(str(place))
    assert report["findings"] == []
    assert report["mtp"]["complete"] and report["mtp"]["declared"] and report["mtp"]["tensors"] == 15
    index = json.loads((place / INDEX).read_text())
    assert index["metadata"]["total_size"] == report["bytes"]
    assert set(index["weight_map"]) == {name for file in place.glob("*.safetensors") for name in kit.read(file)}
    for path in place.iterdir():
        if path.name not in (INDEX, HEAD, MARKER):
            assert path.is_symlink() and path.read_bytes() == (lost / path.name).read_bytes()
    assert kit.snapshot(lost) == before


def test_the_head_is_laid_down_as_the_library_would_align_it(official: Path, lost: Path, place: Path) -> None:
    head = kit.head_of(official)
    _, shape, data = head["mtp.norm.weight"]
    head["mtp.norm.weight"] = ("F32", shape, data + data)
    make(lost, place, kit.write(lost.parent / "mixed.safetensors", head))
    assert kit.read(place / HEAD) == head
    assert int.from_bytes((place / HEAD).read_bytes()[:8], "little") % 8 == 0


def test_a_second_time_changes_nothing(head: Path, lost: Path, place: Path) -> None:
    make(lost, place, head)
    before = kit.snapshot(place)
    assert not make(lost, place, head)
    assert kit.snapshot(place) == before


@pytest.mark.parametrize("change", ["head", "config", "link gone", "head cut"])
def test_what_changed_is_made_anew(official: Path, head: Path, lost: Path, place: Path, change: str) -> None:
    make(lost, place, head)
    if change == "head":
        tensors = kit.head_of(official)
        kit.write(head, {**tensors, FC: (*tensors[FC][:2], bytes(len(tensors[FC][2])))})
    elif change == "config":
        kit.edit(lost / "config.json", lambda config: config["text_config"].pop("mtp_num_hidden_layers"))
    elif change == "link gone":
        (place / "tokenizer.json").unlink()
    else:
        (place / HEAD).unlink()
    assert make(lost, place, head)
    assert kit.read(place / HEAD) == kit.read(head)
    assert json.loads((place / "config.json").read_text())["text_config"]["mtp_num_hidden_layers"] == 1
    assert checkpoint.inspect(str(place))["findings"] == []
    assert not make(lost, place, head)


def test_the_source_is_needed_once(official: Path, head: Path, lost: Path, place: Path) -> None:
    make(lost, place, head)
    assert not attach.outlives(lost, [head], place)
    head.unlink()
    assert attach.outlives(lost, [head], place)
    assert not attach.outlives(lost, [head, official], place) and not attach.outlives(official, [head], place)
    (place / "tokenizer.json").unlink()
    assert not attach.outlives(lost, [head], place)


def test_it_is_taken_away_and_nothing_else_is(head: Path, lost: Path, place: Path) -> None:
    before = kit.snapshot(lost)
    make(lost, place, head)
    made = sorted({path.name for path in place.iterdir()} - {MARKER})
    assert attach.detach(place) == (made, []) and not place.exists()
    assert attach.detach(place) == ([], [])
    make(lost, place, head)
    (place / "mine").write_text("precious")
    (place / "tokenizer.json").unlink()
    (place / "tokenizer.json").write_text("my own")
    assert attach.detach(place, dry_run=True)[1] == ["mine", "tokenizer.json"] and (place / HEAD).exists()
    assert attach.detach(place)[1] == ["mine", "tokenizer.json"]
    assert sorted(path.name for path in place.iterdir()) == [MARKER, "mine", "tokenizer.json"]
    assert attach.detach(place) == ([], ["mine", "tokenizer.json"])
    (place / "mine").unlink()
    (place / "tokenizer.json").unlink()
    attach.detach(place)
    assert not place.exists() and kit.snapshot(lost) == before


def test_a_checkpoint_of_somebody_else_is_never_taken_away(official: Path, lost: Path) -> None:
    before = kit.snapshot(lost)
    with pytest.raises(RefusedError, match="was not made by attaching"):
        attach.detach(lost)
    assert kit.snapshot(lost) == before


def test_a_foreign_file_in_the_place_is_named_and_left(head: Path, lost: Path, place: Path) -> None:
    place.mkdir()
    (place / "mine").write_text("precious")
    assert "mine" in refused(lost, place, head)
    (place / "mine").unlink()
    make(lost, place, head)
    (place / "mine").write_text("precious")
    assert "mine" in refused(lost, place, head)
    assert (place / "mine").read_text() == "precious"


def test_the_attached_checkpoint_is_staged_whole(official: Path, head: Path, lost: Path, place: Path) -> None:
    make(lost, place, head)
    copy = staging.Model(place, lost.parent / "memory/m")
    assert staging.stage([copy], print) == [copy]
    assert kit.head_of(copy.target) == kit.head_of(official)
    assert not any(path.is_symlink() for path in copy.target.iterdir())
    report = checkpoint.inspect(str(copy.target))
    assert report["findings"] == [] and report["digest"] == checkpoint.inspect(str(place))["digest"]


def test_what_is_foreseen_is_what_comes(head: Path, lost: Path, place: Path) -> None:
    foreseen = attach.preview(attach.plan(lost, [head]), place)
    assert not place.exists()
    make(lost, place, head)
    assert foreseen == checkpoint.inspect(str(place))


def test_a_flat_config_and_one_file_without_an_index(official: Path, lost: Path, place: Path, head: Path) -> None:
    single = lost.with_name("single")
    single.mkdir()
    kit.write(single / "model.safetensors", {n: t for shard in SHARDS for n, t in kit.read(lost / shard).items()})
    config = json.loads((lost / "config.json").read_text())
    flat = {"architectures": config["architectures"], **config["text_config"]}
    (single / "config.json").write_text(json.dumps(flat))
    shutil.copy2(lost / "tokenizer.json", single)
    make(single, place, head)
    assert kit.head_of(place) == kit.head_of(official)
    report = checkpoint.inspect(str(place))
    assert {finding["level"] for finding in report["findings"]} <= {"warning"} and report["mtp"]["complete"]
    assert report["shards"]["named"] == ["model.safetensors", HEAD]


@pytest.mark.parametrize("shard", ["mtp.safetensors", SHARDS[2]])
def test_an_index_that_still_names_the_lost_head(lost: Path, place: Path, head: Path, shard: str) -> None:
    def name_them(index: dict[str, Any]) -> None:
        index["weight_map"].update(dict.fromkeys(kit.HEAD_NAMES, shard))

    kit.edit(lost / INDEX, name_them)
    assert any(finding["level"] == "error" for finding in checkpoint.inspect(str(lost))["findings"])
    make(lost, place, head)
    assert checkpoint.inspect(str(place))["findings"] == []


def test_a_head_that_lies_unread_in_the_checkpoint(official: Path, lost: Path, place: Path) -> None:
    """The most frequent loss: mtp.safetensors is there and the index does not name it."""
    beside = kit.write(lost / "mtp.safetensors", kit.head_of(official))
    make(lost, place, beside)
    assert checkpoint.inspect(str(place))["findings"] == []
    assert not (place / "mtp.safetensors").is_symlink()


def spoil(tensors: dict[str, kit.Tensor], how: str) -> dict[str, kit.Tensor]:
    dtype, shape, data = tensors[FC]
    if how == "missing":
        del tensors[FC]
    elif how == "unknown":
        tensors["mtp.layers.1.input_layernorm.weight"] = tensors["mtp.norm.weight"]
    elif how == "shape":
        tensors[FC] = (dtype, shape[::-1], data)
    elif how == "quantized":
        tensors[FC] = ("F8_E4M3", shape, data[: len(data) // 2])
    elif how == "beside":
        tensors["lm_head.weight"] = (dtype, shape, data)
    elif how == "none":
        return {"model.norm.weight": (dtype, shape, data)}
    return tensors


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", [f"{FC} is missing"]),
        ("unknown", ["mtp.layers.1.input_layernorm.weight is none of its tensors"]),
        ("shape", ["has shape [16, 8], expected [8, 16]"]),
        ("quantized", ["is quantized (F8_E4M3)", "unquantized model"]),
        ("beside", ["holds 1 (lm_head.weight) beside the head", "extracted"]),
        ("none", ["no mtp.* tensor in"]),
    ],
)
def test_a_head_that_does_not_fit(official: Path, lost: Path, place: Path, how: str, words: list[str]) -> None:
    file = kit.write(lost.parent / "odd.safetensors", spoil(kit.head_of(official), how))
    told = refused(lost, place, file, extract=how == "none")
    for word in words:
        assert word in told


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


@pytest.mark.parametrize(
    ("damage", "words"), [(cut, "1 bytes too few"), (pointer, "git lfs pull"), (Path.unlink, "No such file")]
)
def test_a_source_that_is_broken(
    lost: Path, place: Path, head: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(head)
    told = refused(lost, place, head)
    assert str(head) in told and words in told


def test_the_same_tensor_in_two_sources(lost: Path, place: Path, head: Path, official: Path) -> None:
    assert "Name each file once" in refused(lost, place, head, official)


def test_a_model_whose_index_is_wrong_about_the_head(lost: Path, place: Path, official: Path) -> None:
    wrong = lost.parent / "wrong"
    wrong.mkdir()
    shutil.copy2(official / INDEX, wrong)
    for name, other in zip(SHARDS, [SHARDS[0], *SHARDS[:0:-1]]):
        (wrong / name).symlink_to(official / other)
    assert "which the index beside it puts there" in refused(lost, place, wrong)


def test_checkpoints_that_need_no_head_or_half_of_one(lost: Path, place: Path, official: Path, head: Path) -> None:
    assert "it needs none" in refused(official, place, head)
    tensors = kit.head_of(official)
    del tensors[FC]
    kit.write(lost / "half.safetensors", tensors)
    kit.edit(lost / INDEX, lambda index: index["weight_map"].update(dict.fromkeys(tensors, "half.safetensors")))
    assert "1 are missing" in refused(lost, place, head)


def test_a_checkpoint_that_is_not_whole_otherwise(lost: Path, place: Path, head: Path) -> None:
    (lost / SHARDS[0]).unlink()
    assert SHARDS[0] in refused(lost, place, head)
    assert "cannot be listed" in refused(lost.with_name("none"), place, head)


def test_a_config_without_the_sizes_of_the_head(lost: Path, place: Path, head: Path) -> None:
    kit.edit(lost / "config.json", lambda config: config["text_config"].update(hidden_size="wide"))
    assert "hidden_size 'wide', expected a number" in refused(lost, place, head)


def test_places_that_lie_in_each_other(lost: Path, place: Path, head: Path) -> None:
    for inside in (lost, lost / "attached", head.parent):
        assert "lie in each other" in refused(lost, inside, head)


def test_another_type_than_the_config_names_is_said(official: Path, lost: Path, head: Path) -> None:
    assert attach.plan(lost, [head]).warnings == []
    kit.edit(lost / "config.json", lambda config: config["text_config"].update(dtype="float16"))
    (warning,) = attach.plan(lost, [head]).warnings
    assert "BF16" in warning and "float16" in warning


def test_a_mixture_of_experts(official: Path, lost: Path, place: Path) -> None:
    experts = {"num_experts": 2, "moe_intermediate_size": 4, "shared_expert_intermediate_size": 6}
    kit.edit(lost / "config.json", lambda config: config["text_config"].update(experts))
    shapes: dict[str, list[int]] = {"gate.weight": [2, 8], "shared_expert_gate.weight": [1, 8]}
    shapes |= {f"shared_expert.{name}_proj.weight": [6, 8] for name in ("gate", "up")}
    shapes["shared_expert.down_proj.weight"] = [8, 6]
    fused = {**shapes, "experts.gate_up_proj": [2, 8, 8], "experts.down_proj": [2, 8, 4]}
    single = {**shapes, **{f"experts.{n}.{part}_proj.weight": [4, 8] for n in (0, 1) for part in ("gate", "up")}}
    single |= {f"experts.{n}.down_proj.weight": [8, 4] for n in (0, 1)}
    rest = {name: tensor for name, tensor in kit.head_of(official).items() if ".mlp." not in name}
    for number, layout in enumerate((fused, single)):
        tensors = {f"mtp.layers.0.mlp.{name}": shape for name, shape in layout.items()}
        sizes = {name: 2 * math.prod(shape) for name, shape in tensors.items()}
        head = {**rest, **{name: ("BF16", shape, bytes(sizes[name])) for name, shape in tensors.items()}}
        make(lost, place.with_name(f"moe{number}"), kit.write(lost.parent / f"{number}.safetensors", head))
        assert kit.read(lost.parent / f"moe{number}" / HEAD) == head
        del head[f"mtp.layers.0.mlp.{next(iter(layout))}"]
        assert "is missing" in refused(lost, place, kit.write(lost.parent / f"{number}.safetensors", head))


def test_a_source_that_changes_while_it_is_copied(lost: Path, place: Path, head: Path) -> None:
    wanted = attach.plan(lost, [head])
    info = head.stat()
    head.write_bytes(head.read_bytes()[:-1] + b"!")
    os.utime(head, ns=(info.st_atime_ns, info.st_mtime_ns))
    with pytest.raises(RefusedError, match="changed while it was read"):
        attach.attach(wanted, place, print)
    assert not place.exists() and not list(lost.parent.glob(".*"))
