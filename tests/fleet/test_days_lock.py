"""One run at a time changes a container: what a second is told, and what becomes of the lock of one that is gone."""

from __future__ import annotations

import getpass
import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fleet_kit import Fleet, changes, said
from sglang_pve import lock

pytestmark = pytest.mark.container

NEW = {"sglang_flags": {"max-running-requests": 128}}
FREE = f"test ! -e {lock.PATH}"


@pytest.fixture(autouse=True)
def unlocked(days: Fleet) -> Iterator[None]:
    """Whatever a test comes to, no lock is left for the others."""
    yield
    days.inside(f"rm -f {lock.PATH}")


def hold(fleet: Fleet, owner: dict[str, Any], left_s: float = 600) -> None:
    """Let somebody have the container's lock for two minutes now, as a step of a run writes it."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    content = {"schema": lock.SCHEMA, "owner": owner, "step": "Rest", "taken": now - 120, "expires": now + left_s}
    fleet.inside(f"mkdir -p {lock.PATH.parent} && echo {shlex.quote(json.dumps(content))} >{lock.PATH}")


def test_run_beside_another_is_refused_and_takes_over_when_that_is_dead(days: Fleet) -> None:
    old = days.releases()
    with days.started(**NEW) as running:
        running.wait_for("PLAY [Rest]")
        running.pause()
        holder = f"(pid {running.tool.pid}) has been changing this container with site.yml since 20"
        days.refused(holder, "now at step ", "its lock runs out in", "Wait for it, or end that run")
        days.refused(holder, playbook="drain", sglang_drain_all=True, limit=days.host(0))
        report = days.status(1)
        assert holder in report["containers"][0]["lock"]
        canary = report["servers"][0]
        assert canary["release"] != old["gpu0"] == canary["verified"]
        assert (
            f"{canary['server']} runs {canary['release']}, last verified was {old['gpu0']}: a deployment"
            in " ".join(report["said"])
        )
        running.kill()
    done = days.good_run()
    assert f"took over the lock of {getpass.getuser()}@" in said(done)
    assert f" (pid {running.tool.pid}, site.yml, step " in said(done)
    assert days.releases() == old
    days.inside(FREE)


def test_of_two_runs_that_start_together_one_changes_the_container(days: Fleet) -> None:
    before = days.pids()
    with days.started() as first, days.started() as second:
        codes = [run.tool.wait() for run in (first, second)]
    assert sorted(codes) == [0, 2]
    refused = (first, second)[codes.index(2)].log.read_text()
    winner = (first, second)[codes.index(0)].tool.pid
    assert f"(pid {winner}) has been changing this container" in " ".join(refused.split())
    assert days.pids() == before
    days.inside(FREE)


def test_lock_of_another_user_of_this_machine_holds_as_long_as_its_run_lives(days: Fleet) -> None:
    with subprocess.Popen(["sleep", "600"], user="nobody") as sleeper:
        hold(days, {**lock.owner_of(sleeper.pid, "rollback.yml"), "user": "nobody"})
        days.refused(f"nobody@{lock.owner_of(1, '')['host']} (pid {sleeper.pid})", "rollback.yml", playbook="restart")
        sleeper.kill()
    done = days.run("start")
    assert done.returncode == 0, done.stdout
    assert "took over the lock of nobody@" in said(done)
    assert changes(done) == 0
    days.inside(FREE)


def test_lock_of_another_machine_holds_until_it_runs_out(days: Fleet) -> None:
    owner = {**lock.owner_of(1, "site.yml"), "user": "ada", "host": "elsewhere", "machine": "elsewhere", "pid": 4711}
    hold(days, owner)
    words = "ada@elsewhere (pid 4711)", "runs out in 10 minutes", f"if it is gone already, remove {lock.PATH}"
    days.refused(*words, playbook="stop")
    days.refused(*words, playbook="rollback", sglang_rollback_to=days.releases()["gpu0"])
    hold(days, owner, left_s=-1)
    done = days.run("start")
    assert done.returncode == 0, done.stdout
    assert "took over the lock of ada@elsewhere" in said(done)
