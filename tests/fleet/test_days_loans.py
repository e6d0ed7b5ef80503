"""A card is lent and given back: requests finish, the card is free, and it stays so until it is given back."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fleet_kit import MISSING_VMID, Fleet, changes, said, wait

pytestmark = pytest.mark.container

ODD = 'it\'s "Bob"\nüber $HOME `id` \\ {end'


def lend(fleet: Fleet, index: int, **how: Any) -> Any:
    """Run drain.yml for one server; it must succeed."""
    done = fleet.run("drain", "--limit", fleet.host(index), **how)
    assert done.returncode == 0, done.stdout
    return done


def scheduler(fleet: Fleet, index: int, name: str) -> None:
    """Send a signal to the process of a server that answers requests."""
    main = fleet.pids()[f"gpu{index}"]
    fleet.inside(f"pkill --signal {name} --parent {main} --full sglang_lab_scheduler")


def give_back(fleet: Fleet, index: int) -> None:
    done = fleet.run("undrain", "--limit", fleet.host(index))
    assert done.returncode == 0, done.stdout
    assert fleet.healthy(index)


def is_free(fleet: Fleet, index: int) -> bool:
    """Whether nothing has memory of this card, and its server does not run."""
    row = fleet.status(0)["servers"][index]
    return (row["state"], row["pid"], row["gpu_mib"], row["others"]) == ("lent", None, 0, [])


def test_lent_card_is_free_until_it_is_given_back(days: Fleet, pool: ThreadPoolExecutor) -> None:
    before, release = days.pids(), days.releases()["gpu1"]
    # The answer goes on when the server has been told to stop.
    scheduler(days, 1, "STOP")
    asked = days.ask(pool, 1, 1000)
    lent = pool.submit(lend, days, 1, who="ada", reason=ODD)
    wait(lambda: days.unit(1)["ActiveState"] == "deactivating", "it is told to stop")
    scheduler(days, 1, "CONT")
    assert asked.result()["usage"]["completion_tokens"] == 1000
    assert "were ended" not in said(lent.result())
    assert is_free(days, 1)
    loan = days.status(0)["servers"][1]["lent"]
    assert (loan["who"], loan["reason"], loan["since"][:2]) == ("ada", ODD, "20")
    shown = days.run("status").stdout
    assert f'ct{days.lab.vmid}-gpu1 is lent to ada since {loan["since"]}: it\'s "Bob" über $HOME `id` \\ {{end' in shown

    # Another reason takes the place of the first, and somebody else does not get the card.
    assert changes(lend(days, 1, who="ada", reason="fine-tuning")) == 1
    assert changes(lend(days, 1, who="ada")) == 0
    assert days.status(0)["servers"][1]["lent"] == {**loan, "reason": "fine-tuning"}
    days.refused(
        f"gpu1 is lent to ada since {loan['since']} (fine-tuning), and bob asks for it",
        playbook="drain",
        limit=days.host(1),
        who="bob",
    )

    # A deployment, a start and a restart leave it alone, and so does a boot.
    for playbook in ("site", "start"):
        done = days.run(playbook)
        assert done.returncode == 0, done.stdout
        assert f"Lent to ada since {loan['since']} (fine-tuning): left alone." in said(done)
        assert changes(done) == 0
    assert {**days.pids(), "gpu1": before["gpu1"]} == before
    for command in ("stop", "start"):
        assert days.lab.pct(command, str(days.lab.vmid)).returncode == 0
    wait(lambda: days.healthy(0) and days.healthy(2), "the others serve again")
    assert is_free(days, 1)

    # It is given back behind the gate.
    with days.fault("gpu1", stage="weights", kind="exit"):
        done = days.run("undrain", "--limit", days.host(1))
    assert done.returncode == 2, done.stdout
    assert "Cannot find any model weights" in said(done)
    assert days.status(1)["servers"][1]["lent"] is None
    give_back(days, 1)
    assert days.releases()["gpu1"] == release
    events = [(entry["event"], entry.get("reason")) for entry in days.state()["history"]["tail"]]
    loans = [entry for entry in events if entry[0] in ("lent", "returned")]
    assert loans[-3:] == [("lent", ODD), ("lent", "fine-tuning"), ("returned", None)]


def test_request_that_outlasts_the_bound_is_ended(days: Fleet, pool: ThreadPoolExecutor) -> None:
    scheduler(days, 2, "STOP")
    asked = days.ask(pool, 2, 1000)
    done = lend(days, 2)
    with pytest.raises((OSError, http.client.HTTPException)):
        asked.result()
    assert "gpu2: requests that outlasted its stop timeout were ended" in said(done)
    assert is_free(days, 2)
    assert days.unit(2)["ActiveState"] == "inactive"
    give_back(days, 2)


def test_stranger_on_the_card_is_named_and_left_alone(days: Fleet) -> None:
    """The stand-in of nvidia-smi knows by these variables and this word who has GPU memory."""
    uuid = days.state()["servers"]["gpu1"]["parameters"]["gpu_uuid"]
    days.inside(
        f"systemd-run --quiet --unit stranger --setenv CUDA_VISIBLE_DEVICES={uuid} --setenv SGLANG_LAB_GPU_MIB=2048 "
        "python3 -c 'import time; time.sleep(600)' sglang_lab_scheduler"
    )
    pid = days.inside("systemctl show stranger --property MainPID --value")
    try:
        done = days.run("drain", "--limit", days.host(1))
        assert done.returncode == 2, done.stdout
        assert f"gpu1 has stopped, but 2048 MiB of its card are in use by pid {pid} (" in said(done)
        assert days.inside("systemctl is-active stranger") == "active"
    finally:
        days.inside("systemctl stop stranger")
    give_back(days, 1)


def test_what_cannot_be_lent_is_said_before_anything_is_touched(days: Fleet) -> None:
    days.refused("This would stop all 3 servers of the container", playbook="drain", fatal=3)
    days.refused(
        "gpu5 is not deployed on this container",
        playbook="drain",
        limit=days.host(5),
        inventory=days.write_inventory("undeployed", {0: {}, 1: {}, 5: {}}),
    )
    assert days.inside("ls /var/lib/sglang/lent") == ""


def test_container_out_of_reach_does_not_keep_another_card_from_being_lent(days: Fleet) -> None:
    inventory = days.write_inventory("lend", missing_container=True)
    limit = f"{days.host(1)},ct{MISSING_VMID}-gpu0"
    for playbook, state in (("drain", "lent"), ("undrain", "ready")):
        done = days.run(playbook, "--limit", limit, inventory=inventory)
        assert done.returncode == 4, done.stdout
        assert done.stdout.count("fatal: ") == 1
        assert f"container {MISSING_VMID} does not exist" in said(done)
        assert days.status(0)["servers"][1]["state"] == state
