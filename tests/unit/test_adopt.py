"""Taking over what somebody runs by hand: exactly that process, bounded, and back as it was."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_pve import adopt, foreign, host, lock, relaunch

from tests.unit.hand_kit import Hand, running, up

CARDS = [{"index": 0, "uuid": "GPU-0abc"}]


def seen(hand: Hand) -> dict[str, Any]:
    found = {one["pid"]: one for one in foreign.read(CARDS, host.listeners(), [])}
    return found[hand.pid]


def ended(pid: int, hand: Hand) -> bool:
    return not adopt.alive({pid: lock.process_started(pid)})


def test_a_signal_reaches_only_the_process_that_was_meant(tmp_path: Path) -> None:
    with running(tmp_path) as hand:
        assert not adopt.signal_exactly(hand.pid, "1", signal.SIGKILL)
        assert not ended(hand.pid, hand)
        assert adopt.signal_exactly(hand.pid, hand.started, signal.SIGKILL)
        os.waitpid(hand.pid, 0)
        assert not adopt.signal_exactly(hand.pid, "1", signal.SIGKILL)


def test_a_stop_ends_the_whole_tree(tmp_path: Path) -> None:
    with running(tmp_path) as hand:
        adopt.stop(seen(hand), timeout_s=20, kill=False)
        assert ended(hand.pid, hand) and ended(hand.child, hand)


def test_a_pid_that_was_given_to_another_process_is_left_alone(tmp_path: Path) -> None:
    with running(tmp_path) as hand:
        with pytest.raises(adopt.AdoptError, match="is not the process any more that was shown"):
            adopt.stop({**seen(hand), "started": "1"}, timeout_s=20, kill=True)
        assert not ended(hand.pid, hand)


def test_what_still_drains_is_killed_only_where_that_was_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, DRAIN_SECONDS="600") as hand:
        with pytest.raises(adopt.AdoptError, match=f"pid {hand.pid}, .*did not end within 1 s.*sglang_adopt_kill=true"):
            adopt.stop(seen(hand), timeout_s=1, kill=False)
        assert not ended(hand.pid, hand)
        adopt.stop(seen(hand), timeout_s=1, kill=True)
        assert ended(hand.pid, hand) and ended(hand.child, hand)


def test_the_note_is_for_root_alone_and_tells_no_secret(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with running(tmp_path, "--api-key", "hunter2", HF_TOKEN="hunter3") as hand:
        note = adopt.write_note("gpu0", seen(hand), notes)
    assert (notes.stat().st_mode & 0o777, (notes / "gpu0").stat().st_mode & 0o777) == (0o700, 0o600)
    assert note["process"]["environ"]["HF_TOKEN"] == "hunter3"
    assert adopt.read_note("gpu0", notes) == note
    assert list(adopt.unfinished(notes)) == ["gpu0"]
    assert "hunter" not in json.dumps(adopt.unfinished(notes)) + adopt.what_to_run(note)
    assert adopt.forget("gpu0", notes) and not adopt.forget("gpu0", notes)
    assert adopt.unfinished(notes) == adopt.unfinished(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2, "was": {"pid": 1}}', '{"schema": 1}'])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu0").write_text(text)
    assert adopt.read_note("gpu0", tmp_path) is None


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Processes to end, with all of their session."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_process_comes_back_with_all_that_it_had(tmp_path: Path, started: list[int]) -> None:
    with running(tmp_path, "--api-key", "hunter2", HF_TOKEN="hunter3") as hand:
        before = relaunch.describe(hand.pid)
    started.append(relaunch.start_again(before))
    said = up(hand.log, started[0], count=2)
    assert said[3:] == [str(tmp_path), "hunter3"]
    after = relaunch.describe(started[0])
    assert {**after, "why_not": ""} == {**before, "why_not": ""}


def test_output_that_goes_elsewhere_now_is_not_followed(tmp_path: Path) -> None:
    with running(tmp_path) as hand:
        before = relaunch.describe(hand.pid)
    victim = tmp_path / "victim"
    victim.write_text("as it was\n")
    hand.log.rename(tmp_path / "rotated")
    hand.log.symlink_to(victim)
    with pytest.raises(relaunch.RelaunchError, match="could not be started again"):
        relaunch.start_again(before)
    hand.log.unlink()
    hand.log.write_text("")
    with pytest.raises(relaunch.RelaunchError, match="is another file now"):
        relaunch.start_again(before)
    assert victim.read_text() == "as it was\n"


def test_what_cannot_be_the_same_again_is_said(tmp_path: Path) -> None:
    inner, outer = pty.openpty()
    log = (tmp_path / "log").open("w")
    copy = tmp_path / "python"
    copy.symlink_to("/bin/sleep")
    sleepers = {
        "it ran in a terminal": subprocess.Popen(["sleep", "600"], stdout=outer, stderr=outer),
        "its output went to pipe:": subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, stderr=log),
        f"it was started by pid {os.getpid()} (": subprocess.Popen(["sleep", "600"], stdout=log, stderr=log),
        "its program is not at its old place": subprocess.Popen([str(copy), "600"], stdout=log, stderr=log),
    }
    copy.unlink()
    try:
        for expected, sleeper in sleepers.items():
            assert relaunch.describe(sleeper.pid)["why_not"].startswith(expected)
    finally:
        for sleeper in sleepers.values():
            sleeper.kill()
            sleeper.communicate()
        log.close()
        os.close(inner)
        os.close(outer)


def test_who_has_a_process_by_hand_back_is_told_what_to_run(tmp_path: Path) -> None:
    with running(tmp_path, "--api-key", "hunter2", CUDA_VISIBLE_DEVICES="0") as hand:
        note = adopt.write_note("gpu0", seen(hand), tmp_path / "notes")
        serves, said = adopt.give_back(note, 1)
        assert not serves and "still finishes its requests" in said
    serves, said = adopt.give_back(note, 1)
    assert not serves
    assert f"since it was started by pid {os.getpid()}" in said
    assert f"cd {tmp_path} && CUDA_VISIBLE_DEVICES=0 " in said and "--api-key ***" in said


def test_nothing_to_take_is_said(tmp_path: Path) -> None:
    with pytest.raises(adopt.AdoptError, match="has no server to take over any more"):
        adopt.take(7, {}, 1, False, tmp_path)
    with pytest.raises(adopt.AdoptError, match="pid 1 is not the server on GPU 7 any more"):
        adopt.take(7, {"pid": 1, "started": "1"}, 1, False, tmp_path)
