"""Plans of the shipped profiles: explicit, consistent, within their budget, and clear about what does not fit."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_pve.memory import MemoryFlags
from sglang_pve.sizing import Budget

from tests.unit.planning import (
    ABSENT,
    COMPLETE,
    ENGINE,
    GEOMETRY,
    MODEL,
    PROFILES,
    RTX_PRO_6000_MIB,
    TABLE,
    WORKLOAD,
    checkpoint,
    flags_of,
    ids,
    plan,
)

ALWAYS = {
    "attention-backend",
    "chunked-prefill-size",
    "context-length",
    "cuda-graph-max-bs",
    "enable-metrics",
    "max-mamba-cache-size",
    "max-running-requests",
    "max-total-tokens",
    "mem-fraction-static",
    "model-path",
    "page-size",
    "served-model-name",
}


def only(planned, level="error"):
    (finding,) = [finding for finding in planned["findings"] if finding["level"] == level]
    return finding


def pools_by_the_engine(planned):
    """What the engine would make of the plan's own command line on the card that the plan is for."""
    flags = {name: value or True for name, value in flags_of(planned).items()}
    budget = Budget.of(ENGINE, GEOMETRY, RTX_PRO_6000_MIB, MODEL["bytes"], MODEL["mtp_bytes"], margin=0)
    pools = budget.pools(MemoryFlags.read(flags, GEOMETRY))
    return (pools.tokens, pools.running, pools.slots)


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_profile_is_explicit_and_reports_what_the_engine_would(profile):
    planned = plan(profile)
    given = flags_of(planned)
    assert ids(planned) == [] and set(given) >= ALWAYS
    assert given["cuda-graph-max-bs"] == given["max-running-requests"]
    assert tuple(planned["pools"].values()) == pools_by_the_engine(planned)
    assert not {"host", "port", "nccl-port", "base-gpu-id", "numa-node", "mamba-ssm-dtype"} & set(given)
    assert planned["reasons"] and all(reason.endswith(".") for reason in planned["reasons"])
    json.dumps(planned)


def test_batch_runs_what_fits_of_the_workload():
    planned = plan("batch")
    pools = planned["pools"]
    assert pools["max_running_requests"] == pools["max_mamba_cache_size"] == 199
    assert pools["max_total_num_tokens"] >= 199 * (512 + 256)
    one_more = plan("batch", overrides={"max-running-requests": 200})
    assert only(one_more, "warning")["id"] == "kv-tight"


def test_at_the_measured_fraction_it_is_one_under_what_the_formulas_gave_by_hand():
    """177 from the free memory of the measured starts; a plan starts from total memory and holds 1 % of tokens back."""
    planned = plan("batch", overrides={"mem-fraction-static": 0.9})
    assert planned["pools"]["max_running_requests"] == 176


def test_max_total_tokens_is_one_percent_under_the_prediction_in_whole_pages():
    planned = plan("prefix")
    tokens = planned["pools"]["max_total_num_tokens"]
    open_plan = plan("prefix", overrides={"max-total-tokens": None})
    predicted = open_plan["pools"]["max_total_num_tokens"]
    assert tokens % 64 == predicted % 64 == 0
    assert predicted * 0.99 - 64 <= tokens <= predicted * 0.99
    assert only(open_plan, "note")["id"] == "pool-open"


def test_the_fraction_is_the_largest_whose_rest_holds_the_reserve():
    planned = plan("batch", workload={**WORKLOAD, "concurrency": 64})
    fraction = float(flags_of(planned)["mem-fraction-static"])
    assert planned["memory"]["spare"] >= 0
    above = plan("batch", workload={**WORKLOAD, "concurrency": 64}, overrides={"mem-fraction-static": fraction + 0.001})
    assert above["memory"]["spare"] < 0
    assert only(above, "warning")["id"] == "memory-reserve"


def test_reduced_state_only_when_allowed():
    planned = plan("batch", allow_reduced_state=True)
    assert flags_of(planned)["mamba-ssm-dtype"] == "bfloat16"
    assert planned["pools"]["max_running_requests"] == WORKLOAD["concurrency"]
    assert ids(planned, "warning") == []
    by_flag = plan("batch", overrides={"mamba_ssm_dtype": "bfloat16"})
    assert only(by_flag, "warning")["where"] == "--mamba-ssm-dtype"


