"""The task checkpoint_verify: slices with progress, a wrong file told once, and a reading that was stopped goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_pve.integrity import HUB, MANIFESTS, manifest_of, read_manifest, verify

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action_plugins/checkpoint_verify.py"
SIZE = 96 << 20
NAMES = [f"part {number} ü.bin" for number in range(6)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Files that take a while to read and no room; the hub published another digest of the first."""
    place = tmp_path / "model ü"
    (place / HUB).mkdir(parents=True)
    for name in NAMES:
        (place / name).touch()
        os.truncate(place / name, SIZE)
    (place / HUB / f"{NAMES[0]}.metadata").write_text(f"{'0' * 40}\n{'a' * 64}\n1\n")
    return place


def run(tmp_path: Path, **arguments: Any) -> tuple[dict[str, Any], str]:
    """What the task returns and all that it shows, in slices that end with every file or two."""
    plugins = tmp_path / "plugins"
    plugins.mkdir(exist_ok=True)
    text = ACTION.read_text()
    assert "SLICE_S = 5\n" in text
    (plugins / ACTION.name).write_text(text.replace("SLICE_S = 5\n", "SLICE_S = 0.02\n"))
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", "checkpoint_verify"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environment |= {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_ACTION_PLUGINS": str(plugins)}
    arguments["manifests"] = str(tmp_path / MANIFESTS.name)
    done = subprocess.run(
        [*command, "-a", json.dumps(arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.partition(" => ")[2]), done.stdout + done.stderr


def test_a_long_reading_shows_how_far_it_is_and_reads_each_file_once(tmp_path: Path, checkpoint: Path) -> None:
    result, shown = run(tmp_path, path=str(checkpoint))
    assert "of 0.6 GiB read" in shown
    assert result["changed"] and result["reading"]["left"] == []
    assert result["reading"]["new"] == NAMES[1:]
    assert [(each["id"], each["where"]) for each in result["reading"]["findings"]] == [
        ("file-not-as-published", NAMES[0])
    ]


def test_a_reading_that_was_stopped_goes_on(tmp_path: Path, checkpoint: Path) -> None:
    manifest = manifest_of(checkpoint, tmp_path / MANIFESTS.name)
    verify(checkpoint, manifest, skip=NAMES[:3])
    result, _ = run(tmp_path, path=str(checkpoint), full=False)
    assert result["reading"]["new"] == NAMES[1:3]
    assert sorted(read_manifest(manifest)) == NAMES[1:]
