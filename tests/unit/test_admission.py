"""Flags of admission: only where they pay, and never where the engine would wait for an empty server."""

import pytest
from sglang_pve import admission

from tests.unit.planning import flags_of, plan

WORK = {"mean_input_tokens": 512, "mean_output_tokens": 256, "max_output_tokens": 4096, "concurrency": 512}


@pytest.mark.parametrize(
    ("change", "running", "chunk", "group"),
    [
        ({}, 199, 8192, 16),
        # Short prompts: the chunk would hold hundreds, and the engine would wait for as many to end.
        ({"mean_input_tokens": 20}, 199, 8192, 16),
        ({"mean_input_tokens": 2048}, 199, 8192, 4),
        # One prompt fills the chunk; few run; all ends at once; the server is never full.
        ({"mean_input_tokens": 8000}, 199, 8192, None),
        ({}, 16, 8192, None),
        ({"max_output_tokens": 256}, 199, 8192, None),
        ({"concurrency": 199}, 199, 8192, None),
    ],
)
def test_groups(change, running, chunk, group):
    flags, why = admission.groups({**WORK, **change}, running, chunk)
    assert flags == ({"enable-prefill-delayer": True, "prefill-max-requests": group} if group else {})
    assert bool(why) == bool(flags)


def test_a_plan_lets_prompts_in_by_groups_unless_the_inventory_has_its_own_way():
    work = {**WORK, "max_input_tokens": 512}
    flags = flags_of(plan(workload=work))
    assert flags["prefill-max-requests"] == "16" and "enable-prefill-delayer" in flags
    without_overlap = (
        {"disable-overlap-schedule": True},
        {"disable-radix-cache": False},
        {"speculative-algorithm": "NGRAM"},
    )
    for overrides in ({"enable-prefill-delayer": False}, {"prefill-max-requests": 64}, *without_overlap):
        flags = flags_of(plan(workload=work, overrides=overrides))
        assert "enable-prefill-delayer" not in flags and flags.get("prefill-max-requests") in (None, "64")
    for profile in ("safe", "prefix", "interactive"):
        assert "enable-prefill-delayer" not in flags_of(plan(profile, workload=work))
