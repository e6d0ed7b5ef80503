"""The estimate of tokens a second against what the real engine gave, and what must hold of it on any card."""

import itertools

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sglang_pve import estimate
from sglang_pve.memory import GIB, MemoryFlags

from tests.unit.planning import CASES, GEOMETRY, MODEL, ROOT, plan

CARDS = yaml.safe_load((ROOT / "cards/known.yml").read_text())["cards"]
SPEEDS = yaml.safe_load((CASES / "speeds.yml").read_text())["speeds"]
H200 = estimate.card_of("NVIDIA H200", CARDS)
WORK = {"mean_input_tokens": 512, "mean_output_tokens": 256, "max_output_tokens": 256, "concurrency": 512}
WEIGHTS = (MODEL["bytes"] - MODEL["mtp_bytes"]) / GIB


def speed(flags, running, card=H200, **work):
    draft = flags.get("speculative-draft-attention-backend", "flashinfer")
    read = MemoryFlags.read(flags, GEOMETRY)
    mtp = MODEL["mtp_bytes"] / GIB
    return estimate.tokens_per_s(GEOMETRY, card, read, {**WORK, **work}, running, WEIGHTS, mtp, draft)


@pytest.mark.parametrize("seen", SPEEDS, ids=lambda seen: seen["name"])
def test_it_is_close_to_what_was_measured(seen):
    assert speed(seen["flags"], seen["running"]) == pytest.approx(seen["tokens_per_s"], rel=0.12)


def test_it_orders_the_measured_plans_as_they_came_out():
    """Two runs of one server differ by a percent, so what is within two is no order."""
    for slow, fast in itertools.permutations(SPEEDS, 2):
        if (slow["running"] == 8) == (fast["running"] == 8) and slow["tokens_per_s"] * 1.02 < fast["tokens_per_s"]:
            assert speed(slow["flags"], slow["running"]) < speed(fast["flags"], fast["running"])


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA H200", "h200"),
    ],
)
def test_cards_are_known_by_the_name_that_nvidia_smi_gives(name, id):
    assert estimate.card_of(name, CARDS).id == id


def test_an_unknown_card_has_no_speed_and_says_so():
    assert estimate.card_of("NVIDIA T4", CARDS) is None
    said = estimate.of_plan(plan(), {}, {"config": MODEL["config"], "bytes": MODEL["bytes"]}, WORK, None)
    assert said["tokens_per_s"] is None and "cards/known.yml" in said["basis"]


def test_a_card_that_was_not_measured_is_labelled():
    planned, checkpoint = plan(), {"config": MODEL["config"], "bytes": MODEL["bytes"]}
    for card, label in (("NVIDIA H200", "measured on it"), ("NVIDIA GeForce RTX 5090", "not measured on it")):
        said = estimate.of_plan(planned, {}, checkpoint, WORK, estimate.card_of(card, CARDS))
        assert label in said["basis"] and (("not " + label) in said["basis"]) is False
    assert estimate.of_plan({"pools": {}}, {}, checkpoint, WORK, H200) == {}


def test_those_that_run_are_bound_by_what_is_sent_and_by_what_the_pool_holds():
    assert estimate.admitted(197, 200_000, WORK) == 197
    assert estimate.admitted(600, 10**6, WORK) == 512
    assert estimate.admitted(197, 76_800, WORK) == 100
    assert estimate.admitted(1, 10, WORK) == 1


def test_a_shared_prefix_is_computed_once_where_a_radix_cache_keeps_it():
    radix, none = {}, {"disable-radix-cache": True}
    assert speed(radix, 22, shared_prefix_tokens=400) > speed(radix, 22)
    assert speed(none, 22, shared_prefix_tokens=400) == speed(none, 22)


@given(running=st.integers(1, 400), more=st.integers(1, 200), bandwidth=st.floats(1.01, 4))
def test_more_requests_or_a_faster_card_never_give_less(running, more, bandwidth):
    flags = {"disable-radix-cache": True}
    assert speed(flags, running + more) >= speed(flags, running) * 0.999
    faster = estimate.Card("x", H200.memory_gb_s * bandwidth, H200.matrix_tflops, False)
    assert speed(flags, running, faster) >= speed(flags, running)


def test_lengths_that_vary_cost_what_they_were_measured_to_cost():
    """1,605 tokens/s, and 1,924 with prompts let in by groups, on the card that the constants come from."""
    checkpoint = {"config": MODEL["config"], "bytes": MODEL["bytes"]}
    work = {**WORK, "max_input_tokens": 512, "max_output_tokens": 4096}
    planned = plan(workload=work)

    def speed_with(**flags):
        return estimate.of_plan(planned, {"disable-radix-cache": True, **flags}, checkpoint, work, H200)["tokens_per_s"]

    assert speed_with() == pytest.approx(1605, rel=0.1)
    assert speed_with(**{"enable-prefill-delayer": True}) == pytest.approx(1924, rel=0.1)


def test_what_the_pools_do_not_hold_is_put_back():
    checkpoint = {"config": MODEL["config"], "bytes": MODEL["bytes"]}
    for overrides, retracted in (({}, 0), ({"max-total-tokens": 76800, "max-running-requests": 199}, 99)):
        planned = plan(workload=WORK | {"max_input_tokens": 512}, overrides=overrides)
        said = estimate.of_plan(planned, {}, checkpoint, WORK, H200)
        assert (said["retracted"], planned["pools"]["max_running_requests"]) == (retracted, 199)
