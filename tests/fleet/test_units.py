"""What systemd does with a server: restarts that end, a stop that drains and is bounded, and nothing left behind."""

from __future__ import annotations

import http.client
import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet_kit import GPUS, SETTINGS, Fleet, wait

pytestmark = pytest.mark.container

# The engine says this once, when it starts.
BEGIN = "the lab's stand-in for SGLang"


def processes(fleet: Fleet, index: int) -> str:
    """The processes of a server's control group, as words."""
    group = fleet.unit(index)["ControlGroup"]
    return fleet.inside(f"grep --files-with-matches --fixed-strings {group} /proc/[0-9]*/cgroup | cut -d/ -f3 | xargs")


def all_gone(fleet: Fleet, pids: str) -> bool:
    return fleet.attempt(f"for pid in {pids}; do [ ! -e /proc/$pid ] || exit 1; done").returncode == 0


def test_killed_scheduler_makes_the_unit_restart(fleet: Fleet) -> None:
    fleet.inside("systemctl reset-failed sglang@1")
    before = fleet.unit(1)
    fleet.inside(f"kill -9 $(pgrep --parent {before['MainPID']} --full sglang_lab_scheduler)")
    wait(lambda: fleet.unit(1)["MainPID"] not in ("0", before["MainPID"]), "it is started again")
    wait(lambda: fleet.unit(1)["ActiveState"] == "active" and fleet.healthy(1), "it serves again")
    assert int(fleet.unit(1)["NRestarts"]) == int(before["NRestarts"]) + 1
    assert fleet.complete(1, 5)["usage"]["completion_tokens"] == 5


def test_stop_lets_a_request_finish_within_bounds_and_leaves_no_process(fleet: Fleet, pool: ThreadPoolExecutor) -> None:
    asked, pids = fleet.ask(pool, 2, 3000), processes(fleet, 2)
    assert len(pids.split()) >= 2
    fleet.inside("systemctl stop sglang@2")
    assert asked.result()["usage"]["completion_tokens"] == 3000
    unit = fleet.unit(2)
    assert (unit["ActiveState"], unit["Result"]) == ("inactive", "success")
    assert all_gone(fleet, pids)

    fleet.inside("systemctl start sglang@2")
    asked, pids = fleet.ask(pool, 2, 8000), processes(fleet, 2)
    fleet.inside("systemctl stop sglang@2")
    with pytest.raises((OSError, http.client.HTTPException)):
        asked.result()
    unit = fleet.unit(2)
    assert (unit["ActiveState"], unit["Result"]) == ("failed", "timeout")
    assert all_gone(fleet, pids)

    fleet.inside("systemctl reset-failed sglang@2 && systemctl start sglang@2")
    assert fleet.healthy(2)


def test_failing_starts_end_and_a_run_brings_the_servers_back(fleet: Fleet) -> None:
    """One fails 2 s after its start, one 30 s after it was ready, one hangs until its start is given up."""
    with (
        fleet.fault("gpu0", stage="weights", kind="exit", seconds=2),
        fleet.fault("gpu1", kind="die-after", seconds=30),
        fleet.fault("gpu2", stage="graphs", kind="hang"),
    ):
        since = fleet.inside("date '+@%s'")
        fleet.inside("systemctl reset-failed 'sglang@*' && systemctl restart --no-block sglang@0 sglang@1 sglang@2")
        wait(lambda: all(fleet.unit(index)["ActiveState"] == "failed" for index in GPUS), "all units have failed", 150)
        count = f"--since {since} | grep --count --fixed-strings {shlex.quote(BEGIN)}"
        starts = [fleet.inside(f"journalctl --unit sglang@{index} {count}") for index in GPUS]
        assert starts == [str(SETTINGS["sglang_start_limit_burst"])] * 3
        assert fleet.pids() == {"gpu0": "0", "gpu1": "0", "gpu2": "0"}
    fleet.good_run()
    assert all(fleet.healthy(index) for index in GPUS)
