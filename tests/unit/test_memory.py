"""The formulas against every start of the real engine, and against what public logs show."""

import copy

import pytest
from sglang_pve.memory import GIB, Geometry, GeometryError, MemoryFlags
from sglang_pve.sizing import Budget

from tests.unit.planning import ENGINE, GEOMETRY, MODEL, RTX_PRO_6000_MIB, STARTS

STARTED = [start for start in STARTS if "fails" not in start["seen"]]
WITH_DRAFT = [start for start in STARTED if "draft" in start["seen"]]


def by_name(start):
    return start["name"]


def pools_of(start):
    flags = MemoryFlags.read(start["flags"], GEOMETRY)
    return flags, ENGINE.pools(GEOMETRY, start["seen"]["pre"], start["seen"]["post"], flags)


def reserve_of(start):
    flags, pools = pools_of(start)
    return flags, ENGINE.reserve(GEOMETRY, flags, pools, MODEL["mtp_bytes"], margin=0)


def test_every_log_is_held():
    assert len(STARTS) == 13 and len(STARTED) == 12 and len(WITH_DRAFT) == 4


@pytest.mark.parametrize("start", [start for start in STARTED if "peak" in start["seen"]], ids=by_name)
def test_a_prefill_chunk_s_peak_is_held(start):
    flags, pools = pools_of(start)
    computed = ENGINE._prefill_gib(GEOMETRY, flags, pools.running)
    assert start["seen"]["peak"] <= computed <= start["seen"]["peak"] + 0.25


@pytest.mark.parametrize("start", STARTED, ids=by_name)
def test_given_the_free_memory_pools_are_those_of_the_log(start):
    seen, (_, pools) = start["seen"], pools_of(start)
    assert (pools.slots, pools.running, pools.problem) == (seen["slots"], seen["running"], "")
    assert pools.tokens == pytest.approx(seen["tokens"], rel=0.005)


def test_the_start_that_failed_fails_with_the_engine_s_words():
    (start,) = [start for start in STARTS if "fails" in start["seen"]]
    assert pools_of(start)[1].problem == start["seen"]["fails"]


@pytest.mark.parametrize("start", STARTED, ids=by_name)
def test_from_config_and_total_memory_alone_pools_are_close_and_never_over(start):
    seen = start["seen"]
    budget = Budget.of(ENGINE, GEOMETRY, RTX_PRO_6000_MIB, MODEL["bytes"], MODEL["mtp_bytes"], margin=0)
    pools = budget.pools(MemoryFlags.read(start["flags"], GEOMETRY))
    assert seen["slots"] * 0.97 <= pools.slots <= seen["slots"]
    assert seen["running"] * 0.97 <= pools.running <= seen["running"]
    assert seen["tokens"] * 0.97 <= pools.tokens <= seen["tokens"]


@pytest.mark.parametrize("start", STARTED, ids=by_name)
def test_workspace_and_graphs_hold_what_was_measured(start):
    seen, (_, reserve) = start["seen"], reserve_of(start)
    assert reserve.workspace >= seen["workspace"]
    assert seen["graphs"] <= reserve.graphs <= seen["graphs"] + 0.25


@pytest.mark.parametrize("start", [s for s in STARTED if "starved" not in s["name"]], ids=by_name)
def test_memory_left_after_the_graphs_is_predicted(start):
    """The starved start is left out: it wastes what its 48 requests reserved, which no plan does."""
    seen, (flags, reserve), (_, pools) = start["seen"], reserve_of(start), pools_of(start)
    held_back = pools.rest_gib - pools.kv_gib
    left = (
        held_back
        + seen["pre"] * (1 - flags.fraction)
        - reserve.padding
        - reserve.workspace
        - reserve.graphs
        - reserve.context
    )
    assert seen["after_graphs"] - 0.25 <= left <= seen["after_graphs"] + 0.05


@pytest.mark.parametrize("start", WITH_DRAFT, ids=by_name)
def test_a_draft_s_load_is_held_as_a_peak_of_its_own(start):
    seen, (_, pools) = start["seen"], pools_of(start)
    _, reserve = reserve_of(start)
    draft_kv = pools.tokens * GEOMETRY.kv_bytes("auto", layers=1) / GIB
    assert reserve.loading - draft_kv == pytest.approx(seen["draft"], abs=0.01)
    # Two logged figures of two decimals each.
    assert seen["after_graphs"] - reserve.loading <= seen["least"] + 0.01
    # In service its own embedding and head are given back, its graphs are there.
    without_prefill = reserve.serving - ENGINE._prefill_gib(GEOMETRY, pools_of(start)[0], pools.running)
    assert seen["after_graphs"] - without_prefill <= seen["ready"] + 0.01