def test_interactive_uses_a_complete_head_and_a_small_explicit_limit():
    planned = plan("interactive")
    given = flags_of(planned)
    assert given["speculative-algorithm"] == "NEXTN"
    assert [given[f"speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")] == ["3", "1", "4"]
    assert planned["env"]["SGLANG_ENABLE_SPEC_V2"] == "1"
    assert given["max-running-requests"] == "16"
    reserve = planned["memory"]["reserve"]
    assert reserve["loading"] > 5.53, "the draft's load is the larger of the two phases, not added to the other"
    assert reserve["total"] == pytest.approx(
        sum(value for name, value in reserve.items() if name not in ("serving", "total")), abs=0.01
    )


def test_interactive_without_a_head_serves_without_and_says_so():
    planned = plan("interactive", checkpoint=checkpoint(ABSENT))
    assert "speculative-algorithm" not in flags_of(planned) and "SGLANG_ENABLE_SPEC_V2" not in planned["env"]
    assert only(planned, "note")["id"] == "mtp-absent"


@pytest.mark.parametrize("asked", [{"mtp": True}, {"overrides": {"speculative-algorithm": "NEXTN"}}])
def test_mtp_that_is_asked_for_and_absent_is_refused_with_the_names(asked):
    planned = plan("batch", checkpoint=checkpoint(ABSENT), **asked)
    assert planned["argv"] == []
    assert "mtp.layers.0.tensor0, mtp.layers.0.tensor1, mtp.layers.0.tensor2 and 12 more" in only(planned)["seen"]


def test_mtp_can_be_asked_of_any_profile_and_switched_off():
    assert "speculative-algorithm" in flags_of(plan("prefix", mtp=True))
    assert "speculative-algorithm" not in flags_of(plan("interactive", mtp=False))
    assert "speculative-algorithm" not in flags_of(plan("batch"))


def test_context_length_follows_the_workload_and_never_passes_the_model():
    assert flags_of(plan())["context-length"] == str(3136)
    longest = {**WORKLOAD, "max_input_tokens": 200_000, "max_output_tokens": 62_144}
    assert flags_of(plan(workload=longest))["context-length"] == str(GEOMETRY.max_context)
    for too_long in (
        {"workload": {**longest, "max_output_tokens": 62_145}},
        {"overrides": {"context-length": 262_145}},
    ):
        assert only(plan(**too_long))["id"] == "context-length"
    assert only(plan(overrides={"context-length": 3000}))["seen"] == "requests of up to 3072 tokens"


def test_conservativeness_is_set_only_where_admission_would_starve():
    tight = {**WORKLOAD, "max_output_tokens": 4096}
    planned = plan(workload=tight)
    value = float(flags_of(planned)["schedule-conservativeness"])
    pools = planned["pools"]
    kept = 512 + 0.7 * value * 4096
    assert kept * pools["max_running_requests"] <= pools["max_total_num_tokens"]
    assert "schedule-conservativeness" not in flags_of(plan(workload={**WORKLOAD, "concurrency": 32}))


def test_overrides_win_and_null_removes():
    planned = plan(
        overrides={
            "max_running_requests": 64,
            "chunked-prefill-size": 4096,
            "enable-metrics": None,
            "reasoning-parser": "qwen3",
        },
        env_overrides={"HF_HUB_OFFLINE": None, "NCCL_DEBUG": "INFO"},
    )
    given = flags_of(planned)
    assert given["max-running-requests"] == given["max-mamba-cache-size"] == given["cuda-graph-max-bs"] == "64"
    assert given["chunked-prefill-size"] == "4096" and given["reasoning-parser"] == "qwen3"
    assert "enable-metrics" not in given
    assert "HF_HUB_OFFLINE" not in planned["env"] and planned["env"]["NCCL_DEBUG"] == "INFO"
    assert planned["pools"]["max_total_num_tokens"] > plan()["pools"]["max_total_num_tokens"]


