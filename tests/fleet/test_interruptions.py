"""A run that is killed before the rollout leaves what serves alone, and the next run finishes its job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_kit import Fleet, changes
from second_stack import PAUSE, PAUSED, write_stack

pytestmark = pytest.mark.container


@pytest.fixture
def paused(fleet: Fleet) -> Iterator[None]:
    """An install stays at its imports until the file PAUSE is removed."""
    fleet.inside(f"touch {PAUSE}")
    yield
    fleet.inside(f"rm -f {PAUSE} {PAUSED}")


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
