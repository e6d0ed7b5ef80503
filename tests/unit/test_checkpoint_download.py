"""download_model.yml against a small hub on loopback: whole, cut and gone on with, altered, refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit import attach_kit as kit
from tests.unit.hub_server import COMMIT, REPO, Hub, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    kit.lab.make(tmp_path / "published")
    (tmp_path / "published/pytorch_model.bin").write_bytes(b"pickle")
    with serving(tmp_path / "published") as server:
        yield server


def download(hub: Hub, tmp_path: Path, *options: str, token: str = "", **extra: Any) -> tuple[int, str]:
    """Exit status and all that was said, with blanks made one."""
    wanted = {
        "sglang_model_repo": REPO,
        "sglang_model_revision": "main",
        "sglang_model_download_path": str(tmp_path / "model ü"),
        **extra,
    }
    words = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/download_model.yml", *options]
    words += [word for name, value in wanted.items() for word in ("-e", f'{{"{name}": "{value}"}}')]
    environment = {**os.environ, "HOME": str(tmp_path), "HF_ENDPOINT": hub.url, "HF_TOKEN": token}
    environment |= {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_download_is_whole_as_published_and_done_once(hub: Hub, tmp_path: Path) -> None:
    code, said = download(hub, tmp_path, "--check")
    assert code == 0, said
    assert not (tmp_path / "model ü").exists() and hub.sent == []
    code, said = download(hub, tmp_path)
    assert code == 0, said
    assert f"{REPO} at main is commit {COMMIT}" in said and "MTP head complete: 15 tensors" in said
    target = tmp_path / "model ü"
    assert {name: (target / name).read_bytes() for name in hub.files if not name.endswith(".bin")} == {
        name: data for name, data in hub.files.items() if not name.endswith(".bin")
    }
    assert not (target / "pytorch_model.bin").exists()
    hub.sent.clear()
    code, said = download(hub, tmp_path)
    assert (code, hub.sent) == (0, []), said
    assert re.search(r"changed=0 ", said)


def test_a_cut_download_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.files["assets/large.dat"] = data = os.urandom(24 << 20)
    hub.cut["assets/large.dat"] = 15 << 20
    code, said = download(hub, tmp_path)
    if code:
        assert "the same command goes on" in said
        code, said = download(hub, tmp_path)
    assert code == 0, said
    assert (tmp_path / "model ü/assets/large.dat").read_bytes() == data
    starts = [start for name, start in hub.sent if name == "assets/large.dat"]
    assert starts[0] == 0 and starts[-1] > 0, starts


def test_bytes_that_are_not_as_published_are_broken(hub: Hub, tmp_path: Path) -> None:
    shard = max(hub.files, key=lambda name: len(hub.files[name]))
    hub.wrong.add(shard)
    code, said = download(hub, tmp_path)
    assert code == 2, said
    assert "file-not-as-published" in said and shard in said


@pytest.mark.parametrize(
    ("wanted", "token", "words"),
    [
        ({"sglang_model_revision": "v9"}, "", "lab/model has no revision v9; name a commit, tag or branch"),
        ({"sglang_model_repo": "lab/none"}, "", "the hub shows no repository lab/none"),
        ({}, "wrong-secret", "the hub shows no repository lab/model; correct its name, or give a token"),
    ],
)
def test_what_the_hub_refuses_is_said_and_nothing_is_made(
    hub: Hub, tmp_path: Path, wanted: dict[str, str], token: str, words: str
) -> None:
    hub.token = "right" if token else ""
    code, said = download(hub, tmp_path, "-vvv", token=token, **wanted)
    assert code == 2, said
    assert words in said
    assert "wrong-secret" not in said
    assert not (tmp_path / "model ü").exists()


def test_a_download_that_is_not_fully_named_is_refused(tmp_path: Path, hub: Hub) -> None:
    code, said = download(hub, tmp_path, sglang_model_repo="")
    assert code == 2 and "Give -e sglang_model_repo=" in said
