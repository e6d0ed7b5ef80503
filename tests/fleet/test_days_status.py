"""status.yml: one verdict for people, pipes, terminals and programs, whatever the fleet is like."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from fleet_kit import MISSING_VMID, NAMES, Fleet

from tests.lab_fixture import PROJECT

pytestmark = pytest.mark.container

COLOUR = "\033["


def remote_commands(fleet: Fleet) -> int:
    """How many commands the node has logged."""
    return len((fleet.lab.dir / "node/remote-commands.log").read_text().splitlines())


def in_terminal(fleet: Fleet) -> str:
    """What status.yml prints in a terminal."""
    terminal, end = pty.openpty()
    command = fleet.command("status")
    tool = subprocess.Popen(command, cwd=PROJECT, stdout=end, stderr=end, env={**os.environ, "TERM": "xterm"})
    os.close(end)
    shown = b""
    # The last reading fails when the other end is closed.
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    assert tool.wait() == 0, shown
    return shown.decode()


def test_ready_fleet_in_a_pipe_and_in_a_terminal(days: Fleet) -> None:
    before = remote_commands(days)
    done = days.run("status")
    assert done.returncode == 0, done.stdout
    assert remote_commands(days) == before + 1, "one call reads a whole container"
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["SERVER", "GPU", "ADDRESS"]
    assert [line.split()[0] for line in lines[1:4]] == [days.host(index) for index in range(3)]
    assert lines[4:] == ["ready: 3 of 3 servers are ready"]
    assert COLOUR not in done.stdout
    shown = in_terminal(days)
    assert f"{COLOUR}32mready{COLOUR}0m: 3 of 3 servers are ready" in shown
    # Without its colours it is the same table.
    assert re.sub(r"\033\[\d+m", "", shown).splitlines()[:4] == lines[:4]


def test_json_holds_all_that_is_known_of_every_server(days: Fleet, tmp_path: Path) -> None:
    said = days.status(0)
    assert (said["verdict"], said["said"]) == ("ready", ["3 of 3 servers are ready"])
    for index, row in enumerate(said["servers"]):
        expected = {"lent": None, "release_error": None, "state": "ready", "in_inventory": True, "profile": "batch"}
        assert {key: row[key] for key in expected} == expected
        assert {key for key, value in row.items() if value is None} == {"release_error", "lent", "why"}
        assert (row["server"], row["gpu"], row["port"]) == (days.host(index), index, 30000 + index)
        assert row["release"] == row["link"] == row["verified"] == days.releases()[f"gpu{index}"]
        assert row["others"] == []
    assert {row["server"]: str(row["pid"]) for row in said["servers"]} == {
        days.host(int(name[3:])): pid for name, pid in days.pids().items()
    }
    container = said["containers"][0]
    assert (container["vmid"], container["unreachable"], container["lock"]) == (days.lab.vmid, "", "")
    assert "verified" in {entry["event"] for entry in container["history"]}
    file = tmp_path / "status.json"
    assert days.run("status", sglang_status_json=str(file)).stdout.startswith("SERVER")
    assert json.loads(file.read_text())["servers"] == said["servers"]


def test_stopped_servers_degrade_the_fleet_until_none_is_left(days: Fleet) -> None:
    days.inside("systemctl stop sglang@1")
    said = days.status(1)
    assert said["verdict"] == "degraded"
    assert said["said"] == ["2 of 3 servers are ready", f"{days.host(1)} is down"]
    assert [row["state"] for row in said["servers"]] == ["ready", "down", "ready"]
    limited = days.run("status", "--limit", days.host(2))
    assert (limited.returncode, len(limited.stdout.splitlines())) == (0, 3), limited.stdout
    days.inside("systemctl stop sglang@0 sglang@2")
    assert days.status(2)["verdict"] == "down"
    days.inside("systemctl start sglang@0 sglang@1 sglang@2")
    assert days.status(0)["verdict"] == "ready"


def test_container_out_of_reach_is_reported_beside_the_others(days: Fleet) -> None:
    inventory = days.write_inventory("beside", missing_container=True)
    done = days.run("status", inventory=inventory)
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("ready  ") == 3
    assert re.findall(rf"^ct{MISSING_VMID}-gpu. .* unreachable ", done.stdout, re.MULTILINE) != []
    assert "degraded: 3 of 5 servers are ready" in done.stdout
    assert f"container {MISSING_VMID} does not exist on node" in done.stdout
    assert "fatal" not in done.stdout
    said = days.status(1, inventory=inventory)
    assert [row["state"] for row in said["servers"]] == ["ready"] * 3 + ["unreachable"] * 2
    assert f"{MISSING_VMID} does not exist" in said["containers"][1]["unreachable"]
    assert days.run("status", sglang_vmid=MISSING_VMID).returncode == 2


def test_server_that_is_not_deployed_and_one_that_is_not_in_the_inventory(days: Fleet) -> None:
    said = days.status(1, inventory=days.write_inventory("others", {0: {}, 1: {}, 5: {}}))
    states = [(row["gpu"], row["state"], row["in_inventory"]) for row in said["servers"]]
    assert states == [(0, "ready", True), (1, "ready", True), (2, "ready", False), (5, "down", True)]
    assert f"{days.host(5)} is down" in said["said"]
    assert "gpu2 is not in the inventory" in said["said"]


def test_server_that_hangs_is_busy_and_does_not_hold_the_report_up(days: Fleet) -> None:
    pid = days.pids()["gpu1"]
    days.inside(f"kill -STOP {pid}")
    try:
        said = days.status(1)
    finally:
        days.inside(f"kill -CONT {pid}")
    assert [row["state"] for row in said["servers"]] == ["ready", "busy", "ready"]
    assert days.pids() == dict(zip(NAMES, (str(row["pid"]) for row in said["servers"])))
