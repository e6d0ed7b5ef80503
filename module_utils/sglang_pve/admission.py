"""How the scheduler admits requests: the flags with which it admits as many as the pools hold, and in groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# On admission the scheduler keeps free 0.7 of a request's max_new_tokens, of at most 4,096: environ.py:222-226,
# managers/schedule_policy.py:468-478. The share is multiplied by --schedule-conservativeness.
SHARE, CLIP = 0.7, 4096
# A group of a twelfth of those that run: 16 of 199 were measured (docs/measurements). While one gathers, half of it
# is idle in the mean.
GROUP_SHARE = 12

Offer = tuple[dict[str, Any], str]


def conservativeness(kv_tokens: float, mean_input: float, max_output: int) -> Offer:
    """``--schedule-conservativeness`` for a pool of ``kv_tokens`` a request, and why; nothing where none is needed.

    Never under what lets the workload's mean output in, where that fits.
    """
    output, kept = kv_tokens - mean_input, SHARE * min(max_output, CLIP)
    if not 0 < output < kept:
        return {}, ""
    return {"schedule-conservativeness": max(math.floor(output / kept * 100) / 100, 0.01)}, (
        f"The scheduler would keep {kept:.0f} tokens free for a request's output where the pool has {output:.0f}; "
        "a lower conservativeness lets all of them run."
    )


def vary(work: Mapping[str, int]) -> bool:
    """Whether answers end one by one, since their lengths differ."""
    return work["max_output_tokens"] > work["mean_output_tokens"]


def groups(work: Mapping[str, int], running: int, chunk: int) -> Offer:
    """Flags that hold prompts back until a group of them has room, and why; nothing where that cannot pay.

    Answers that end one by one make a prefill of one prompt each, which stops all others: with a mean output of 256
    and a maximum of 4,096, groups gave 1,924 tokens/s where 1,605 were given without (one H200, 2026-12-01). The engine
    waits for room for the largest prefill it ever made (managers/prefill_delayer.py:141-165). Many short prompts would
    make it wait for an empty server, so --prefill-max-requests bounds it. Nothing waits while a group's places
    are free.
    """
    group = min(chunk // max(work["mean_input_tokens"], 1), running // GROUP_SHARE)
    if not vary(work) or work["concurrency"] <= running or group < 2:
        return {}, ""
    return {"enable-prefill-delayer": True, "prefill-max-requests": group}, (
        f"Prompts wait until {group} places are free, since answers of different lengths end one by one and a prefill "
        "of one prompt stops all others."
    )
