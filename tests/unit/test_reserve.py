"""A real small disk that is full, and the space that is kept for the way back."""

import errno
import json
import os
import subprocess

import pytest
from sglang_pve import history, reserve

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")


@pytest.fixture
def disk(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "disk", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def fill(place):
    with pytest.raises(OSError, match="No space"), (place / "filler").open("wb", buffering=0) as handle:
        while True:
            handle.write(b"x" * 4096)


@needs_root
def test_full_disk_takes_what_must_be_written(disk, monkeypatch):
    monkeypatch.setattr(reserve, "PLACES", (disk / ".reserve",))
    path = disk / "history.jsonl"
    reserve.keep((disk / ".reserve",))
    assert (disk / ".reserve").stat().st_size == reserve.BYTES
    fill(disk)
    written = reserve.spend(lambda: history._append(path, [{"event": "failed"}]), (disk / ".reserve",))
    assert json.loads(path.read_text()) == written[0]
    assert not (disk / ".reserve").exists()
    reserve.keep((disk / ".reserve",))
    assert not (disk / ".reserve").exists(), "there is no room for it"
    (disk / "filler").unlink()
    reserve.keep((disk / ".reserve",))
    assert (disk / ".reserve").stat().st_size == reserve.BYTES


@needs_root
def test_disk_that_stays_full_is_told_and_leaves_no_half_line(disk):
    path = disk / "history.jsonl"
    path.write_text('{"event": "verified"}\n')
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        reserve.spend(lambda: history._append(path, [{"event": "failed", "reason": "x" * 9000}]), (disk / ".reserve",))
    assert path.read_text() == '{"event": "verified"}\n'


def test_another_error_spends_nothing(tmp_path):
    (tmp_path / ".reserve").write_text("kept")

    def denied():
        raise OSError(errno.EACCES, "no")

    with pytest.raises(OSError, match="no"):
        reserve.spend(denied, (tmp_path / ".reserve",))
    assert (tmp_path / ".reserve").exists()
