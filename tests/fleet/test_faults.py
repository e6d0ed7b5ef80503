"""Faults by name on one deployed fleet: none leaves fewer servers serving, unless that server itself is the fault.

The fleet serves the release `old`. `new` was verified before it and differs in one flag. Going from one to the other is
a rollback, which walks through the same gate as a deployment, in less time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from fleet_kit import GPUS, NAMES, Fleet, said, wait

pytestmark = pytest.mark.container

HISTORY = "/var/lib/sglang/history.jsonl"
# What the engine does wrong, and a word of what the run must say about it.
STARTS = {
    "dies-at-import": ({"stage": "import", "kind": "exit"}, "common_ops"),
    "dies-at-arguments": ({"stage": "args", "kind": "exit"}, "No accelerator"),
    "dies-at-the-card": ({"stage": "distributed", "kind": "exit"}, "sm75"),
    "dies-at-the-weights": ({"stage": "weights", "kind": "exit"}, "Cannot find any model weights"),
    "dies-at-the-pools": ({"stage": "pools", "kind": "exit"}, "Not enough memory"),
    "dies-at-the-graphs": ({"stage": "graphs", "kind": "exit"}, "CUDA out of memory"),
    "dies-at-the-warmup": ({"stage": "warmup", "kind": "exit"}, "Response [500]"),
    "dies-when-ready": ({"stage": "ready", "kind": "exit"}, "failed and is restarted"),
    "dies-soon-after": ({"kind": "decode-memory", "seconds": 0.2}, "sglang@0.service"),
    "hangs-at-the-graphs": ({"stage": "graphs", "kind": "hang"}, "sglang@0.service"),
    "hangs-when-ready": ({"stage": "ready", "kind": "hang"}, ""),
    "answers-garbage": ({"kind": "garbage"}, "wrong answer"),
    "has-other-pools": ({"kind": "wrong-pools"}, "the pools differ from the plan"),
    "is-killed-for-memory": ({"kind": "oom-killed"}, "exit code: -9"),
    "lacks-nvcc": ({"kind": "nvcc"}, "Could not find nvcc"),
    "lacks-a-kernel": ({"kind": "no-kernel-image"}, "no kernel image"),
}
# What the diagnosis of some of them says.
CAUSES = {
    "dies-at-the-pools": "the pools that the flags ask for do not fit on the card",
    "dies-at-the-graphs": "the card has not the memory that this plan needs while it starts",
    "dies-soon-after": "a pool of the engine ran out in service",
    "is-killed-for-memory": "the kernel ended it because the container's main memory ran out",
    "lacks-nvcc": "no CUDA compiler where the server looks for one",
    "lacks-a-kernel": "a kernel library has no code for this card",
}
LISTEN = "import socket, time; held = socket.create_server(('0.0.0.0', 30001)); time.sleep(600)"


class Two:
    """The ids of the two releases."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        fleet.good_run(sglang_flags={"max-running-requests": 128})
        self.new = fleet.releases()["gpu0"]
        fleet.good_run()
        self.old = fleet.releases()["gpu0"]
        assert self.new != self.old

    def well(self) -> bool:
        """All three serve the old release."""
        return self.fleet.releases() == dict.fromkeys(NAMES, self.old) and all(map(self.fleet.healthy, GPUS))

    def to_new(self, *options: str, code: int = 0, **extra: object) -> str:
        done = self.fleet.run("rollback", *options, sglang_rollback_to=self.new, **extra)
        assert done.returncode == code, done.stdout
        return said(done)

    def to_old(self, **extra: object) -> str:
        done = self.fleet.run("rollback", sglang_rollback_to=self.old, **extra)
        assert done.returncode == 0, done.stdout
        return said(done)


@pytest.fixture(scope="module")
def two(fleet: Fleet) -> Two:
    return Two(fleet)


@pytest.fixture(autouse=True)
def as_before(two: Two) -> Iterator[None]:
    assert two.well()
    yield
    if not two.well():
        two.to_old(sglang_rollback_fast=True)
        two.fleet.run("start")
    assert two.well(), "the fault left fewer servers serving than before"


