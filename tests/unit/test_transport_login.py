"""Logins to one node: one after the other, one per container, and within the limits that sshd has by default."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sglang_pve.login import wait_for_turn

from tests.transport_node import SSHD, Node, connect, fresh_node, running_node, wait_for  # noqa: F401


def test_one_at_a_time_in_whatever_order(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def log_in(number: int) -> None:
        with wait_for_turn(tmp_path / "queue", tmp_path / "none", 60):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(log_in, range(12)))
    assert most == [1] * 12


def test_who_waits_goes_on_when_the_master_is_there(tmp_path: Path) -> None:
    master = tmp_path / "master"
    with ThreadPoolExecutor(1) as pool, wait_for_turn(tmp_path / "queue", master, 60):
        waiting = pool.submit(wait_for_turn, tmp_path / "queue", master, 60)
        time.sleep(0.1)
        assert not waiting.done()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(master))
            waiting.result(timeout=30).close()


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    with wait_for_turn(tmp_path / "queue", tmp_path / "none", 60) as first:
        wait_for_turn(tmp_path / "queue", tmp_path / "none", 0.1).close()
        assert isinstance(first, ExitStack)


def log_in_at_once(node: Node, vmids: Iterable[int], command: str) -> str:
    """Calls from as many connections at the same time; returns what sshd logged meanwhile."""
    log = node.directory / "sshd.log"
    before = log.stat().st_size
    connections: list[Any] = [connect(node.variables(vmid)) for vmid in vmids]
    with ThreadPoolExecutor(len(connections)) as pool:
        done = list(pool.map(lambda connection: connection.exec_command(command), connections))
    assert done == [(0, b"", b"")] * len(connections)
    return log.read_bytes()[before:].decode()


needs_sshd = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs sshd")


@needs_sshd
def test_eight_servers_of_a_container_share_one_login(node: Node) -> None:
    said = log_in_at_once(node, [200] * 8, "sleep 1")
    assert said.count("Accepted publickey") == 1
    assert "no more sessions" not in said


@needs_sshd
def test_sixteen_servers_of_a_container_work_too(node: Node) -> None:
    """Ten are what a connection carries by default (MaxSessions); ssh logs in anew for each of the others."""
    said = log_in_at_once(node, [200] * 16, "sleep 2")
    assert said.count("Accepted publickey") == 7


@needs_sshd
def test_sixteen_containers_log_in_one_after_the_other(node: Node) -> None:
    """At once, sshd would drop some at random (MaxStartups)."""
    said = log_in_at_once(node, range(200, 216), "true")
    assert said.count("Accepted publickey") == 16
    assert "MaxStartups" not in said
