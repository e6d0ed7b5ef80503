"""tune.yml measures which plan is the fastest, puts back what was there, and site.yml uses what it found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fleet_kit import Fleet, changes, said, wait

pytestmark = pytest.mark.container

# Requests that take long against everything else that the machine does.
WORK = {
    "mean_input_tokens": 16,
    "mean_output_tokens": 200,
    "max_input_tokens": 256,
    "max_output_tokens": 256,
    "concurrency": 8,
}
SMALL: dict[str, Any] = {"sglang_workload": WORK}
QUICK: dict[str, Any] = {**SMALL, "sglang_tune_seconds": 3}


@pytest.fixture(scope="module")
def small(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, deployed for a workload that no other test has."""
    fleet.good_run(**SMALL)
    yield fleet
    fleet.good_run()


def shown(fleet: Fleet, **extra: Any) -> list[dict[str, Any]]:
    """The plans that would be measured on gpu1; nothing may be touched."""
    before, target = fleet.pids(), fleet.folder / "plans.json"
    done = fleet.run("tune", "--limit", fleet.host(1), sglang_tune_json=str(target), **{**QUICK, **extra})
    assert done.returncode == 0, done.stdout
    assert changes(done) == 0 and fleet.pids() == before
    assert "Nothing was touched. -e sglang_tune_confirm=true" in said(done)
    return json.loads(target.read_text())["trials"]


def confirmed(fleet: Fleet, **extra: Any) -> dict[str, Any]:
    """Measure on gpu1: what is written about it."""
    target = fleet.folder / "tuned.json"
    options: dict[str, Any] = {**QUICK, "sglang_tune_confirm": True, "sglang_tune_json": str(target), **extra}
    done = fleet.run("tune", "--limit", fleet.host(1), **options)
    assert done.returncode == 0, done.stdout
    return {**json.loads(target.read_text()), "printed": done.stdout}


def test_more_than_one_server_of_a_container_is_refused(small: Fleet) -> None:
    words = ("This would stop 3 servers", "Name one of them")
    small.refused(*words, playbook="tune", fatal=3, sglang_tune_confirm=True, **SMALL)


def test_a_lent_card_is_refused(small: Fleet) -> None:
    assert small.run("drain", "--limit", small.host(1)).returncode == 0
    words = ("gpu1 has lent its card", "Nothing was touched")
    small.refused(*words, playbook="tune", limit=small.host(1), sglang_tune_confirm=True, **QUICK)
    assert small.run("undrain", "--limit", small.host(1)).returncode == 0


def trial_serves(fleet: Fleet, release: str) -> None:
    wait(lambda: fleet.releases().get("gpu1") == release, f"gpu1 runs {release}", 120)


def test_killed_in_the_middle(small: Fleet) -> None:
    before, second = small.releases(), shown(small)[1]["release"]
    extra: dict[str, Any] = {**QUICK, "sglang_tune_confirm": True}
    for restore, how in (("start", {}), ("tune", {**extra, "sglang_tune_plans": 1})):
        with small.started("--limit", small.host(1), playbook="tune", **extra) as running:
            trial_serves(small, second)
            running.kill(everything=True)
        report = small.status(1)
        assert any("gpu1 is being tuned" in line and before["gpu1"] in line for line in report["said"])
        done = small.run(restore, "--limit", small.host(1), **how)
        assert done.returncode == 0, done.stdout
        assert small.releases() == before
        assert not any("being tuned" in line for line in small.status(0)["said"])


def test_the_fastest_plan_is_kept_and_deployed(small: Fleet) -> None:
    before, plans = small.releases(), shown(small)
    assert [plan["plan"] for plan in plans] == ["batch/1", "batch/2", "batch/3"]
    with small.fault("gpu1", kind="exit", stage="weights", release=plans[1]["release"]):
        found = confirmed(small)
    first, second, third = found["trials"]
    assert "gpu1" in second["failed"] and "load" not in second
    # Attention by triton is the faster one of this engine.
    assert found["winner"] == third
    assert third["load"]["output_tokens_per_s"] > first["load"]["output_tokens_per_s"]
    assert "batch/3 is the fastest." in found["printed"] and "batch/2 failed: gpu1:" in found["printed"]
    # What was there serves again.
    assert small.releases() == before
    assert small.status(0)["verdict"] == "ready"
    tuned = small.state()["history"]["tuned"]
    assert [(entry["plan"], entry["server"]) for entry in tuned if entry["plan_hash"] == third["hash"]] == [
        ("batch/3", "gpu1")
    ]
    # It goes first now, on every server with the same card, and only where it was measured for just that.
    assert "tokens/s with batch/3 on" in said(small.run("plan", **SMALL))
    assert "tokens/s with batch/3 on" not in said(small.run("plan"))
    small.good_run(**SMALL)
    assert set(small.releases().values()) == {third["release"]}
    assert changes(small.good_run(**SMALL)) == 0
    # Another tune.yml looks at the whole ladder again.
    assert [plan["plan"] for plan in shown(small)] == ["batch/1", "batch/2", "batch/3"]
