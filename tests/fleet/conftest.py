"""Fixtures of the fault tests: a lab with a container, and the fleet that is deployed in it once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet_kit import NAMES, Fleet, changes

from tests.lab_fixture import own_lab, present


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A lab in which nothing is deployed yet. What uses it must come before what uses `fleet`."""
    with own_lab(first_vmid=261) as lab:
        present(lab)
        yield Fleet(lab, tmp_path_factory.mktemp("controller"))


@pytest.fixture(scope="session")
def fleet(bare: Fleet) -> Iterator[Fleet]:
    """Three servers, deployed and verified. Whatever a test does to them, a good run must find them well at the end."""
    # A disk of its own, which can be filled.
    bare.inside("mkdir -p /opt/sglang && mount -t tmpfs -o size=2g,mode=755 disk /opt/sglang")
    bare.good_run()
    yield bare
    assert changes(bare.good_run()) == 0
    servers = bare.state()["servers"]
    assert [name for name, seen in servers.items() if seen["healthy"]] == NAMES


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Another lab, whose three servers are on the container's own disk and outlive a reboot of it."""
    with own_lab(first_vmid=261) as lab:
        present(lab)
        made = Fleet(lab, tmp_path_factory.mktemp("controller"))
        made.good_run()
        yield made
        assert changes(made.good_run()) == 0
        assert made.status(0)["verdict"] == "ready"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made