def test_an_alias_overrides_the_same_flag():
    planned = plan(overrides={"served_model_name": "other"})
    assert planned["argv"].count("--served-model-name") == 1 and "other" in planned["argv"]


def test_sizes_left_to_the_engine_are_those_it_would_choose():
    planned = plan(overrides={"max-running-requests": None, "max-mamba-cache-size": None, "mem-fraction-static": 0.9})
    assert planned["pools"]["max_running_requests"] == planned["pools"]["max_mamba_cache_size"] == 111
    assert {"max-running-requests", "max-mamba-cache-size"}.isdisjoint(flags_of(planned))
    assert ids(planned, "note") == ["pool-open", "pool-open"]


def test_a_limit_above_its_slots_is_told():
    planned = plan("prefix", overrides={"max-running-requests": 40, "max-mamba-cache-size": 100})
    assert planned["pools"]["max_running_requests"] == 20
    assert only(planned, "warning")["cure"].startswith("Give --max-mamba-cache-size 200 (5 slots a request)")


def test_more_tokens_than_the_card_holds_are_told():
    planned = plan(overrides={"max-total-tokens": 400_000})
    assert planned["pools"]["max_total_num_tokens"] < 400_000
    assert ids(planned, "warning") == ["tokens-uncertain"]


@pytest.mark.parametrize(
    ("changed", "seen", "cure"),
    [
        ({"memory_mib": 40_000}, "GiB needed: weights 51.06, states for 1 running 0.14", "larger card"),
        ({"memory_mib": 57_000}, "GiB needed: weights 51.06", "sglang_allow_reduced_state"),
        ({"overrides": {"max-running-requests": 400}}, "states for 400 running 57.35", "remove max-running-requests"),
        ({"overrides": {"mem-fraction-static": 0.5}}, "51.39 GiB needed", "remove mem-fraction-static"),
        ({"overrides": {"max-total-tokens": 1000}}, "1000 KV tokens", "Remove it"),
        ({"name": "prefix", "overrides": {"max-mamba-cache-size": 4}}, "4 state slots", "Remove it"),
    ],
)
def test_what_does_not_fit_says_what_it_needs_and_what_to_do(changed, seen, cure):
    planned = plan(**changed)
    finding = only(planned)
    assert planned["argv"] == [] and planned["pools"] == {}
    assert finding["id"] == "memory" and seen in finding["seen"] and cure in finding["cure"]


def test_a_fraction_that_leaves_too_little_even_without_the_margin_is_an_error():
    planned = plan(overrides={"mem-fraction-static": 0.97})
    assert only(planned)["id"] == "memory-reserve" and planned["argv"] == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"engine": "0.5.23"}, ["engine-unknown"]),
        ({"served_model_name": "qwen:27b"}, ["served-model-name"]),
        ({"gpu": {"card": "none"}}, ["gpu-memory"]),
        ({"workload": {**WORKLOAD, "concurrency": 0}}, ["workload"]),
        ({"workload": {**WORKLOAD, "mean_input_tokens": 4096}}, ["workload"]),
        ({"workload": {}}, ["workload"] * 5),
        ({"profile": {**PROFILES["batch"], "extra": 1}}, ["profile-keys"]),
        ({"checkpoint": checkpoint(config={})}, ["checkpoint-geometry"]),
        ({"checkpoint": checkpoint(bytes=0)}, ["checkpoint-bytes"]),
        ({"overrides": {"tp-size": 8}}, ["flag-parallel"]),
        ({"overrides": {"port": 30000, "api-key": "x"}}, ["flag-owned", "flag-owned"]),
        ({"overrides": {"max-runing-requests": 8}}, ["flag-unknown"]),
        ({"overrides": {"mem-fraction-static": None}}, ["flag-range"]),
        ({"overrides": {"mem-fraction-static": 1.2}}, ["flag-range"]),
        ({"overrides": {"page-size": 0}}, ["flag-range"]),
        ({"overrides": {"kv-cache-dtype": "fp4_e2m1"}}, ["kv-dtype"]),
        ({"env_overrides": {"CUDA_VISIBLE_DEVICES": "3"}}, ["env-owned"]),
    ],
)
def test_bad_input_is_a_finding_and_never_an_exception(changed, expected):
    planned = plan(**changed)
    assert ids(planned) == expected and planned["argv"] == []


