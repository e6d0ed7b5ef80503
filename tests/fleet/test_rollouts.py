"""Rollouts that are killed or fail half-way, and going back when the past is damaged.

The fleet goes between two releases, each on a stack of its own: the `old` one, which it was deployed with, and a `new`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fleet_kit import MISSING_VMID, NAMES, Fleet, changes, said
from second_stack import write_stack

pytestmark = pytest.mark.container

HISTORY = "/var/lib/sglang/history.jsonl"


class Two:
    """The two releases: variables that deploy them, and the ids of those that were deployed."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        new = {**write_stack(fleet, "new", "plain"), "sglang_flags": {"max-running-requests": 128}}
        self.variables: dict[str, dict[str, Any]] = {"old": {}, "new": new}
        self.ids: dict[str, str] = {}

    def bring(self, *which: str) -> None:
        """Make sure that each of them was verified, and that the last of them serves."""
        for name in which:
            if name not in self.ids or (name == which[-1] and self.fleet.releases() != self.all(name)):
                self.fleet.good_run(**self.variables[name])
                self.ids[name] = self.fleet.releases()["gpu0"]
        assert self.fleet.releases() == self.all(which[-1])

    def all(self, name: str) -> dict[str, str]:
        """Every server at this release."""
        return dict.fromkeys(NAMES, self.ids[name])

    def verified(self) -> list[dict[str, str]]:
        return self.fleet.state()["history"]["line"]


@pytest.fixture(scope="module")
def two(fleet: Fleet) -> Iterator[Two]:
    made = Two(fleet)
    made.ids["old"] = fleet.releases()["gpu0"]
    yield made
    made.bring("old")


def test_killed_rollout(fleet: Fleet, two: Two) -> None:
    two.bring("old")
    with fleet.started(**two.variables["new"]) as running:
        running.wait_for("PLAY [Rest]")
        running.kill()
    two.ids["new"] = fleet.releases()["gpu0"]
    assert two.ids["new"] != two.ids["old"]
    assert fleet.healthy(0)
    assert two.verified()[-1] == two.all("old")
    canary = fleet.pids()["gpu0"]
    fleet.good_run(**two.variables["new"])
    assert fleet.releases() == two.all("new")
    assert two.verified()[-1] == two.all("new")
    assert fleet.pids()["gpu0"] == canary


def test_server_that_fails_after_the_canary_is_put_back_alone(fleet: Fleet, two: Two) -> None:
    two.bring("old", "new")
    with fleet.fault("gpu1", stage="weights", kind="exit", release=two.ids["old"]):
        done = fleet.run()
    assert done.returncode == 2, done.stdout
    assert "Cannot find any model weights" in said(done)
    assert f"Release {two.ids['new']} serves again." in said(done)
    assert fleet.releases() == {**two.all("old"), "gpu1": two.ids["new"]}
    assert all(fleet.healthy(index) for index in range(3))
    assert two.verified()[-1] == two.all("new")
    fleet.good_run()
    assert two.verified()[-1] == fleet.releases() == two.all("old")


def test_rollback_is_refused_where_it_cannot_end_well(fleet: Fleet, two: Two) -> None:
    two.bring("new", "old")
    new = f"/opt/sglang/releases/{two.ids['new']}"
    fleet.refused(
        "Nothing was touched. release 0123456789ab was never verified here; verified releases: ",
        playbook="rollback",
        sglang_rollback_to="0123456789ab",
    )
    fleet.inside(f"cp -p {new}/run /run/kept && echo '# better' >>{new}/run")
    fleet.refused(
        f"Nothing was touched. release {two.ids['new']} was altered on disk: its content now gives ",
        f"remove {new} and deploy again, or roll back to another one",
        playbook="rollback",
        sglang_rollback_to=two.ids["new"],
    )
    fleet.inside(f"cp -p /run/kept {new}/run")
    stack = fleet.inside(f"grep -o '/opt/sglang/stacks/[^/]*' {new}/run | head -1")
    fleet.inside(f"mv {stack} /opt/sglang/away")
    fleet.refused(
        f"Nothing was touched. the stack of release {two.ids['new']} is gone (new, ",
        "choose another release, or deploy it again with playbooks/site.yml",
        playbook="rollback",
    )
    fleet.inside(f"mv /opt/sglang/away {stack}")


def test_history_cut_short_and_a_missing_container_do_not_keep_the_others_from_going_back(
    fleet: Fleet, two: Two
) -> None:
    two.bring("new", "old")
    fleet.inside(f"truncate --size=-20 {HISTORY}")
    cut = "1 lines of the history cannot be read"
    done = fleet.run("rollback", inventory=fleet.write_inventory("rollback", missing_container=True))
    assert done.returncode == 4, done.stdout
    assert done.stdout.count("fatal: ") == 1
    assert f"container {MISSING_VMID} does not exist" in said(done)
    assert cut in said(done)
    assert two.verified()[-1] == fleet.releases() == two.all("new")
    assert cut in said(fleet.good_run())
    assert two.verified()[-1] == fleet.releases() == two.all("old")


def test_start_that_hangs_is_given_up_and_put_back(fleet: Fleet, two: Two) -> None:
    two.bring("new", "old")
    before = fleet.pids()
    with fleet.fault("gpu0", stage="graphs", kind="hang", release=two.ids["new"]):
        done = fleet.run(**two.variables["new"])
    assert done.returncode == 2, done.stdout
    assert f"Release {two.ids['old']} serves again." in said(done)
    assert fleet.releases() == two.all("old")
    assert fleet.healthy(0)
    after = fleet.pids()
    assert after["gpu0"] != before["gpu0"]
    assert (after["gpu1"], after["gpu2"]) == (before["gpu1"], before["gpu2"])
    assert changes(fleet.good_run()) == 0