@pytest.mark.parametrize("name", STARTS)
def test_canary(fleet: Fleet, two: Two, name: str) -> None:
    fault, words = STARTS[name]
    with fleet.fault("gpu0", release=two.new, **fault):
        text = two.to_new("--limit", fleet.host(0), code=2)
    assert words in text
    assert CAUSES.get(name, "") in text
    assert f"Release {two.old} serves again." in text
    history = [json.loads(line) for line in fleet.inside(f"cat {HISTORY}").splitlines()]
    failed = [entry for entry in history if entry.get("event") == "failed"]
    assert CAUSES.get(name, "") in failed[-1]["reason"], "the history keeps the diagnosis"
    assert two.well()


def test_last_server_alone_fails(fleet: Fleet, two: Two) -> None:
    with fleet.fault("gpu2", stage="weights", kind="exit", release=two.new):
        two.to_new(code=2)
    assert fleet.releases() == {"gpu0": two.new, "gpu1": two.new, "gpu2": two.old}
    assert all(map(fleet.healthy, GPUS))


def test_journal_without_room(fleet: Fleet, two: Two) -> None:
    before = fleet.pids()
    place = "/run/systemd/system/sglang@0.service.d"
    text = r"[Service]\nLogRateLimitIntervalSec=1h\nLogRateLimitBurst=1\n"
    fleet.inside(f"mkdir -p {place} && printf '{text}' >{place}/few.conf && systemctl daemon-reload")
    try:
        with fleet.fault("gpu0", stage="weights", kind="exit", release=two.new):
            assert "sglang@0.service failed and is restarted by systemd" in two.to_new(code=2)
    finally:
        fleet.inside(f"rm -r {place} && systemctl daemon-reload")
    assert {**fleet.pids(), "gpu0": ""} == {**before, "gpu0": ""}, "the canary's failure touched another server"
    assert two.well()


def test_fast_rollback_takes_all_at_once(fleet: Fleet, two: Two) -> None:
    done = two.to_new(sglang_rollback_fast=True)
    assert re.search(r"PLAY \[Canary\] \*+ skipping: no hosts matched", done), done
    assert fleet.releases() == dict.fromkeys(NAMES, two.new)


def test_release_that_cannot_be_read_or_started_is_left(fleet: Fleet, two: Two) -> None:
    two.to_new()
    broken = f"/opt/sglang/releases/{two.new}"
    fleet.inside(f"cp -a {broken} /run/kept && echo '[]' >{broken}/manifest.json && rm {broken}/run")
    fleet.attempt("systemctl restart --no-block sglang@0 sglang@1 sglang@2")
    try:
        done = fleet.run("rollback", sglang_rollback_fast=True)
        assert done.returncode == 0, done.stdout
        assert two.well()
    finally:
        fleet.inside(f"rm -r {broken} && mv /run/kept {broken}")


def test_disk_without_a_byte(fleet: Fleet, two: Two) -> None:
    two.to_new()
    for place in ("/opt/sglang", "/var/lib/sglang"):
        assert fleet.inside(f"stat --format %s {place}/.reserve") == "1048576"
        fleet.attempt(f"cat /dev/zero >{place}/filler 2>/dev/null")
        assert fleet.attempt(f"echo more >{place}/more && sync").returncode != 0
    try:
        done = fleet.run("rollback")
        assert done.returncode == 0, done.stdout
        assert two.well()
        assert fleet.state()["history"]["line"][-1] == dict.fromkeys(NAMES, two.old)
        assert fleet.state()["history"]["broken_lines"] == 0
    finally:
        fleet.inside("rm -f /opt/sglang/filler /var/lib/sglang/filler /opt/sglang/more /var/lib/sglang/more")


def test_rollback_that_was_killed_goes_on(fleet: Fleet, two: Two) -> None:
    two.to_new()
    with fleet.started(playbook="rollback") as running:
        running.wait_for("PLAY [Rest]")
        running.kill()
    assert fleet.releases() == {"gpu0": two.old, "gpu1": two.new, "gpu2": two.new}
    done = fleet.run("rollback")
    assert done.returncode == 0, done.stdout
    assert two.well()