def test_bytes_of_a_slot_and_a_token_agree_with_public_logs():
    """A log with 360 slots says conv 0.99 and ssm 50.77 GB; one with 228,520 fp8 tokens says K 3.49 GB."""
    conv = 361 * (48 * 128 + 2 * 16 * 128) * 3 * 2 * 48 / GIB
    assert conv == pytest.approx(0.99, abs=0.005)
    assert 361 * GEOMETRY.state_bytes("float32") / GIB - conv == pytest.approx(50.77, abs=0.005)
    assert 228520 * GEOMETRY.kv_bytes("fp8_e4m3") / 2 / GIB == pytest.approx(3.49, abs=0.005)
    assert GEOMETRY.state_bytes("float32") == 153_944_064
    assert GEOMETRY.state_bytes("bfloat16") == 78_446_592
    assert GEOMETRY.kv_bytes("auto") == 65_536


@pytest.mark.parametrize(
    ("requests", "slots", "running"), [(8, 97, 8), (12, 89, 12), (16, 82, 16), (20, 74, 14), (24, 67, 13)]
)
def test_with_mtp_more_requests_than_slots_carry_run_fewer(requests, slots, running):
    """Computed by hand from the same source for 94.5 GiB free before 50.956 GiB of weights, fraction 0.9."""
    flags = MemoryFlags.read(
        {
            "mamba-scheduler-strategy": "extra_buffer",
            "speculative-algorithm": "NEXTN",
            "max-running-requests": requests,
            "mem-fraction-static": 0.9,
            "context-length": 8192,
        },
        GEOMETRY,
    )
    pools = ENGINE.pools(GEOMETRY, 94.5, 94.5 - 50.956, flags)
    assert (pools.slots, pools.running) == (slots, running)


def read(**flags):
    return MemoryFlags.read({name.replace("_", "-"): value for name, value in flags.items()}, GEOMETRY)


def test_flags_are_read_as_the_engine_resolves_them():
    assert read(page_size=64).page == 1, "no_buffer with a radix cache forces pages of 1"
    assert read(page_size=64, disable_radix_cache=True).page == 64
    assert read(max_total_tokens="1Ki").tokens == 1024
    assert read(speculative_algorithm="EAGLE").running == 48
    assert read(context_length=9000).context == 9000
    assert read().context == GEOMETRY.max_context
    assert read(chunked_prefill_size=-1, context_length=2048).chunk == 16384
    assert read(chunked_prefill_size=-1, context_length=32768).chunk == 32768
    assert read(disable_cuda_graph=True).graph_limit == 0


def test_slots_per_request_follow_radix_cache_buffer_and_overlap():
    extra = {"mamba_scheduler_strategy": "extra_buffer"}
    assert ENGINE.slots_per_request(read(disable_radix_cache=True)) == 1
    assert ENGINE.slots_per_request(read()) == 3
    assert ENGINE.slots_per_request(read(**extra)) == 5
    assert ENGINE.slots_per_request(read(**extra, disable_overlap_schedule=True)) == 4


def changed_config(**text):
    config = copy.deepcopy(MODEL["config"])
    config["text_config"].update(text)
    return {**config, "text_config": {key: value for key, value in config["text_config"].items() if value is not None}}


def test_a_flat_config_reads_like_a_nested_one():
    assert Geometry.from_config(MODEL["config"]["text_config"]) == GEOMETRY


def test_a_plain_attention_model_has_no_slots():
    config = changed_config(linear_num_value_heads=None, num_hidden_layers=8)
    geometry = Geometry.from_config(config)
    assert (geometry.linear_layers, geometry.full_layers, geometry.state_bytes("float32")) == (0, 8, 0)
    flags = MemoryFlags.read({"mem-fraction-static": 0.9, "max-running-requests": 32}, geometry)
    pools = ENGINE.pools(geometry, 90, 50, flags)
    assert (pools.slots, pools.running) == (0, 32)
    assert pools.tokens == (50 * GIB - 9 * GIB) // (4 * 2 * 256 * 8 * 2)


def test_a_mixture_of_experts_counts_what_one_token_passes():
    config = changed_config(
        moe_intermediate_size=512, num_experts_per_tok=8, shared_expert_intermediate_size=512, intermediate_size=None
    )
    assert Geometry.from_config(config).intermediate == 8 * 512 + 512


def test_an_unknown_state_dtype_is_float32_as_in_the_engine():
    assert Geometry.from_config(changed_config(mamba_ssm_dtype="float8")).state_dtype == "float32"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"linear_key_head_dim": None}, "linear_key_head_dim"),
        ({"intermediate_size": None}, "intermediate_size"),
    ],
)
def test_a_model_that_no_formula_covers_is_refused_by_the_key(change, word):
    with pytest.raises(GeometryError, match=word):
        Geometry.from_config(changed_config(**change))


def test_a_window_that_is_switched_off_is_none():
    assert Geometry.from_config(changed_config(sliding_window=4096, use_sliding_window=False)) == GEOMETRY
