"""verify_model.yml in a container where nothing is deployed: whole, altered, broken, not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_kit import Fleet, said

SHARD = "model-00003-of-00003.safetensors"


@pytest.fixture
def model(bare: Fleet) -> Iterator[str]:
    """A copy of the lab's checkpoint under a name with a blank and an umlaut, which a test may break."""
    path = "/models/größe 27B"
    bare.inside(f"rm -rf '{path}' /var/lib/sglang/checkpoints && cp -r /models/qwen3.6-lab '{path}'")
    yield path
    bare.inside(f"rm -r '{path}'; rm -rf /var/lib/sglang")


def verify(bare: Fleet, model: str, tmp_path: Path, **how: Any) -> tuple[int, dict[str, Any], str]:
    """Exit status, the JSON answer and everything that was printed."""
    answer = tmp_path / "answer.json"
    done = bare.run("verify_model", sglang_verify_path=model, sglang_model_json=str(answer), **how)
    assert answer.exists(), done.stdout
    return done.returncode, json.loads(answer.read_text()), said(done)


def ids(answer: dict[str, Any]) -> set[str]:
    return {finding["id"] for model in answer["models"] for finding in model["findings"]}


def test_a_whole_checkpoint_is_good_and_stays_so(bare: Fleet, model: str, tmp_path: Path) -> None:
    for first in (True, False):
        code, answer, text = verify(bare, model, tmp_path)
        assert (code, answer["verdict"]) == (0, "good"), text
        assert ("for the first time" in text) is first
        assert "MTP head complete: 15 tensors" in text and "48 linear attention, 16 full attention" in text


def test_one_changed_byte_is_broken_and_a_purpose_makes_it_good(bare: Fleet, model: str, tmp_path: Path) -> None:
    verify(bare, model, tmp_path)
    last = f"bs=1 seek=$(($(stat -c %s {SHARD}) - 1)) conv=notrunc"
    bare.inside(f"cd '{model}' && cp -p {SHARD} /tmp/t && printf X | dd of={SHARD} {last} && touch -r /tmp/t {SHARD}")
    code, answer, _ = verify(bare, model, tmp_path)
    assert (code, ids(answer)) == (2, {"file-altered"})
    assert verify(bare, model, tmp_path, sglang_verify="structure")[0] == 0, "its structure is whole"
    assert verify(bare, model, tmp_path, sglang_accept_changes=True)[0] == 0


def test_files_of_a_user_that_the_container_does_not_know_are_named(bare: Fleet, model: str, tmp_path: Path) -> None:
    shard = bare.lab.rootfs / model.lstrip("/") / SHARD
    owner = shard.stat().st_uid
    # As a mount from the node has them: outside of an unprivileged container's ids, so not even its root may read.
    os.chown(shard, 0, 0)
    shard.chmod(0o600)
    try:
        code, answer, text = verify(bare, model, tmp_path)
        assert (code, ids(answer)) == (2, {"unreadable-file"}), text
        assert SHARD in text
    finally:
        os.chown(shard, owner, owner)


def test_json_on_the_screen_stands_alone(bare: Fleet, model: str) -> None:
    done = bare.run("verify_model", sglang_verify_path=model, sglang_model_json="-")
    assert json.loads(done.stdout)["verdict"] == "good"


@pytest.mark.parametrize(
    ("damage", "code", "finding"),
    [
        (f"rm {SHARD}", 2, "shard-missing"),
        (f"truncate -s -1 {SHARD}", 2, "shard-truncated"),
        (f"printf 'version https://git-lfs.github.com/spec/v1\\n' >{SHARD}", 2, "lfs-pointer"),
        ("rm generation_config.json", 1, "generation-config-missing"),
        ("touch x.incomplete", 1, "unfinished-download"),
        ("chmod 600 tokenizer.json", 2, "unreadable-file"),
    ],
)
def test_damage_is_named_and_gives_the_exit_status(
    bare: Fleet, model: str, tmp_path: Path, damage: str, code: int, finding: str
) -> None:
    bare.inside(f"cd '{model}' && {damage}")
    status, answer, text = verify(bare, model, tmp_path, sglang_verify="structure")
    assert status == code and finding in ids(answer), text


def test_a_directory_that_is_not_there(bare: Fleet, tmp_path: Path) -> None:
    code, answer, _ = verify(bare, "/models/none", tmp_path)
    assert (code, ids(answer)) == (2, {"checkpoint-missing"})


def test_an_unknown_depth_is_refused(bare: Fleet) -> None:
    done = bare.run("verify_model", sglang_verify="deep")
    assert done.returncode == 2 and "structure, changed or full was expected" in said(done)