def test_second_run_is_refused(fleet: Fleet, two: Two) -> None:
    with fleet.started(playbook="rollback", sglang_rollback_to=two.new) as running:
        running.wait_for("PLAY [Canary]")
        running.pause()
        before = fleet.pids()
        done = fleet.run("rollback")
        assert done.returncode == 2, done.stdout
        assert "has been changing this container with" in said(done)
        assert {**fleet.pids(), "gpu0": ""} == {**before, "gpu0": ""}


def test_history_of_another_clock(fleet: Fleet, two: Two) -> None:
    entry = {"schema": 1, "time": "2046-01-01T00:00:00Z", "event": "failed", "server": "gpu1"}
    fleet.inside(f"echo '{json.dumps(entry)}' >>{HISTORY}")
    try:
        assert "clock went back: the history knows 2046-01-01" in two.to_new("--limit", fleet.host(0))
        two.to_old()
    finally:
        fleet.inside(f"sed -i /2046-01-01/d {HISTORY}")


def test_model_that_is_gone(fleet: Fleet, two: Two) -> None:
    fleet.inside("mv /models/qwen3.6-lab /models/away")
    try:
        fleet.refused("checkpoint-missing /models/qwen3.6-lab")
        assert two.well()
    finally:
        fleet.inside("mv /models/away /models/qwen3.6-lab")


def test_release_that_was_altered(fleet: Fleet, two: Two) -> None:
    run = f"/opt/sglang/releases/{two.new}/run"
    fleet.inside(f"cp -p {run} /run/kept && echo '# better' >>{run}")
    try:
        fleet.refused("was altered on disk", playbook="rollback", sglang_rollback_to=two.new)
    finally:
        fleet.inside(f"cp -p /run/kept {run}")


def test_stack_that_was_altered(fleet: Fleet, two: Two) -> None:
    found = "find /opt/sglang/stacks/*/venv/lib/python*/site-packages/sglang -name __init__.py | head -1"
    file = fleet.inside(found)
    fleet.inside(f"cp -p {file} /run/kept && echo '# better' >>{file}")
    words = "was altered on disk after it was installed: venv/lib/python"
    try:
        fleet.refused(words)
        fleet.refused(words, playbook="rollback", sglang_rollback_to=two.new)
        fleet.refused(words, playbook="restart", fatal=3)
        assert two.well()
    finally:
        fleet.inside(f"cp -p /run/kept {file}")


def test_node_that_goes_away_in_the_middle(fleet: Fleet, two: Two) -> None:
    with fleet.started(playbook="rollback", sglang_rollback_to=two.new) as running:
        running.wait_for("PLAY [Rest]")
        with fleet.without_node():
            code, text = running.end()
            # 2 where others were stopped since the one that was to renew the lock was out of reach.
            assert code in (2, 4) and "UNREACHABLE" in text, text
            # Who was being switched is switched or is not; nobody is down.
            wait(lambda: all(map(fleet.healthy, GPUS)), "what was being started serves")
            assert set(fleet.releases().values()) == {two.old, two.new}
    done = fleet.run("rollback", sglang_rollback_to=two.new)
    assert done.returncode == 0, done.stdout
    assert fleet.releases() == dict.fromkeys(NAMES, two.new)


def test_port_of_somebody_else(fleet: Fleet, two: Two) -> None:
    before = fleet.pids()
    fleet.inside("systemctl stop sglang@1")
    fleet.inside(f'systemd-run --quiet --unit=listener python3 -c "{LISTEN}"')
    try:
        pid = fleet.inside("systemctl show listener --property MainPID --value")
        done = fleet.run("start")
        assert done.returncode == 2, done.stdout
        assert f"port 30001 is held by pid {pid} (listener.service)" in said(done)
        assert fleet.inside("systemctl show listener --property MainPID --value") == pid
        assert {**fleet.pids(), "gpu1": ""} == {**before, "gpu1": ""}
    finally:
        fleet.inside("systemctl stop listener")
    assert fleet.run("start").returncode == 0


