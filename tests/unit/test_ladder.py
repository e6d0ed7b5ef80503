"""Ladders of the shipped profiles: ordered, each a plan of its own, and the inventory's flags above every step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_pve.flags import options_of
from sglang_pve.ladder import climb
from sglang_pve.memory import MemoryFlags
from sglang_pve.plan_report import ladder_text
from sglang_pve.sizing import Budget

from tests.unit.planning import (
    ABSENT,
    ENGINE,
    GEOMETRY,
    MODEL,
    PROFILES,
    RTX_PRO_6000_MIB,
    TABLE,
    TABLES,
    WORKLOAD,
    arguments,
    checkpoint,
    flags_of,
    plan,
)


def ladder(name="batch", memory_mib=RTX_PRO_6000_MIB, **changed):
    return climb(PROFILES[name], PROFILES, **arguments(memory_mib, **changed))


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_has_a_ladder_whose_first_plan_is_its_plan(name):
    plans = ladder(name)
    assert len(plans) >= 3
    assert [one["id"] for one in plans] == [f"{name}/{number}" for number in range(1, len(plans) + 1)]
    assert {key: value for key, value in plans[0].items() if key not in ("id", "differs")} == plan(name)
    assert plans[0]["differs"] == "" and all(one["differs"].endswith(".") for one in plans[1:])
    assert len({tuple(one["argv"]) for one in plans}) == len(plans)


def test_a_step_keeps_more_free_and_later_ones_need_other_kernels():
    first, roomy, triton, safe = ladder("batch")
    assert roomy["memory"]["outside_pools"] > first["memory"]["outside_pools"] + 2.5
    assert flags_of(triton)["attention-backend"] == "triton"
    assert (safe["profile"], flags_of(safe)["max-running-requests"]) == ("safe", "16")


def test_mtp_goes_on_the_way_down_and_is_no_step_where_there_is_none():
    with_head = ["speculative-algorithm" in flags_of(one) for one in ladder("interactive")]
    assert with_head == sorted(with_head, reverse=True) and with_head[0] and not with_head[-1]
    assert len(ladder("interactive", checkpoint=checkpoint(ABSENT))) == len(with_head) - 1


def test_the_inventory_wins_over_every_step_and_a_step_without_effect_is_none():
    plans = ladder("batch", overrides={"attention-backend": "triton"})
    assert {flags_of(one)["attention-backend"] for one in plans} == {"triton"}
    assert len(plans) == 3


def test_what_gives_no_plan_stands_alone_with_its_findings():
    (only,) = ladder("batch", memory_mib=16000)
    assert only["argv"] == [] and "error" in {finding["level"] for finding in only["findings"]}


def test_a_step_that_says_what_no_step_may_is_refused():
    profile = {**PROFILES["batch"], "ladder": [{"differs": "x.", "flagz": {}}]}
    with pytest.raises(ValueError, match="flagz"):
        climb(profile, PROFILES, engine="0.5.11", flag_table=TABLE, checkpoint=checkpoint(), gpu={}, workload={},
              model_path="/m", served_model_name="m")  # fmt: skip


def test_an_engine_without_formulas_plans_only_safe_and_says_so():
    newer = {"engine": "0.5.23", "flag_table": TABLES["0.5.23"]}
    refused = plan("batch", **newer)
    assert refused["argv"] == [] and "sglang_profile: safe" in refused["findings"][0]["cure"]
    careful = plan("safe", **newer)
    assert [(one["id"], one["level"]) for one in careful["findings"]] == [("engine-unknown", "not checked")]
    # As the newer engine spells it.
    assert "--cuda-graph-max-bs-decode" in careful["argv"]


def test_a_shared_prefix_lets_more_run_where_it_is_kept():
    shared = {**WORKLOAD, "shared_prefix_tokens": 400}
    running = [plan("prefix", workload=work)["pools"]["max_running_requests"] for work in (WORKLOAD, shared)]
    assert running[1] > running[0]
    assert plan("batch", workload=shared)["pools"] == plan("batch")["pools"], "batch keeps no prefix"
    wrong = plan("prefix", workload={**WORKLOAD, "shared_prefix_tokens": 600})
    assert "shared_prefix_tokens 600" in wrong["findings"][0]["seen"]


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(PROFILES)),
    memory=st.integers(60_000, 180_000),
    more=st.integers(0, 40_000),
    concurrency=st.integers(1, 600),
    mean=st.integers(16, 2000),
)
def test_more_memory_never_plans_less_and_no_plan_exceeds_its_budget(name, memory, more, concurrency, mean):
    work = {**WORKLOAD, "concurrency": concurrency, "mean_input_tokens": mean}
    small, large = (plan(name, mib, workload=work) for mib in (memory, memory + more))
    if small["pools"]:
        sizes = [one["pools"]["max_running_requests"] for one in (small, large)]
        assert sizes[1] >= sizes[0]
    for mib, one in ((memory, small), (memory + more, large)):
        if not one["argv"]:
            continue
        read = MemoryFlags.read(options_of(one["argv"]), GEOMETRY)
        budget = Budget.of(ENGINE, GEOMETRY, mib, MODEL["bytes"], MODEL["mtp_bytes"], PROFILES[name]["margin_gib"])
        assert budget.reserve(read).total <= budget.rest(read) + 1e-9
        pools = budget.pools(read)
        assert pools.state_gib + pools.speculative_gib + pools.kv_gib <= budget.post - budget.rest(read) + 1e-9


def test_a_ladder_reads_as_a_table_with_what_differs():
    plans = [{**one, "estimate": {"requests": 9, "tokens_per_s": 1234, "basis": "About."}} for one in ladder("batch")]
    text = ladder_text("rtx-pro-6000: ct200-gpu[0-7]", plans)
    lines = text.splitlines()
    assert lines[0] == "rtx-pro-6000: ct200-gpu[0-7]"
    assert lines[2].split()[:3] == ["batch/1", "199", "9"] and "1,234" in lines[2]
    assert any(line.startswith("batch/3: Attention by triton") for line in lines)
    assert "--max-running-requests 199" in text and "  About." in lines
