"""The report about a checkpoint: what a whole one holds, and each fault with its finding."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from make_safetensors import CONFIG, MTP, make_checkpoint, write_index, write_safetensors
from sglang_pve import checkpoint

INDEX = "model.safetensors.index.json"
FIRST, SECOND, LAST = (f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
Layout = dict[str, dict[str, tuple[str, list[int]]]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "modèle with spaces"


@pytest.fixture
def layout(model: Path) -> Layout:
    return make_checkpoint(model)


def inspect(model: Path, **reader: Any) -> dict[str, Any]:
    report = checkpoint.inspect(str(model), **reader)
    # What a module returns has to be JSON.
    return json.loads(json.dumps(report))


def found(model: Path, **reader: Any) -> list[tuple[str, str, str]]:
    findings = inspect(model, **reader)["findings"]
    assert all(finding["cure"] and finding["expected"] for finding in findings)
    return [(finding["level"], finding["id"], finding["where"]) for finding in findings]


def change_config(model: Path, **changes: Any) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def test_a_whole_checkpoint(model: Path, layout: Layout) -> None:
    report = inspect(model)
    tensors = 3 * 4 + len(MTP)
    assert report["findings"] == []
    assert report["exists"] and report["tokenizer"] and report["vision"]
    assert report["architecture"] == "Qwen3_5ForConditionalGeneration"
    assert report["config"] == CONFIG
    assert (report["tensors"], report["parameters"], report["bytes"]) == (tensors, tensors * 256, tensors * 512)
    assert report["bytes_by_dtype"] == {"BF16": tensors * 512}
    assert report["file_bytes"] == sum((model / shard).stat().st_size for shard in layout)
    assert report["shards"] == {"named": sorted(layout), "present": sorted(layout), "missing": [], "extra": []}
    head = {"declared": True, "tensors": 15, "bytes": 15 * 512, "complete": True, "missing": [], "files": [LAST]}
    assert report["mtp"] == head
    assert report["quantization"] is None
    assert report["max_context"] == 262144


def test_a_flat_config_and_one_file_without_an_index(model: Path) -> None:
    model.mkdir()
    flat = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
    (model / "config.json").write_text(json.dumps(flat))
    (model / "tokenizer.model").write_bytes(b"x")
    write_safetensors(model / "model.safetensors", {"a": ("F32", [2, 3]), "b": ("F8_E4M3", [5])})
    report = inspect(model)
    assert {finding["level"] for finding in report["findings"]} == {"warning"}, "only small files are missing"
    assert report["bytes_by_dtype"] == {"F32": 24, "F8_E4M3": 5}
    assert (report["parameters"], report["max_context"], report["vision"]) == (11, 4096, False)
    absent = {"declared": False, "tensors": 0, "bytes": 0, "complete": False, "missing": [], "files": []}
    assert report["mtp"] == absent


def test_a_hub_cache_of_links(model: Path, layout: Layout, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "hub/snapshots/abc", tmp_path / "hub/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(model.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert found(snapshot) == []
    (blobs / "abc.incomplete").touch()
    assert found(snapshot) == [("warning", "unfinished-download", "")]


def test_the_digest_follows_structure(model: Path, layout: Layout, tmp_path: Path) -> None:
    before = inspect(model)["digest"]
    make_checkpoint(tmp_path / "copy")
    assert inspect(tmp_path / "copy")["digest"] == before
    layout[LAST]["model.more"] = ("BF16", [2])
    write_safetensors(model / LAST, layout[LAST])
    after = inspect(model)["digest"]
    assert after.startswith("sha256:") and after != before
    change_config(model, architectures=["Other"])
    assert inspect(model)["digest"] not in (before, after)


@pytest.mark.parametrize("path", ["nothing here", "a file"])
def test_no_directory(tmp_path: Path, path: str) -> None:
    (tmp_path / "a file").touch()
    report = inspect(tmp_path / path)
    assert [finding["id"] for finding in report["findings"]] == ["checkpoint-missing"]
    assert not report["exists"] and report["shards"]["named"] == [] and report["max_context"] is None


@pytest.mark.parametrize(
    ("name", "content", "finding"),
    [
        ("config.json", None, "config-missing"),
        ("config.json", "", "config-invalid"),
        ("config.json", "[" * 100_000, "config-invalid"),
        ("config.json", "[1]", "config-invalid"),
        ("config.json", "{}", "config-invalid"),
        ("config.json", '{"architectures": [7]}', "config-invalid"),
        ("config.json", "version https://git-lfs.github.com/spec/v1\n", "lfs-pointer"),
        ("tokenizer.json", None, "tokenizer-missing"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n", "lfs-pointer"),
        ("tokenizer.json", "<html>", "tokenizer-invalid"),
        (INDEX, None, "index-missing"),
        (INDEX, "no json", "index-invalid"),
        (INDEX, '{"weight_map": {}}', "index-invalid"),
        (INDEX, '{"weight_map": {"a": "../model.safetensors"}}', "index-invalid"),
        (INDEX, '{"weight_map": {"a": 7}}', "index-invalid"),
    ],
)
def test_small_files(model: Path, layout: Layout, name: str, content: str | None, finding: str) -> None:
    change_config(model, text_config={})
    (model / name).unlink()
    if content is not None:
        (model / name).write_text(content)
    findings = [(level, id) for level, id, _ in found(model) if level == "error"]
    assert findings == [("error", finding)]


def test_one_of_many_shards_without_an_index(model: Path, layout: Layout) -> None:
    for name in (INDEX, FIRST, SECOND):
        (model / name).unlink()
    assert ("error", "index-missing", INDEX) in found(model)


def test_no_weights(model: Path, layout: Layout) -> None:
    for name in (INDEX, *layout):
        (model / name).unlink()
    assert ("error", "weights-missing", "") in found(model)


def test_a_missing_shard(model: Path, layout: Layout) -> None:
    (model / SECOND).unlink()
    assert found(model) == [("error", "shard-missing", SECOND)]
    assert inspect(model)["shards"]["missing"] == [SECOND]


def test_the_missing_shard_with_the_head_is_the_one_fault(model: Path, layout: Layout) -> None:
    (model / LAST).unlink()
    assert found(model) == [("error", "shard-missing", LAST)]
    assert inspect(model)["mtp"]["missing"] == list(MTP) or set(inspect(model)["mtp"]["missing"]) == set(MTP)


def test_a_shard_that_was_cut_says_by_how_much(model: Path, layout: Layout) -> None:
    os.truncate(model / SECOND, (model / SECOND).stat().st_size - 100)
    (finding,) = inspect(model)["findings"]
    assert (finding["id"], finding["where"]) == ("shard-truncated", SECOND)
    assert "100 bytes too few" in finding["seen"]


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (b"", "empty-file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "lfs-pointer"),
        (b"<!doctype html>", "html-page"),
        (b"\xff" * 100, "header-length"),
    ],
)
def test_something_else_in_place_of_a_shard(model: Path, layout: Layout, content: bytes, id: str) -> None:
    (model / FIRST).write_bytes(content)
    assert found(model) == [("error", id, FIRST)]


def test_a_shard_that_is_a_pipe_does_not_block(model: Path, layout: Layout) -> None:
    (model / FIRST).unlink()
    os.mkfifo(model / FIRST)
    assert found(model) == [("error", "shard-missing", FIRST)]


def test_dangling_links(model: Path, layout: Layout) -> None:
    (model / SECOND).unlink()
    (model / SECOND).symlink_to("gone")
    (model / "README.md").symlink_to("gone too")
    (model / "loop").symlink_to("loop")
    assert found(model) == [
        ("error", "dangling-symlink", SECOND),
        ("warning", "dangling-symlink", "README.md"),
        ("warning", "dangling-symlink", "loop"),
    ]


def test_a_tensor_that_no_shard_has(model: Path, layout: Layout) -> None:
    layout[FIRST]["model.gone"] = ("BF16", [1])
    write_index(model, layout)
    assert found(model) == [("error", "tensor-not-in-shard", FIRST), ("warning", "index-total", INDEX)]


def test_a_tensor_in_another_shard(model: Path, layout: Layout) -> None:
    layout[FIRST]["model.moved"] = ("BF16", [1])
    write_index(model, layout)
    layout[SECOND]["model.moved"] = layout[FIRST].pop("model.moved")
    write_safetensors(model / SECOND, layout[SECOND])
    assert found(model) == [("warning", "tensor-elsewhere", FIRST)]


def test_a_tensor_twice(model: Path, layout: Layout) -> None:
    layout[SECOND].update(dict(list(layout[FIRST].items())[:1]))
    write_safetensors(model / SECOND, layout[SECOND])
    assert found(model) == [("warning", "index-total", INDEX), ("warning", "tensor-twice", INDEX)]


def test_a_tensor_that_the_index_does_not_name(model: Path, layout: Layout) -> None:
    layout[SECOND]["model.extra"] = ("BF16", [1])
    write_safetensors(model / SECOND, layout[SECOND])
    assert found(model) == [("warning", "index-total", INDEX), ("warning", "tensor-unindexed", SECOND)]


def test_a_head_in_a_file_that_the_index_does_not_name_is_not_there(model: Path) -> None:
    make_checkpoint(model, mtp=False)
    write_safetensors(model / "mtp.safetensors", dict.fromkeys(MTP, ("BF16", [16, 16])))
    assert found(model) == [("warning", "mtp-declared-but-absent", ""), ("warning", "shard-extra", INDEX)]
    report = inspect(model)
    assert report["shards"]["extra"] == ["mtp.safetensors"]
    assert report["mtp"]["tensors"] == 0 and len(report["mtp"]["missing"]) == 15


def test_each_single_tensor_of_the_head_counts(model: Path, layout: Layout) -> None:
    for lost in MTP:
        part = {**layout, LAST: {name: tensor for name, tensor in layout[LAST].items() if name != lost}}
        write_safetensors(model / LAST, part[LAST])
        write_index(model, part)
        report = inspect(model)
        assert [finding["id"] for finding in report["findings"]] == ["mtp-incomplete"]
        assert report["mtp"]["missing"] == [lost] and not report["mtp"]["complete"]


def test_a_quantized_head_is_complete(model: Path, layout: Layout) -> None:
    layout[LAST] = {
        name.replace("_proj.weight", "_proj.weight_packed"): tensor for name, tensor in layout[LAST].items()
    }
    write_safetensors(model / LAST, layout[LAST])
    write_index(model, layout)
    change_config(model, quantization_config={"quant_method": "compressed-tensors"})
    report = inspect(model)
    assert report["findings"] == [] and report["mtp"]["complete"]
    assert report["quantization"] == {"quant_method": "compressed-tensors"}


def test_a_head_of_experts_and_one_of_two_layers(model: Path, layout: Layout) -> None:
    change_config(model, text_config={"mtp_num_hidden_layers": 1, "num_experts": 8})
    assert inspect(model)["mtp"]["complete"]
    change_config(model, text_config={"mtp_num_hidden_layers": 2})
    assert len(inspect(model)["mtp"]["missing"]) == 11
    change_config(model, text_config={"mtp_num_hidden_layers": 10**12})
    assert not inspect(model)["mtp"]["complete"]


def test_a_head_that_the_config_does_not_declare(model: Path, layout: Layout) -> None:
    change_config(model, text_config={})
    assert found(model) == [("note", "mtp-undeclared", "")]
    assert inspect(model)["mtp"]["complete"]


def test_modelopt_quantization_in_its_own_file(model: Path, layout: Layout) -> None:
    (model / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert inspect(model)["quantization"] == {"quant_method": "modelopt", "quant_algo": "NVFP4"}


@pytest.mark.parametrize("left", ["x.incomplete", f"{LAST}.aria2", ".cache/huggingface/download/y.incomplete"])
def test_leftovers_of_a_download(model: Path, layout: Layout, left: str) -> None:
    (model / left).parent.mkdir(parents=True, exist_ok=True)
    (model / left).touch()
    assert found(model) == [("warning", "unfinished-download", "")]


def test_files_that_the_service_user_cannot_read(model: Path, layout: Layout, tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.getuid() and place != Path("/") and place != Path("/tmp"):
            place.chmod(place.stat().st_mode | 0o711)
    stranger = {"uid": 54321, "gids": [54321]}
    assert found(model, **stranger) == []
    (model / LAST).chmod(0o640)
    assert found(model, **stranger) == [("error", "unreadable-file", str(model))]
    assert found(model, uid=54321, gids=[(model / LAST).stat().st_gid]) == []
    assert found(model, uid=(model / LAST).stat().st_uid) == []
    assert found(model, uid=0) == []
    (model / LAST).chmod(0o644)
    model.chmod(0o744)
    assert "unreadable-file" in [id for _, id, _ in found(model, **stranger)]


def test_two_thousand_files_and_a_name_that_is_no_text(model: Path, layout: Layout) -> None:
    for number in range(2000):
        (model / f"note {number} ✓").touch()
    (Path(os.fsdecode(os.fsencode(model) + b"/\xff.safetensors"))).write_bytes(b"")
    assert found(model) == [("warning", "shard-extra", INDEX)]