def on_card(fleet: Fleet, index: int, before: str, program: str = "python3") -> str:
    """Start something that holds the card of a server as an engine does; its pid."""
    code = f"import time; held = open('/dev/nvidia{index}', 'rb'); time.sleep(600)"
    uuid = fleet.inside(f"nvidia-smi --id={index} --query-gpu=uuid --format=csv,noheader")
    fleet.inside(f'export CUDA_VISIBLE_DEVICES={uuid}; {before} {program} -c "{code}" sglang_lab_scheduler')
    found = "pgrep --full 'time.sleep.600.* sglang_lab_scheduler'"
    wait(lambda: fleet.attempt(found).returncode == 0, "it runs")
    return fleet.inside(found).split()[0]


def test_card_of_somebody_else(fleet: Fleet, two: Two) -> None:
    pid = on_card(fleet, 1, "systemd-run --quiet --unit=training --setenv=CUDA_VISIBLE_DEVICES")
    before = fleet.pids()
    try:
        done = fleet.run("restart")
        assert done.returncode == 2, done.stdout
        assert f"GPU 1 is used by pid {pid}" in said(done)
        assert "this server was not touched" in said(done)
        assert fleet.pids()["gpu1"] == before["gpu1"]
        assert fleet.attempt(f"kill -0 {pid}").returncode == 0
    finally:
        fleet.inside("systemctl stop training")


def test_orphan_of_ours_is_ended(fleet: Fleet, two: Two) -> None:
    fleet.inside("systemctl stop sglang@1")
    stack = fleet.inside(f"grep -o '/opt/sglang/stacks/[^/]*' /opt/sglang/releases/{two.old}/run | head -1")
    orphan = f"SGLANG_PVE_RELEASE={two.old} setsid --fork"
    pid = on_card(fleet, 1, f"exec </dev/null >/dev/null 2>&1; {orphan}", f"{stack}/venv/bin/python")
    done = fleet.run("start")
    assert done.returncode == 0, done.stdout
    assert f"what an earlier server of ours left was ended: pid [{pid}]" in said(done)
    assert fleet.attempt(f"kill -0 {pid}").returncode != 0


def test_killed_scheduler(fleet: Fleet, two: Two) -> None:
    fleet.inside("systemctl reset-failed sglang@1")
    main = fleet.pids()["gpu1"]
    scheduler = fleet.inside(f"pgrep --parent {main} --full sglang_lab_scheduler")
    fleet.inside(f"kill -9 {scheduler}")
    wait(lambda: fleet.pids()["gpu1"] not in ("0", main) and fleet.healthy(1), "it serves again")
    assert fleet.attempt(f"kill -0 {main} || kill -0 {scheduler}").returncode != 0


def test_killed_server_leaves_no_scheduler(fleet: Fleet, two: Two) -> None:
    fleet.inside("systemctl reset-failed sglang@1")
    main = fleet.pids()["gpu1"]
    scheduler = fleet.inside(f"pgrep --parent {main} --full sglang_lab_scheduler")
    fleet.inside(f"kill -9 {main}")
    wait(lambda: fleet.pids()["gpu1"] not in ("0", main) and fleet.healthy(1), "it serves again")
    assert fleet.attempt(f"kill -0 {scheduler}").returncode != 0


def test_server_at_its_start_limit_says_why(fleet: Fleet, two: Two) -> None:
    with fleet.fault("gpu1", stage="weights", kind="exit"):
        # A server that is stopped may be "failed" for a moment before it is started.
        fleet.inside("systemctl stop sglang@1; systemctl reset-failed sglang@1; systemctl start --no-block sglang@1")
        wait(lambda: fleet.unit(1)["ActiveState"] == "failed", "it is given up", 60)
        found = fleet.status(1)
    text = " ".join(found["said"])
    assert f"{fleet.host(1)} is failed: its unit was given up" in text
    assert "Cannot find any model weights" in text
    assert fleet.run("start").returncode == 0
