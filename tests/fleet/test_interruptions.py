"""A run that is killed before the rollout leaves what serves alone, and the next run finishes its job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_kit import Fleet, changes
from second_stack import PAUSE, PAUSED, write_stack

pytestmark = pytest.mark.container

BULKY = "/models/bulky"
COPY = "/dev/shm/sglang/bulky-*"
PART = ".blob.bin.sglang-part"


@pytest.fixture
def paused(fleet: Fleet) -> Iterator[None]:
    """An install stays at its imports until the file PAUSE is removed."""
    fleet.inside(f"touch {PAUSE}")
    yield
    fleet.inside(f"rm -f {PAUSE} {PAUSED}")


@pytest.fixture
def bulky(fleet: Fleet) -> Iterator[None]:
    """A checkpoint with a file that takes a while to copy."""
    fleet.inside(f"cp -a /models/qwen3.6-lab {BULKY} && fallocate --length 700M {BULKY}/blob.bin")
    yield
    fleet.inside(f"rm -r {BULKY} {COPY}")


def test_killed_stack_install(fleet: Fleet, paused: None) -> None:
    before, finished = fleet.pids(), fleet.inside("ls /opt/sglang/stacks/*/stack.json")
    stack = write_stack(fleet, "paused", "pause")
    reached = f"until [ -e {PAUSED} ]; do sleep 0.1; done; rm {PAUSED}"
    # First everything dies, the installing module too.
    with fleet.started("--tags", "stack", **stack) as running:
        fleet.inside(reached)
        running.kill(everything=True)
        fleet.signal_holders("/stacks/.lock", "SIGKILL")
    assert fleet.inside("ls /opt/sglang/stacks/*/stack.json") == finished
    assert len(fleet.inside("ls /opt/sglang/stacks").split()) > len(finished.split())
    # Then only Ansible dies; what it began goes on, and the run after it waits for that.
    with fleet.started("--tags", "stack", **stack) as running:
        fleet.inside(reached)
        running.kill()
    with fleet.started("--tags", "stack", **stack) as running:
        # Two are what the killed run began; the third waits for them.
        fleet.signal_holders("/stacks/.lock", "SIGCONT", 3)
        fleet.inside(f"rm {PAUSE}")
        assert running.tool.wait() == 0, running.log.read_text()
    assert changes(fleet.good_run("--tags", "stack", **stack)) == 0
    assert len(fleet.inside("ls /opt/sglang/stacks/*/stack.json").split()) == len(finished.split()) + 1
    assert fleet.pids() == before


def test_killed_staging(fleet: Fleet, bulky: None) -> None:
    before = fleet.pids()
    how = {"sglang_model_path": BULKY}
    with fleet.started("--tags", "checkpoint", **how) as running:
        fleet.signal_holders(PART, "SIGSTOP")
        running.kill(everything=True)
        fleet.signal_holders(PART, "SIGKILL")
    fleet.inside(f"ls {COPY}/{PART} && ! ls {COPY}/.sglang-staged.json")
    assert changes(fleet.good_run("--tags", "checkpoint", **how)) == 1
    fleet.inside(f"ls {COPY}/.sglang-staged.json && cmp {COPY}/blob.bin {BULKY}/blob.bin && ! ls {COPY}/{PART}")
    assert fleet.pids() == before
