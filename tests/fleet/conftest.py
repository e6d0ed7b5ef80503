"""Fixtures of the fault tests: a lab with a container, and the fleet that is deployed in it once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fleet_kit import NAMES, Fleet, changes, in_own_lab


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A lab in which nothing is deployed yet. What uses it must come before what uses `fleet`."""
    with in_own_lab(261, tmp_path_factory.mktemp("controller")) as made:
        yield made


@pytest.fixture(scope="session")
def fleet(bare: Fleet) -> Iterator[Fleet]:
    """Three servers, deployed and verified. Whatever a test does to them, a good run must find them well at the end."""
    # Disks of their own, which can be filled.
    bare.inside("mkdir -p /opt/sglang && mount -t tmpfs -o size=2g,mode=755 disk /opt/sglang")
    bare.inside("mkdir -p /var/lib/sglang && mount -t tmpfs -o size=32m,mode=755 disk /var/lib/sglang")
    bare.good_run()
    yield bare
    # The first may free a release that a rollback left behind.
    before = bare.pids()
    bare.good_run()
    assert changes(bare.good_run()) == 0
    assert bare.pids() == before
    servers = bare.state()["servers"]
    assert [name for name, seen in servers.items() if seen["healthy"]] == NAMES


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Another lab, whose three servers are on the container's own disk and outlive a reboot of it."""
    with in_own_lab(261, tmp_path_factory.mktemp("controller")) as made:
        made.good_run()
        yield made
        assert changes(made.good_run()) == 0
        assert made.status(0)["verdict"] == "ready"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Keep how many faults were played and how many ended well, for `make test-faults`."""
    place = os.environ.get("FAULTS_SUMMARY")
    if place:
        ended = {kind: len(terminalreporter.stats.get(kind, [])) for kind in ("passed", "failed", "error")}
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        text = f"faults_run={sum(ended.values())} faults_passed={ended['passed']}\n"
        Path(place).write_text(text)
