"""Staging as the unit runs it: killed in the middle, two at once, and the command's words and exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from make_safetensors import make_checkpoint, tree
from sglang_pve import staging
from sglang_pve.staged import JOURNAL, MARKER, Target
from sglang_pve.staging import Model

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    make_checkpoint(tmp_path / "source")
    return Model(tmp_path / "source", tmp_path / "shm/sglang/model é")


@pytest.fixture
def large(tmp_path: Path) -> Model:
    """Twelve shards of 32 MiB: enough for a run to be killed in the middle."""
    make_checkpoint(tmp_path / "source", shards=12, per_shard=4, width=2048)
    return Model(tmp_path / "source", tmp_path / "target")


def copied(model: Model) -> list[str]:
    """Files that the journal has as whole."""
    try:
        lines = (Target(model.target).place / JOURNAL).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row["path"] for row in rows if "sha256" in row]


def start(tmp_path: Path, *models: Model, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run as the unit starts it: another process, with nothing but the package on its path."""
    config = tmp_path / "models.json"
    rows = [{"source": str(model.source), "target": str(model.target)} for model in models]
    config.write_text(json.dumps({"schema": 1, "models": rows}))
    return subprocess.Popen(
        # -S: no site-packages, as on a container's bare python3.
        [sys.executable, "-S", "-m", "sglang_pve.staging", "--config", str(config), *options],
        env={"PYTHONPATH": str(ROOT / "module_utils")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def kill_when(process: subprocess.Popen[str], model: Model, files: int) -> None:
    while len(copied(model)) < files:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)


def test_killed_in_the_middle_and_taken_up(large: Model, tmp_path: Path) -> None:
    kill_when(start(tmp_path, large), large, 4)
    done = copied(large)
    work = Target(large.target).work
    kept = {name: (work / name).stat() for name in done}
    assert not large.target.exists()
    assert staging.unwhole(large.target) != []
    with (work / JOURNAL).open("a") as journal:
        journal.write('{"path": "half a li')

    status, out, err = finish(start(tmp_path, large))
    assert (status, err) == (0, "")
    assert "are there already" in out and out.splitlines()[-1] == "models=1 staged=1 unchanged=0 failed=0"
    assert tree(large.target) == tree(large.source)
    for name, before in kept.items():
        after = (large.target / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), f"{name} was copied again"
    assert staging.verify(large.target, large.source) == []
    assert finish(start(tmp_path, large))[1].splitlines()[-1] == "models=1 staged=0 unchanged=1 failed=0"


def test_killed_again_and_again(large: Model, tmp_path: Path) -> None:
    for files in (1, 3, 5, 7):
        kill_when(start(tmp_path, large), large, files)
    assert finish(start(tmp_path, large))[0] == 0
    assert tree(large.target) == tree(large.source)


def test_two_runs_at_once(large: Model, tmp_path: Path) -> None:
    first = start(tmp_path, large)
    while not copied(large):
        time.sleep(0.002)
    second = start(tmp_path, large)
    results = [finish(first), finish(second)]
    assert [status for status, _, _ in results] == [0, 0]
    assert "staged=1" in results[0][1]
    assert f"waiting for pid {first.pid} (" in results[1][1] and "sglang_pve.staging" in results[1][1]
    assert "staged already" in results[1][1]
    assert tree(large.target) == tree(large.source)


def test_removing_while_another_run_waits(large: Model, tmp_path: Path) -> None:
    first = start(tmp_path, large)
    while not copied(large):
        time.sleep(0.002)
    removing = start(tmp_path, large, options=("--remove",))
    third = start(tmp_path, large)
    assert [finish(process)[0] for process in (first, removing, third)] == [0, 0, 0]
    # Whatever order the two that waited came in, the place is either whole or gone.
    assert not large.target.exists() or staging.verify(large.target, large.source) == []


def test_the_command(model: Model, tmp_path: Path) -> None:
    status, out, _ = finish(start(tmp_path, model, options=("--check",)))
    assert (status, model.target.exists()) == (1, False)
    assert "never staged" in out
    assert finish(start(tmp_path, model))[0] == 0
    assert finish(start(tmp_path, model, options=("--check",))) == (0, "", "")
    assert finish(start(tmp_path, model, options=("--remove",))) == (0, "", "")
    assert not model.target.exists()
    assert finish(start(tmp_path)) == (0, "models=0 staged=0 unchanged=0 failed=0\n", "")


def test_a_model_that_cannot_be_staged_does_not_keep_the_others_out(model: Model, tmp_path: Path) -> None:
    lost = Model(tmp_path / "none", model.target.with_name("lost"))
    status, out, err = finish(start(tmp_path, lost, model))
    assert (status, out.splitlines()[-1]) == (1, "models=2 staged=1 unchanged=0 failed=1")
    assert err.startswith("error: ") and err.count("\n") == 1 and "checkpoint-missing" in err
    assert staging.unwhole(model.target) == []


def test_a_whole_copy_is_served_without_its_source(model: Model, tmp_path: Path) -> None:
    assert finish(start(tmp_path, model))[0] == 0
    model.source.rename(tmp_path / "away")
    assert finish(start(tmp_path, model))[1] == "models=1 staged=0 unchanged=1 failed=0\n"


@pytest.mark.parametrize("spoil", ["cut", "gone", "marker", "unfinished", "never"])
def test_only_a_whole_copy_may_be_served(model: Model, spoil: str, capsys: pytest.CaptureFixture[str]) -> None:
    staging.stage([model], print)
    target = Target(model.target)
    assert staging.main(["--whole", str(model.target)]) == 0
    shard = model.target / "model-00002-of-00003.safetensors"
    if spoil == "cut":
        os.truncate(shard, shard.stat().st_size - 1)
    elif spoil == "gone":
        shard.unlink()
    elif spoil == "marker":
        (model.target / MARKER).unlink()
    elif spoil == "unfinished":
        model.target.rename(target.work)
    else:
        staging.unstage(model.target)
    capsys.readouterr()
    assert staging.main(["--whole", str(model.target)]) == 1
    assert str(model.target) in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="it makes files that another user cannot read")
@pytest.mark.parametrize(
    ("name", "words"), [("model-00002-of-00003.safetensors", "unreadable-file"), ("notes.txt", "Permission denied")]
)
def test_a_file_that_the_container_cannot_read(name: str, words: str) -> None:
    """As in an unprivileged container whose checkpoint belongs to a user id that it does not have."""
    with tempfile.TemporaryDirectory() as place:
        model = Model(Path(place) / "source", Path(place) / "memory/m")
        make_checkpoint(model.source)
        (model.source / name).touch()
        (model.source / name).chmod(0o600)
        model.target.parent.mkdir()
        os.chown(model.target.parent, 65534, 65534)
        Path(place).chmod(0o755)
        os.chown(place, 65534, 65534)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.setuid(65534)
            try:
                staging.stage([model], lambda line: None)
            except Exception as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        told = os.read(reader, 4096).decode()
    assert words in told and name in told


@pytest.mark.parametrize(
    "config",
    [
        None,
        "no json",
        "[]",
        '{"schema": 1}',
        '{"schema": 2, "models": []}',
        '{"schema": 1, "models": [{"source": "/a"}]}',
        '{"schema": 1, "models": [{"source": "a", "target": "/b"}]}',
    ],
)
def test_a_config_that_cannot_be_used(tmp_path: Path, config: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.json"
    if config is not None:
        path.write_text(config)
    assert staging.main(["--config", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
