"""The modules checkpoint_attach and checkpoint_stage as Ansible runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attach_kit as kit
import pytest
from make_safetensors import make_checkpoint, tree
from sglang_pve import checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    kit.lab.make(tmp_path / "official")
    kit.lab.make(tmp_path / "lost", with_draft=False)
    return tmp_path


def run(home: Path, module: str, *options: str, code: int = 0, **arguments: Any) -> tuple[dict[str, Any], str]:
    """What a module returns, and all that Ansible said."""
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", module, "-a", json.dumps(arguments)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    environment["ANSIBLE_CALLBACK_RESULT_FORMAT"] = "json"
    done = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    start = done.stdout.index(" => ") + 4
    return json.JSONDecoder().raw_decode(done.stdout, start)[0], done.stdout + done.stderr


def test_attach_and_take_away(home: Path) -> None:
    place = home / "attached"
    how: dict[str, Any] = {"checkpoint": str(home / "lost"), "source": [str(home / "official")], "path": str(place)}
    foreseen, said = run(home, "checkpoint_attach", "--check", "--diff", **how)
    assert foreseen["changed"] and not place.exists()
    assert "mtp-head.safetensors" in said and f"config.json -> {home}/lost/config.json" in said
    made, _ = run(home, "checkpoint_attach", **how)
    assert made["changed"] and made["checkpoint"] == foreseen["checkpoint"] == checkpoint.inspect(str(place))
    again, _ = run(home, "checkpoint_attach", **how)
    assert not again["changed"] and again["checkpoint"] == made["checkpoint"]
    (home / "official").rename(home / "away")
    kept, said = run(home, "checkpoint_attach", **how)
    assert not kept["changed"] and kept["checkpoint"] == made["checkpoint"] and "its head is kept" in said
    assert run(home, "checkpoint_attach", "--check", path=str(place), state="absent")[0]["changed"] and place.exists()
    assert run(home, "checkpoint_attach", path=str(place), state="absent")[0]["changed"] and not place.exists()
    assert not run(home, "checkpoint_attach", path=str(place), state="absent")[0]["changed"]


def test_why_a_head_is_refused(home: Path) -> None:
    how: dict[str, Any] = {"checkpoint": str(home / "lost"), "path": str(home / "attached")}
    shards = [str(home / f"official/model-0000{number}-of-00003.safetensors") for number in (2, 3)]
    assert "extracted" in run(home, "checkpoint_attach", "--check", code=2, source=shards, **how)[0]["msg"]
    assert run(home, "checkpoint_attach", "--check", source=shards, extract=True, **how)[0]["changed"]
    assert "state is present" in run(home, "checkpoint_attach", code=2, path=str(home / "attached"))[0]["msg"]


def test_files_that_the_service_user_cannot_read(home: Path) -> None:
    (home / "lost/tokenizer.json").chmod(0o600)
    how: dict[str, Any] = {"checkpoint": str(home / "lost"), "source": [str(home / "official")]}
    result, _ = run(
        home, "checkpoint_attach", "--check", path=str(home / "attached"), user="nobody-of-this-name", **how
    )
    assert "unreadable-file" in [finding["id"] for finding in result["checkpoint"]["findings"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="the progress lies in /run")
def test_staging_shows_its_progress_and_changes_nothing_twice(home: Path) -> None:
    make_checkpoint(home / "source", shards=4, width=1024)
    target = home / "memory/m"
    how = {"models": [{"source": str(home / "source"), "target": str(target)}], "config": str(home / "models.json")}
    foreseen, _ = run(home, "checkpoint_stage", "--check", **how)
    assert foreseen["staged"] == [str(target)] and not target.parent.exists() and not Path(how["config"]).exists()
    first, said = run(home, "checkpoint_stage", **how)
    assert first["changed"] and first["staged"] == [str(target)]
    assert f"localhost: {target}: copying" in said and f"localhost: {target}: staged, 100 %" in said
    assert tree(target) == tree(home / "source")
    assert not list(Path("/run").glob("sglang-staging-*")) and not list(Path("/run/sglang-jobs").iterdir())
    Path("/run/sglang-jobs").rmdir()
    second, said = run(home, "checkpoint_stage", **how)
    assert not second["changed"] and "copying" not in said
    (home / "source/model-00001-of-00004.safetensors").unlink()
    assert "shard-missing" in run(home, "checkpoint_stage", "--check", code=2, **how)[0]["msg"]
    assert "shard-missing" in run(home, "checkpoint_stage", code=2, **how)[0]["msg"]
