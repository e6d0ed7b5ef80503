"""State on disk that was cut, edited or set back: what is wrong is said, and nothing that serves is harmed by it."""

from __future__ import annotations

import json
import shlex

import pytest
from fleet_kit import Fleet, changes, said

pytestmark = pytest.mark.container

HISTORY = "/var/lib/sglang/history.jsonl"


def test_history_with_a_last_line_cut_short(days: Fleet) -> None:
    note = "1 lines of the history cannot be read and are passed over"
    days.inside(f'printf \'{{"event": "verif\' >>{HISTORY}')
    try:
        report = days.status(0)
        assert note in report["said"][-1]
        done = days.good_run()
        assert note in said(done)
        assert changes(done) == 0
    finally:
        days.inside(f'sed -i \'/^{{"event": "verif$/d\' {HISTORY}')


def test_clock_that_went_back_changes_no_order(days: Fleet) -> None:
    # Restarts of one server, kept in the history: one with the clock ahead, one with it set right again.
    ahead = json.dumps({"event": "note", "schema": 1, "time": "2099-01-01T00:00:00Z"})
    before = days.pids()
    days.inside(f"echo {shlex.quote(ahead)} >>{HISTORY}")
    note = "clock went back: the history knows 2099-01-01T00:00:00Z, and after it 20"
    try:
        assert note in days.status(0)["said"][-1]
        done = days.good_run()
        assert note in said(done)
        assert changes(done) == 0
        done = days.refused("was never verified here", playbook="rollback", sglang_rollback_to="0123456789ab")
        assert note in said(done)
    finally:
        days.inside(f"sed -i /2099-01-01/d {HISTORY}")
    assert days.pids() == before


def test_edited_manifest_is_named_and_nothing_is_stopped_for_it(days: Fleet) -> None:
    name = days.releases()["gpu0"]
    manifest = f"/opt/sglang/releases/{name}/manifest.json"
    days.inside(f'cp -p {manifest} /run/kept && sed -i \'s/"profile": "batch"/"profile": "better"/\' {manifest}')
    altered = f"release {name} was altered on disk: its content now gives "
    try:
        report = days.status(1)
        assert report["verdict"] == "degraded"
        assert f"{days.host(2)}: {altered}" in " ".join(report["said"])
        days.refused("Nothing was touched.", altered, playbook="restart", fatal=3)
        days.refused(altered, f"remove /opt/sglang/releases/{name} and deploy again")
    finally:
        days.inside(f"cp -p /run/kept {manifest}")
    # What the message says helps: the release is written again, and those that run it are left alone.
    before = days.pids()
    days.inside(f"rm -r /opt/sglang/releases/{name}")
    assert "which is not on the container" in " ".join(days.status(1)["said"])
    days.good_run()
    assert days.pids() == before
    assert days.status(0)["verdict"] == "ready"


@pytest.mark.parametrize("playbook", ["site", "rollback"])
def test_link_that_points_nowhere_is_named_and_put_right(days: Fleet, playbook: str) -> None:
    before, release = days.pids(), days.releases()["gpu1"]
    days.inside("ln -sfn ../../releases/0123456789ab /opt/sglang/servers/gpu1/release")
    gone = "its link names release 0123456789ab, which is not on the container; deploy again with playbooks/site.yml"
    report = days.status(1)
    assert f"{days.host(1)}: {gone}" in report["said"]
    assert [row["state"] for row in report["servers"]] == ["ready"] * 3
    days.refused("Nothing was touched.", gone, playbook="restart")
    done = days.run(playbook)
    assert done.returncode == 0, done.stdout
    assert days.releases()["gpu1"] == release
    assert days.status(0)["servers"][1]["link"] == release
    after = days.pids()
    assert (after["gpu0"], after["gpu2"]) == (before["gpu0"], before["gpu2"])
