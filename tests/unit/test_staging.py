"""Staging with real files: whole copies, killed runs, full memory, strangers' files, two runs at once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from make_safetensors import make_checkpoint, tree, write_safetensors
from sglang_pve import checkpoint, copying, room, staging
from sglang_pve.hold import RefusedError
from sglang_pve.staged import JOURNAL, MARKER, StagingError, Target
from sglang_pve.staging import Model

ROOT = Path(__file__).parents[2]
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Model:
    make_checkpoint(tmp_path / "source")
    return Model(tmp_path / "source", tmp_path / "shm/sglang/model é")


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def stage(*models: Model) -> tuple[list[Model], list[str]]:
    said: list[str] = []
    return staging.stage(models, said.append), said


def test_a_copy_is_whole_and_readable(model: Model) -> None:
    (model.source / "sub").mkdir()
    (model.source / "sub/README").write_text("x")
    (model.source / ".git/lfs").mkdir(parents=True)
    (model.source / ".git/lfs/weights").write_text("twice")
    old = os.umask(0o077)
    try:
        changed, said = stage(model)
    finally:
        os.umask(old)
    assert changed == [model]
    assert tree(model.target) == {name: data for name, data in tree(model.source).items() if ".git" not in name}
    marker = json.loads((model.target / MARKER).read_text())
    assert (marker["schema"], marker["source"]) == (1, str(model.source))
    assert marker["digest"] == checkpoint.inspect(str(model.source))["digest"]
    assert {file["path"]: file["sha256"] for file in marker["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in tree(model.target).items()
    }
    for path in [model.target, model.target.parent, *model.target.rglob("*")]:
        assert path.stat().st_mode & 0o7777 == (0o755 if path.is_dir() else 0o644), path
        assert path.stat().st_uid == os.geteuid()
    assert "staged, 100 %" in said[-1]


def test_a_second_run_does_nothing(model: Model) -> None:
    stage(model)
    before = {path: path.stat().st_mtime_ns for path in [model.target, *model.target.rglob("*")]}
    assert stage(model) == ([], [f"{model.target}: staged already"])
    assert {path: path.stat().st_mtime_ns for path in [model.target, *model.target.rglob("*")]} == before
    assert staging.verify(model.target, model.source) == []


def test_links_become_files(model: Model, tmp_path: Path) -> None:
    (model.source / SHARD).rename(tmp_path / "blob")
    (model.source / SHARD).symlink_to(tmp_path / "blob")
    (model.source / "README").symlink_to("nothing")
    stage(model)
    assert not (model.target / SHARD).is_symlink()
    assert (model.target / SHARD).read_bytes() == (tmp_path / "blob").read_bytes()
    assert not (model.target / "README").exists()
    assert stage(model)[0] == []


def test_a_file_that_was_only_begun_is_ours(model: Model) -> None:
    stage(model)
    work = Target(model.target).work
    model.target.rename(work)
    (work / MARKER).unlink()
    (work / JOURNAL).write_text(json.dumps({"path": SHARD}) + "\n")
    for name in tree(work):
        if name != SHARD:
            (work / name).unlink()
    (work / f".{SHARD}.sglang-part").write_text("half")
    (work / f"{MARKER}.new").write_text("half")
    stage(model)
    assert tree(model.target).keys() - {f"{MARKER}.new"} == tree(model.source).keys()
    assert staging.unstage(model.target) == []
    assert list(model.target.parent.iterdir()) == []


def test_a_copy_has_its_name_only_while_it_is_whole(model: Model) -> None:
    seen = []

    def look(line: str) -> None:
        if "copying" in line:
            seen.append(model.target.exists())

    staging.stage([model], look)
    os.truncate(model.target / SHARD, 10)
    staging.stage([model], look)
    assert seen == [False, True]
    (model.source / SHARD).unlink()
    before = tree(model.target)
    with pytest.raises(StagingError, match="shard-missing"):
        stage(model)
    assert tree(model.target) == before, "a source that is broken took the whole copy away"


@pytest.mark.parametrize("spoil", ["marker", "file gone", "file cut", "source"])
def test_whatever_makes_a_copy_unwhole_is_seen_and_mended(model: Model, spoil: str) -> None:
    stage(model)
    others = {path.name: path.stat().st_ino for path in model.target.glob("*.safetensors") if path.name != SHARD}
    if spoil == "marker":
        (model.target / MARKER).write_text('{"schema": 1')
    elif spoil == "file gone":
        (model.target / SHARD).unlink()
    elif spoil == "file cut":
        os.truncate(model.target / SHARD, 10)
    else:
        # Same size and structure: only the time tells.
        info = (model.source / SHARD).stat()
        data = bytearray((model.source / SHARD).read_bytes())
        data[-1] ^= 1
        (model.source / SHARD).write_bytes(data)
        os.utime(model.source / SHARD, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    assert staging.verify(model.target, model.source) != []
    assert stage(model)[0] == [model]
    assert tree(model.target) == tree(model.source)
    assert {name: (model.target / name).stat().st_ino for name in others} == others


def test_files_that_left_the_source_leave_the_copy(model: Model) -> None:
    (model.source / "note").write_text("x")
    stage(model)
    (model.source / "note").unlink()
    assert any("note" in problem for problem in staging.verify(model.target, model.source))
    stage(model)
    assert tree(model.target) == tree(model.source)


def test_a_broken_source_is_refused_before_copying(model: Model) -> None:
    os.truncate(model.source / SHARD, 500)
    with pytest.raises(StagingError, match="shard-truncated"):
        stage(model)
    assert tree(model.target) == {}


@pytest.mark.parametrize("name", ["mine.txt", SHARD, "sub/mine", "config.json"])
def test_a_foreign_file_is_named_and_left(model: Model, name: str) -> None:
    (model.target / name).parent.mkdir(parents=True)
    (model.target / name).write_text("precious")
    with pytest.raises(StagingError, match=name):
        stage(model)
    assert tree(model.target) == {name: b"precious"}


def test_a_foreign_link_is_not_followed(model: Model, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    model.target.mkdir(parents=True)
    (model.target / "sub").symlink_to(tmp_path / "elsewhere")
    (model.source / "sub").mkdir()
    (model.source / "sub/file").write_text("x")
    with pytest.raises(StagingError, match="sub"):
        stage(model)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_target_that_is_no_directory_of_ours(model: Model, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for kind in ("file", "link"):
        target = tmp_path / kind
        target.write_text("x") if kind == "file" else target.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StagingError, match="no directory"):
            stage(Model(model.source, target))
    with pytest.raises(RefusedError, match="no directory"):
        stage(Model(model.source, tmp_path / "file/m"))
    if os.geteuid() == 0:
        for stranger in (model.target, model.target.parent):
            model.target.mkdir(parents=True, exist_ok=True)
            os.chown(stranger, 54321, 54321)
            with pytest.raises(RefusedError, match="belongs to user id 54321"):
                stage(model)
            os.chown(stranger, 0, 0)


def test_places_that_lie_in_each_other(model: Model, tmp_path: Path) -> None:
    for models in (
        [Model(model.source, model.source)],
        [Model(model.source, model.source / "in")],
        [Model(model.source, tmp_path)],
        [model, model],
        [model, Model(model.source, model.target / "in")],
    ):
        with pytest.raises(StagingError, match="lie in each other"):
            stage(*models)


def test_unstage_removes_only_what_it_made(model: Model) -> None:
    (model.source / "sub").mkdir()
    (model.source / "sub/file").write_text("x")
    stage(model)
    (model.target / "mine").write_text("precious")
    assert staging.unstage(model.target) == ["mine"]
    assert tree(model.target) == {"mine": b"precious"}
    assert sorted(path.name for path in model.target.iterdir()) == ["mine"]
    (model.target / "mine").unlink()
    stage(model)
    assert staging.unstage(model.target) == []
    assert not model.target.exists() and tree(model.source) != {}
    assert staging.unstage(model.target) == []


def test_a_journal_cannot_name_a_file_outside(model: Model, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    model.target.mkdir(parents=True)
    rows = [{"path": "../../../precious"}, {"path": str(tmp_path / "precious")}, {"path": 7}, 7]
    (model.target / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in rows))
    staging.unstage(model.target)
    assert (tmp_path / "precious").exists()


def test_what_a_real_tmpfs_says_of_itself(small_tmpfs: Path) -> None:
    assert room.in_memory(small_tmpfs / "not/yet/there")
    assert not room.in_memory(Path("/proc"))
    free = room.free_bytes(small_tmpfs / "not/yet/there")
    assert free and 7 << 20 < free <= 8 << 20
    subprocess.run(["mount", "-o", "remount,size=0", str(small_tmpfs)], check=True)
    assert room.free_bytes(small_tmpfs) is None


def test_what_cannot_fit_is_refused_with_the_sum(model: Model, small_tmpfs: Path) -> None:
    make_checkpoint(model.source, width=1024)
    with pytest.raises(StagingError) as caught:
        stage(Model(model.source, small_tmpfs / "m"))
    assert "too few" in str(caught.value) and "nothing was copied" in str(caught.value)
    assert tree(small_tmpfs) == {}


def test_two_that_fit_alone_and_not_together(model: Model, small_tmpfs: Path) -> None:
    make_checkpoint(model.source, width=300)
    assert checkpoint.inspect(str(model.source))["file_bytes"] * 2 > 8 << 20
    both = [Model(model.source, small_tmpfs / name) for name in "ab"]
    with pytest.raises(StagingError, match="too few"):
        stage(*both)
    assert tree(small_tmpfs) == {}
    stage(both[0])


def test_memory_that_fills_up_in_the_middle(model: Model, small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One after the other, the biggest first, so that it is known which one finds no room.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    make_checkpoint(model.source, width=300)
    target = Target(small_tmpfs / "m")

    def fill(line: str) -> None:
        if "copying" in line:
            (small_tmpfs / "filler").write_bytes(bytes(4 << 20))

    with pytest.raises(StagingError, match=r"No space left on device: '.*safetensors'"):
        staging.stage([Model(model.source, target.path)], fill)
    assert not target.path.exists()
    assert not list(target.work.glob(".*.sglang-part")), "half a file still takes memory"
    assert any(target.owned().values()), "what was copied whole is not kept"
    (small_tmpfs / "filler").unlink()
    assert stage(Model(model.source, target.path))[0]
    assert tree(target.path) == tree(model.source)


def test_a_newer_checkpoint_takes_the_older_ones_room(model: Model, small_tmpfs: Path) -> None:
    make_checkpoint(model.source, width=300)
    there = Model(model.source, small_tmpfs / "m")
    stage(there)
    for path in model.source.glob("*.safetensors"):
        os.utime(path)
    assert stage(there)[0] == [there]
    assert tree(there.target) == tree(model.source)


@pytest.mark.parametrize("how", ["written", "written, with its time set back", "replaced", "cut"])
def test_a_source_that_changes_while_it_is_read(model: Model, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The biggest file is read first, and with one core nothing else is.
    shard = model.source / "model-00003-of-00003.safetensors"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    info = shard.stat()

    def change() -> None:
        if how == "replaced":
            shutil.copy2(shard, shard.with_name("new"))
            shard.with_name("new").replace(shard)
        elif how == "cut":
            os.truncate(shard, info.st_size - 1)
        else:
            with shard.open("r+b") as stream:
                stream.seek(-1, os.SEEK_END)
                stream.write(b"!")
        if how == "written, with its time set back":
            os.utime(shard, ns=(info.st_atime_ns, info.st_mtime_ns))

    class Watch(copying.Progress):
        def add(self, count: int) -> None:
            if shard.stat().st_ctime_ns == info.st_ctime_ns:
                change()
            super().add(count)

    monkeypatch.setattr(copying, "BLOCK", 512)
    monkeypatch.setattr(staging, "Progress", Watch)
    with pytest.raises(StagingError, match=f"{shard.name} changed while"):
        stage(model)
    assert not model.target.exists()


def test_a_source_that_changes_before_it_is_read(model: Model) -> None:
    def change(line: str) -> None:
        if "copying" in line:
            write_safetensors(model.source / SHARD, {"model.layers.2.0.weight": ("BF16", [300, 300])})

    with pytest.raises(StagingError, match="changed while"):
        staging.stage([model], change)
    assert not model.target.exists()


def test_two_thousand_files(model: Model) -> None:
    (model.source / "many files ü").mkdir()
    for number in range(2000):
        (model.source / f"many files ü/{number} of 2000.txt").write_text(str(number))
    stage(model)
    assert tree(model.target) == tree(model.source)
    assert stage(model) == ([], [f"{model.target}: staged already"])
    assert staging.unstage(model.target) == [] and not model.target.exists()


def test_a_look_refuses_for_the_same_reasons_and_writes_nothing(model: Model, tmp_path: Path) -> None:
    assert staging.stage([model], print, dry_run=True) == [model]
    assert not model.target.parent.exists()
    stage(model)
    assert staging.stage([model], print, dry_run=True) == []
    os.truncate(model.source / SHARD, 500)
    with pytest.raises(StagingError, match="shard-truncated"):
        staging.stage([model], print, dry_run=True)


def test_progress_is_told_now_and_then(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PROGRESS_SECONDS", 0.0)
    lines = stage(model)[1]
    assert any("% " in line and "GiB/s" in line for line in lines[1:-1])
    monkeypatch.setattr(copying, "PROGRESS_SECONDS", 1000.0)
    staging.unstage(model.target)
    assert len(stage(model)[1]) == 2


def test_a_source_that_is_gone_is_told_as_that(model: Model) -> None:
    stage(model)
    model.source.rename(model.source.with_name("away"))
    (problem,) = staging.verify(model.target, model.source)
    assert "cannot be listed" in problem
