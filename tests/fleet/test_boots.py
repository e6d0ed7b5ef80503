"""The container restarts: all comes back in its order, also with a broken card, or in the middle of a rollback."""

from __future__ import annotations

import pytest
from fleet_kit import GPUS, NAMES, Fleet, wait

pytestmark = pytest.mark.container


def pct(fleet: Fleet, *what: str) -> None:
    for word in what:
        done = fleet.lab.pct(word, str(fleet.lab.vmid))
        assert done.returncode == 0, done.stderr


def started(fleet: Fleet, index: int) -> float:
    """When the engine of a server said its first word after the boot, in seconds."""
    said = f'journalctl --boot --unit sglang@{index} --output short-unix --grep "lab\'s stand-in" --lines 1 --quiet'
    return float(fleet.inside(said).split()[0])


def ready(fleet: Fleet, index: int) -> float:
    said = f"journalctl --boot --unit sglang@{index} --output short-unix --grep 'fired up' --lines 1 --quiet"
    return float(fleet.inside(said).split()[0])


def staged(fleet: Fleet) -> float:
    done = "systemctl show sglang-model --property ExecMainExitTimestamp --value"
    return float(fleet.inside(f'date --date "$({done})" +%s'))


def test_one_server_goes_first_after_a_boot(days: Fleet) -> None:
    pct(days, "stop", "start")
    wait(lambda: all(map(days.healthy, GPUS)), "all serve again", 120)
    order = sorted(GPUS, key=lambda index: started(days, index))
    assert staged(days) <= started(days, order[0])
    assert all(ready(days, order[0]) <= started(days, index) for index in order[1:])


def test_broken_card_does_not_hold_the_others(days: Fleet) -> None:
    with days.fault("gpu0", stage="distributed", kind="exit"):
        pct(days, "stop", "start")
        wait(lambda: days.healthy(1) and days.healthy(2), "the others serve", 120)
        wait(lambda: days.unit(0)["ActiveState"] == "failed", "its start limit ends it", 120)
        assert any("sm75" in text for text in days.status(1)["said"])
    assert days.run("start").returncode == 0


def test_restart_in_the_middle_of_a_rollback(days: Fleet) -> None:
    old = days.releases()["gpu0"]
    days.good_run(sglang_flags={"max-running-requests": 128})
    new = days.releases()["gpu0"]
    with days.started(playbook="rollback") as running:
        running.wait_for("PLAY [Rest]")
        pct(days, "stop")
        assert running.tool.wait(300) != 0
    pct(days, "start")
    wait(lambda: all(map(days.healthy, GPUS)), "all serve again", 120)
    assert set(days.releases().values()) <= {old, new}
    done = days.run("rollback")
    assert done.returncode == 0, done.stdout
    assert days.releases() == dict.fromkeys(NAMES, old)
    # What the rollback left is freed by a deployment.
    days.good_run()