def test_all_errors_come_at_once():
    planned = plan(engine="9.9", overrides={"port": 1, "log-requests": True, "atention-backend": "triton"}, workload={})
    assert len(ids(planned)) == 9


def test_lowered_precision_and_changed_weights_are_pointed_out():
    planned = plan(overrides={"kv-cache-dtype": "fp8_e4m3", "quantization": "fp8"})
    assert ids(planned, "warning") == ["precision", "precision"] and ids(planned, "not checked") == ["weights-size"]
    assert planned["argv"]


def test_a_draft_of_its_own_is_not_computed():
    planned = plan(
        mtp=False, overrides={"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/models/d"}
    )
    assert ids(planned, "not checked") == ["draft-memory"]


def test_a_plain_attention_model_gets_no_state_flags():
    config = copy.deepcopy(MODEL["config"])
    del config["text_config"]["linear_num_value_heads"]
    planned = plan("prefix", checkpoint=checkpoint(config=config), allow_reduced_state=True)
    assert ids(planned) == [] and planned["pools"]["max_mamba_cache_size"] is None
    assert not [token for token in planned["argv"] if "mamba" in token]


def test_the_inventory_s_key_order_does_not_change_the_plan():
    flags = {"reasoning-parser": "qwen3", "tool-call-parser": "qwen3_coder", "sleep-on-idle": True}
    assert plan(overrides=flags) == plan(overrides=dict(reversed(list(flags.items()))))


WORKLOADS = st.builds(
    lambda mean_in, mean_out, more_in, more_out, concurrency: {
        "mean_input_tokens": mean_in,
        "mean_output_tokens": mean_out,
        "max_input_tokens": mean_in + more_in,
        "max_output_tokens": mean_out + more_out,
        "concurrency": concurrency,
    },
    st.integers(1, 20_000),
    st.integers(1, 8_000),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
    st.integers(1, 600),
)
CHOICES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(sorted(PROFILES)),
        "workload": WORKLOADS,
        "allow_reduced_state": st.booleans(),
        "mtp": st.sampled_from([None, True, False]),
        "checkpoint": st.sampled_from([checkpoint(COMPLETE), checkpoint(ABSENT)]),
    }
)
MEMORY_MIB = st.integers(55_000, 200_000)


@settings(max_examples=150, deadline=None)
@given(CHOICES, MEMORY_MIB)
def test_a_plan_never_exceeds_its_budget_and_passes_the_flag_table(choice, memory_mib):
    planned = plan(memory_mib=memory_mib, **choice)
    if not planned["argv"]:
        assert ids(planned)
        return
    memory = planned["memory"]
    parts = set(memory) - {"total", "reserve", "spare"}
    assert sum(memory[name] for name in parts) == pytest.approx(memory["total"], abs=0.01)
    assert memory["total"] == pytest.approx(memory_mib / 1024, abs=0.001)
    assert all(memory[name] >= 0 for name in (*parts, "spare"))
    pools, work = planned["pools"], choice["workload"]
    mean = work["mean_input_tokens"] + work["mean_output_tokens"]
    assert pools["max_running_requests"] * mean <= pools["max_total_num_tokens"]
    assert 1 <= pools["max_running_requests"] <= work["concurrency"]
    assert TABLE.check(planned["argv"]) == []


@settings(max_examples=150, deadline=None)
@given(CHOICES, MEMORY_MIB, st.integers(1, 60_000))
def test_more_memory_never_plans_less(choice, memory_mib, more):
    less, most = (plan(memory_mib=size, **choice)["pools"] for size in (memory_mib, memory_mib + more))
    if not less:
        return
    assert most["max_running_requests"] >= less["max_running_requests"]
    if most["max_running_requests"] == less["max_running_requests"]:
        assert most["max_total_num_tokens"] >= less["max_total_num_tokens"]
