"""The module checkpoint_info as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from make_safetensors import make_checkpoint

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, *options: str, **arguments: Any) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local"]
    command += [
        "-e",
        f"ansible_python_interpreter={sys.executable}",
        "-m",
        "checkpoint_info",
        "-a",
        json.dumps(arguments),
    ]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environment["ANSIBLE_CALLBACK_RESULT_FORMAT"] = "json"
    done = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.partition(" => ")[2])


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_it_reports_every_path_in_one_call(tmp_path: Path, options: tuple[str, ...]) -> None:
    whole, missing = tmp_path / "whole é", tmp_path / "missing"
    make_checkpoint(whole)
    result = run(tmp_path, *options, paths=[str(whole), str(missing)])
    assert result["changed"] is False
    assert result["checkpoints"][str(whole)]["findings"] == []
    assert result["checkpoints"][str(whole)]["mtp"]["complete"] is True
    assert [finding["id"] for finding in result["checkpoints"][str(missing)]["findings"]] == ["checkpoint-missing"]


def test_a_user_that_is_not_there_yet_is_a_stranger(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "m")
    (tmp_path / "m/config.json").chmod(0o600)
    result = run(tmp_path, paths=[str(tmp_path / "m")], user="nobody-of-this-name")
    assert [finding["id"] for finding in result["checkpoints"][str(tmp_path / "m")]["findings"]] == ["unreadable-file"]
