"""The lock of a container: two owners, a dead one, one that ran out, and many at once."""

import multiprocessing
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from sglang_pve import lock

ME = {"user": "a", "host": "here", "machine": "m/p", "pid": 1, "started": "5", "doing": "site.yml"}
OTHER = {"user": "b", "host": "there", "machine": "n/p", "pid": 2, "started": "6", "doing": "rollback.yml"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "lock"


def test_it_is_taken_renewed_and_given_back(path):
    assert lock.take(path, ME, 60, "Stack") is None
    first = lock.read(path)
    assert lock.take(path, ME, 600, "Rest") is None
    renewed = lock.read(path)
    assert (renewed["taken"], renewed["expires"] > first["expires"]) == (first["taken"], True)
    assert (first["step"], renewed["step"]) == ("Stack", "Rest")
    assert lock.release(path, ME)
    assert lock.read(path) is None
    assert lock.held(path) == ""


def test_another_owner_is_told_who_holds_it_and_for_how_long(path):
    lock.take(path, OTHER, 600, "Canary")
    said = r"b@there \(pid 2\) has been .* with rollback\.yml since 20\S+ \S+ UTC, now at step Canary"
    assert re.fullmatch(said, lock.held(path))
    with pytest.raises(lock.LockHeldError, match=said + "; its lock runs out in 10 minutes"):
        lock.take(path, ME, 60, "Canary")
    assert not lock.release(path, ME)
    assert lock.read(path)["owner"] == OTHER


def test_one_that_ran_out_is_taken_over_and_reported(path):
    lock.take(path, OTHER, 0, "Rest")
    assert lock.held(path) == ""
    assert lock.take(path, ME, 60, "Stack")["owner"] == OTHER
    assert lock.read(path)["owner"] == ME
    assert not lock.release(path, OTHER)


def test_that_of_an_owner_known_to_be_dead_is_taken_over(path):
    lock.take(path, OTHER, 600, "Rest")
    assert lock.take(path, ME, 60, "Stack", over=OTHER)["owner"] == OTHER


def test_another_owner_than_the_dead_one_keeps_it(path):
    lock.take(path, OTHER, 600, "Rest")
    with pytest.raises(lock.LockHeldError):
        lock.take(path, ME, 60, "Stack", over={**OTHER, "pid": 3})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "owner": {}, "expires": 9e9}'])
def test_what_is_no_lock_holds_nobody_up(path, text):
    path.parent.mkdir()
    path.write_text(text)
    assert lock.held(path) == ""
    assert lock.take(path, ME, 60, "Stack") is None
    assert lock.read(path)["owner"] == ME


def test_a_process_that_ended_is_dead_and_a_living_one_is_not():
    process = subprocess.Popen(["sleep", "60"])
    owner = lock.owner_of(process.pid, "site.yml")
    assert not lock.is_dead(owner)
    process.kill()
    process.wait()
    assert lock.is_dead(owner)
    assert not lock.is_dead({**owner, "machine": "another with the same name"})
    assert not lock.is_dead({**owner, "machine": ""})
    assert lock.is_dead({**lock.owner_of(os.getpid(), "x"), "started": "1"}), "a pid that was given away again"


def test_a_process_that_proc_hides_is_not_dead(monkeypatch):
    monkeypatch.setattr(lock, "process_started", lambda pid: "")
    assert not lock.is_dead({**ME, "machine": lock.machine(), "pid": os.getpid()})


def _compete(path, number, winners):
    try:
        lock.take(path, {**ME, "pid": number}, 60, "Stack")
    except lock.LockHeldError:
        return
    winners.append(number)


def test_of_many_at_once_one_gets_it(path):
    with multiprocessing.Manager() as manager:
        winners = manager.list()
        runs = [multiprocessing.Process(target=_compete, args=(path, number, winners)) for number in range(12)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        assert len(winners) == 1
        assert lock.read(path)["owner"]["pid"] == winners[0]


def test_times_are_those_of_the_boot_and_not_of_the_clock(path):
    lock.take(path, ME, 60, "Stack")
    assert abs(lock.read(path)["taken"] - time.clock_gettime(time.CLOCK_BOOTTIME)) < 30


def test_one_that_was_given_back_leaves_nothing_behind(path):
    lock.take(path, ME, 60, "stack")
    assert lock.release(path, ME)
    assert not path.parent.exists()
    path.parent.mkdir()
    (path.parent / "other").touch()
    lock.take(path, ME, 60, "stack")
    assert lock.release(path, ME)
    assert [left.name for left in path.parent.iterdir()] == ["other"]
