"""A release is written whole or not at all, and what was edited afterwards is found."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_pve import release

STACK = {"id": "5bd1", "name": "sglang-0.5.11-cu130", "engine": "0.5.11", "lock": "left out"}
MODEL = {"path": "/dev/shm/sglang/m", "source": "/models/m", "digest": "sha256:1", "name": "m"}
PLAN = {"profile": "batch", "card": "c", "argv": ["--port", "1"], "env": {}, "pools": {}, "reasons": ["left out"]}
FILES = {"run": "#!/bin/sh\nexec true\n", "ready": "#!/bin/sh\n", "unit.conf": "[Service]\n"}


@pytest.fixture
def content():
    return release.manifest(STACK, MODEL, PLAN)


def test_it_is_written_once_and_proven_afterwards(tmp_path: Path, content):
    assert release.write(tmp_path, content, FILES)
    assert not release.write(tmp_path, content, FILES)
    (directory,) = tmp_path.iterdir()
    assert release.load(directory)["plan"]["argv"] == ["--port", "1"]
    assert os.access(directory / "run", os.X_OK)
    assert not os.access(directory / "unit.conf", os.X_OK)


def test_its_id_follows_from_its_content_alone(content):
    same = release.release_id({**content, "id": "whatever"}, dict(reversed(FILES.items())))
    assert same == release.release_id(content, FILES)
    assert same != release.release_id(content, {**FILES, "run": "#!/bin/sh\nexec false\n"})
    other = release.manifest(STACK, MODEL, {**PLAN, "argv": ["--port", "2"]})
    assert same != release.release_id(other, FILES)


@pytest.mark.parametrize("name", ["run", "manifest.json"])
def test_an_edited_file_is_found(tmp_path: Path, content, name):
    release.write(tmp_path, content, FILES)
    (directory,) = tmp_path.iterdir()
    text = (directory / name).read_text()
    (directory / name).write_text(text.replace("0.5.11", "0.5.12") + ("" if name != "run" else "rm -rf /\n"))
    with pytest.raises(release.ReleaseError, match="altered on disk"):
        release.load(directory)
    with pytest.raises(release.ReleaseError, match="altered on disk"):
        release.write(tmp_path, content, FILES)
    assert release.read_all(tmp_path)[directory.name]["manifest"] is None


def test_a_missing_file_is_named(tmp_path: Path, content):
    release.write(tmp_path, content, FILES)
    (directory,) = tmp_path.iterdir()
    (directory / "manifest.json").unlink()
    with pytest.raises(release.ReleaseError, match=r"manifest\.json is missing"):
        release.load(directory)


def test_a_dry_run_writes_nothing(tmp_path: Path, content):
    assert release.write(tmp_path / "releases", content, FILES, dry_run=True)
    assert not (tmp_path / "releases").exists()


def test_a_killed_write_leaves_no_release_and_is_cleared(tmp_path: Path, content):
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom sglang_pve import release\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), 9)\n"
        "release.write(Path(sys.argv[2]), {'schema': 1}, {'run': 'x'})\n"
    )
    utils = str(Path(release.__file__).parents[1])
    killed = subprocess.run([sys.executable, "-c", code, utils, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert release.read_all(tmp_path) == {}
    assert len(release.remove_unfinished(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_points_nowhere_still_tells_its_release(tmp_path: Path):
    assert release.linked(tmp_path) is None
    (tmp_path / "release").symlink_to("../../releases/gone")
    assert release.linked(tmp_path) == "gone"
