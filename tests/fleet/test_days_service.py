"""start, stop, restart and logs: rolling, behind the gate, and only for those that are meant."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from collections.abc import Iterator

import pytest
from fleet_kit import MISSING_VMID, Fleet, changes, said, wait

pytestmark = pytest.mark.container


@pytest.fixture
def slow_restarts(days: Fleet) -> Iterator[None]:
    """Server 1 waits for a minute before its next attempt."""
    place = "/run/systemd/system/sglang@1.service.d"
    text = r"[Service]\nRestartSec=60\n"
    # The last name counts.
    days.inside(f"mkdir -p {place} && printf '{text}' >{place}/slow.conf && systemctl daemon-reload")
    yield
    days.inside(f"rm -r {place} && systemctl daemon-reload")


def run(fleet: Fleet, playbook: str, *options: str, **extra: int | bool) -> str:
    """Run it; it must succeed. What it said."""
    done = fleet.run(playbook, *options, **extra)
    assert done.returncode == 0, done.stdout
    return said(done)


def test_stopped_server_starts_again_as_it_was(days: Fleet) -> None:
    releases, before = days.releases(), days.pids()
    run(days, "stop", "--limit", days.host(1))
    assert days.pids() == {**before, "gpu1": "0"}
    assert days.status(1)["servers"][1]["state"] == "down"
    assert changes(days.run("stop", "--limit", days.host(1))) == 0
    run(days, "start")
    assert days.releases() == releases
    assert days.healthy(1)
    assert {**days.pids(), "gpu1": ""} == {**before, "gpu1": ""}, "those that ran were only asked"


def test_server_that_waits_for_its_next_attempt_is_stopped(days: Fleet, slow_restarts: None) -> None:
    days.inside(f"kill -9 {days.pids()['gpu1']}")
    wait(lambda: days.unit(1)["ActiveState"] == "activating", "systemd waits before it starts it again")
    assert days.status(1)["servers"][1]["state"] == "failed"
    run(days, "stop", "--limit", days.host(1))
    assert days.unit(1)["ActiveState"] in ("inactive", "failed")
    run(days, "start", "--limit", days.host(1))


def test_restart_takes_one_after_the_other_and_keeps_the_release(days: Fleet) -> None:
    releases, before = days.releases(), days.pids()
    text = run(days, "restart", sglang_rollout_serial=1)
    assert text.count("PLAY [Rest]") == 2
    after = days.pids()
    assert [name for name, pid in after.items() if pid in ("0", before[name])] == []
    assert days.releases() == releases
    assert all(days.healthy(index) for index in range(3))


def test_server_that_does_not_come_back_ends_the_restart(days: Fleet) -> None:
    before = days.pids()
    with days.fault("gpu1", stage="weights", kind="exit"):
        done = days.run("restart", sglang_rollout_serial=1)
        assert done.returncode == 2, done.stdout
        assert "Cannot find any model weights" in said(done)
        assert "There was nothing to put back." in said(done)
    after = days.pids()
    assert after["gpu0"] not in ("0", before["gpu0"])
    assert after["gpu2"] == before["gpu2"]
    assert days.healthy(0)
    assert days.healthy(2)
    run(days, "start")
    assert days.status(0)["verdict"] == "ready"


def test_container_out_of_reach_and_a_server_that_is_not_deployed(days: Fleet) -> None:
    before = days.pids()
    inventory = days.write_inventory("service", {0: {}, 1: {}, 2: {}, 5: {}}, missing_container=True)
    for playbook, there in (("stop", {}), ("start", {})):
        done = days.run(playbook, "--limit", f"{days.host(2)},{days.host(5)},ct{MISSING_VMID}", inventory=inventory)
        assert done.returncode == 4, done.stdout
        assert done.stdout.count("fatal: ") == 1
        assert f"container {MISSING_VMID} does not exist" in said(done)
        assert {**days.pids(), "gpu2": ""} == {**before, "gpu2": "", **there}
    assert "Not deployed on this container" in said(done)
    assert days.healthy(2)


def test_logs_of_one_and_of_all_since_a_time_and_so_many(days: Fleet) -> None:
    shown = days.run("logs", "--limit", days.host(1), since="-1h", lines=5).stdout.splitlines()
    assert len(shown) == 5
    assert [line for line in shown if not line.startswith(f"{days.host(1)}  20")] == []
    everyone = days.run("logs", since="-1h", lines=2).stdout.splitlines()
    assert sorted(line.split()[0] for line in everyone) == [days.host(index) for index in (0, 0, 1, 1, 2, 2)]
    now = days.inside("date '+%Y-%m-%d %H:%M:%S'")
    urllib.request.urlopen(days.url(1, "/v1/models?since"), timeout=10).close()
    recent = days.run("logs", "--limit", days.host(1), since=now).stdout
    assert '"GET /v1/models?since HTTP/1.1" 200' in recent
    assert all(re.sub(r"T", " ", line.split()[1])[:19] >= now for line in recent.splitlines())
    done = days.run("logs", "--limit", days.host(1), since="+1h")
    assert (done.returncode, done.stdout) == (0, f"{days.host(1)} has said nothing since +1h\n")
    done = days.run("logs", "--limit", days.host(1), since="yesteryear")
    assert done.returncode == 2, done.stdout
    assert "Failed to parse timestamp: yesteryear" in said(done)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_followed_logs_show_what_is_new_until_the_run_ends(days: Fleet, end: signal.Signals) -> None:
    mark = f"/v1/models?{end.name}"
    with days.started(playbook="logs", follow=True, since="-1s") as running:
        wait(lambda: len(running.workers()) == 3, "a worker for each server")
        # Nothing was said yet, and a while later something is.
        time.sleep(3)
        urllib.request.urlopen(days.url(1, mark), timeout=10).close()
        running.wait_for(mark)
        line = next(line for line in running.log.read_text().splitlines() if mark in line)
        assert line.startswith(f"{days.host(1)}  20")
        workers = running.workers()
        running.tool.send_signal(end)
        assert running.tool.wait(30) != 0
        wait(lambda: not any(worker.exists() for worker in workers), "its workers end too")
