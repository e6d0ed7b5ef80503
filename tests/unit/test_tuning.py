"""What was measured decides which plan goes first, only where it was measured for just that."""

import pytest
from sglang_pve import history, tuning
from sglang_pve.ladder import climb

from tests.unit.planning import PROFILES, TABLE, WORKLOAD, checkpoint

OWN = tuning.key("rtx", "sha256:1", "stack1", {"workload": WORKLOAD})


def ladder(**overrides):
    plans = climb(
        PROFILES["batch"],
        PROFILES,
        engine="0.5.11",
        flag_table=TABLE,
        checkpoint=checkpoint(),
        gpu={"card": "rtx", "memory_total_mib": 97887},
        workload=WORKLOAD,
        model_path="/models/m",
        served_model_name="m",
        overrides=overrides,
    )
    return [{**plan, "hash": tuning.fingerprint(plan)} for plan in plans]


def trial(plan, speed=None, failed=""):
    tried = {"plan": plan["id"], "release": "0" * 12, "hash": plan["hash"], "estimate": 1000}
    load = {"output_tokens_per_s": speed, "mean_latency_s": 1.5, "requests": 99}
    return {**tried, "failed": failed} if failed else {**tried, "load": load}


def note(plan, speed=1234.5, own=OWN):
    found = {"plan": plan["id"], "plan_hash": plan["hash"], "tokens_per_s": speed, "trials": [1, 2, 3]}
    return {"event": "tuned", "server": "gpu1", "key": own, "time": "2026-12-01T05:00:00Z", **found}


def test_the_ladder_begins_with_the_plan_that_was_the_fastest_and_says_so():
    plans = ladder()
    found = tuning.prefer(plans, [note(plans[1])], OWN)
    assert [plan["id"] for plan in found] == [plan["id"] for plan in plans[1:]]
    assert found[0]["argv"] == plans[1]["argv"]
    assert "1,234 tokens/s with batch/2 on 2026-12-01, the most of 3 plans" in found[0]["reasons"][-1]
    assert not any("tune.yml" in reason for plan in plans for reason in plan["reasons"])


@pytest.mark.parametrize(
    "own",
    [
        tuning.key("other", "sha256:1", "stack1", {"workload": WORKLOAD}),
        tuning.key("rtx", "sha256:2", "stack1", {"workload": WORKLOAD}),
        tuning.key("rtx", "sha256:1", "stack2", {"workload": WORKLOAD}),
        tuning.key("rtx", "sha256:1", "stack1", {"workload": {**WORKLOAD, "concurrency": 8}}),
    ],
    ids=["card", "checkpoint", "stack", "work"],
)
def test_what_was_measured_for_something_else_changes_nothing(own):
    plans = ladder()
    assert tuning.prefer(plans, [note(plans[1], own=own)], OWN) == plans


def test_a_plan_that_is_not_in_the_ladder_any_more_makes_the_note_void():
    was, now = ladder(), ladder(**{"chunked-prefill-size": 4096})
    found = tuning.prefer(now, [note(was[1])], OWN)
    assert [plan["id"] for plan in found] == [plan["id"] for plan in now]
    assert "not in this ladder any more" in found[0]["reasons"][-1]


def test_the_newest_measurement_of_a_kind_counts(tmp_path):
    plans = ladder()
    other = tuning.key("other", "sha256:1", "stack1", {})
    written = [note(plans[0]), note(plans[2], own=other), note(plans[1]), {"event": "tuned", "key": "what?"}]
    history.append(tmp_path / "history", written)
    found = tuning.latest(history.read(tmp_path / "history")[0])
    assert [(entry["key"], entry["plan"]) for entry in found] == [(OWN, "batch/2"), (other, "batch/3")]


def test_what_a_killed_run_left_is_known_until_the_server_has_a_release_again():
    begun = [
        {"event": "tuning", "server": "gpu1", "release": "a"},
        {"event": "tuning", "server": "gpu2", "release": "b"},
    ]
    trials = {"gpu1": "t", "gpu2": "t"}
    assert tuning.unfinished(begun, trials) == {"gpu1": "a", "gpu2": "b"}
    measured = [*begun, {"event": "tuned", "server": "gpu1"}]
    assert tuning.unfinished(measured, trials) == {"gpu1": "a", "gpu2": "b"}
    deployed = [*measured, {"event": "activated", "server": "gpu1", "release": "c"}]
    assert tuning.unfinished(deployed, {**trials, "gpu1": "c"}) == {"gpu2": "b"}
    # Put back, and killed before it wrote so.
    assert tuning.unfinished(begun, {"gpu1": "a", "gpu2": "t"}) == {"gpu2": "b"}
    assert "gpu2" in tuning.sentences({"gpu2": "b"})[0] and "release b" in tuning.sentences({"gpu2": "b"})[0]


def test_a_plan_that_was_the_fastest_is_not_one_that_a_canary_falls_from_any_more():
    fell = [{"event": "settled", "wanted": name, "plan": "batch/2", "reason": "memory"} for name in ("a", "b")]
    assert history.settled([*fell, {"event": "tuned", "release": "a"}]).keys() == {"b"}
    assert history.settled([*fell[1:], {"event": "tuned", "release": "a"}, fell[0]]).keys() == {"a", "b"}


def test_the_fastest_of_those_that_passed_wins_the_earlier_of_equals():
    first, second, third = ladder()[:3]
    trials = [trial(first, 900.0), trial(second, failed="it did not start"), trial(third, 900.0)]
    assert tuning.winner(trials)["plan"] == "batch/1"
    assert tuning.winner([trial(first, 900.0), trial(third, 901.0)])["plan"] == "batch/3"
    assert tuning.winner([trial(second, failed="it did not start")]) is None


def test_the_table_has_what_was_measured_the_error_of_the_estimate_and_why_one_failed():
    first, second = ladder()[:2]
    said = tuning.text("ct200-gpu1", [trial(first, 800.0), trial(second, failed="it did not start")])
    lines = said.splitlines()
    assert lines[2].split() == ["batch/1", "0" * 12, "800.0", "1,000", "+25.0", "1.50", "99"]
    assert lines[3].split() == ["batch/2", "0" * 12, "failed", "1,000", "-", "-", "-"]
    assert lines[4:] == ["batch/2 failed: it did not start", "batch/1 is the fastest."]
    assert "fastest" not in tuning.text("ct200-gpu1", [{**trial(first, 1.0), "load": None}])
