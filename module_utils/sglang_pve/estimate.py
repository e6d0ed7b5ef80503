"""How many tokens a second a plan gives, from a roofline: what a card reads and multiplies at most, and how much of it
the engine reached where it was measured.

It orders plans before anything runs. Its constants come from SGLang 0.5.11 with Qwen3.6-27B on one H200, 2026-12-01
(docs/measurements/); for every other card the figure is computed, not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import admission
from .memory import GIB, Geometry, MemoryFlags

# Measured on an H200 against its published 4.8 TB/s and 989 TFLOP/s: 4.3 and 790.
MEMORY_SHARE, MATRIX_SHARE = 0.896, 0.799
# What the engine reached of these: a prefill chunk 11,640 tokens/s; a decode step 39.6 ms at 256 running with bfloat16
# state, 39.7 at 197 with float32, 47 at 307.
PREFILL_SHARE, STEP_SHARE = 0.72, 0.72
# With MTP, by the draft's attention: steps of 51 and 65 ms at 40 and 72 running, 32 and 27 at 8.
DRAFT_SHARES = {"flashinfer": 0.47, "triton": 0.57}
# Answers whose lengths vary end one by one, and each lets in a prefill that stops all others: 1,605 tokens/s of 2,679
# that one length gave, 1,924 with prompts let in by groups (batch, 197 and 199 running, mean output 256, at most 4096).
VARIED_SHARE, GROUPED_SHARE = 0.60, 0.72
# Tokens that a step of three drafts accepts, the target's own included; what public reports give for this model.
ACCEPTED_TOKENS = 3.3


@dataclass(frozen=True)
class Card:
    """``memory_gb_s`` in 10^9 bytes, ``matrix_tflops`` in 10^12 operations (bfloat16, dense) a second."""

    id: str
    memory_gb_s: float
    matrix_tflops: float
    measured: bool


def card_of(name: str, cards: Sequence[Mapping[str, Any]]) -> Card | None:
    """The card that nvidia-smi calls ``name``; None for one whose rates are not known."""
    for card in cards:
        if card["match"].lower() in name.lower():
            return Card(card["id"], card["memory_gb_s"], card["matrix_tflops"], bool(card.get("measured")))
    return None


def products(g: Geometry) -> float:
    """Parameters that one token is multiplied with in the layers, without the output head. Qwen3.6-27B: 24.3e9."""
    mlp = 3 * g.hidden * g.intermediate
    # Queries have a gate of their own size.
    full = g.hidden * ((2 * g.heads + 2 * g.kv_heads) * g.head_dim) + g.heads * g.head_dim * g.hidden
    keys, values = g.k_heads * g.k_dim, g.v_heads * g.v_dim
    linear = g.hidden * (2 * keys + 2 * values) + values * g.hidden
    return mlp * (g.full_layers + g.linear_layers) + full * g.full_layers + linear * g.linear_layers


def admitted(running: int, tokens: int, work: Mapping[str, int], radix: bool = False) -> int:
    """How many of the running limit really run: no more than are sent, nor than the KV pool holds at their mean.

    A radix cache keeps a shared prefix once.
    """
    shared = work.get("shared_prefix_tokens", 0) if radix else 0
    mean = work["mean_input_tokens"] - shared + work["mean_output_tokens"]
    return max(min(running, work["concurrency"], (tokens - shared) // max(mean, 1)), 1)


def tokens_per_s(
    g: Geometry,
    card: Card,
    flags: MemoryFlags,
    work: Mapping[str, int],
    requests: int,
    weights_gib: float,
    mtp_gib: float = 0.0,
    draft_attention: str = "flashinfer",
) -> float:
    """Output tokens a second with ``requests`` running without a pause, all of the workload's mean lengths.

    A cycle of one request each: their prefill, then their steps. A step multiplies the weights with every token of it
    (bound by memory or by matrix products, whichever is slower) and moves states and keys and values, which MTP does
    more: it reads a state, writes one for each of its draft tokens, and copies the accepted one.
    """
    memory = card.memory_gb_s * 1e9 * MEMORY_SHARE
    matrix = card.matrix_tflops * 1e12 * MATRIX_SHARE
    mean_in, mean_out = work["mean_input_tokens"], work["mean_output_tokens"]
    cached = work.get("shared_prefix_tokens", 0) if flags.radix else 0
    prefill = requests * max(mean_in - cached, 1) * 2 * products(g) / matrix / PREFILL_SHARE
    width = max(flags.draft_tokens, 1)
    weights = weights_gib * GIB
    head = g.vocab * g.hidden * 2
    step = max(weights / memory, 2 * (products(g) + g.vocab * g.hidden) * requests * width / matrix)
    moved = 2 if not flags.draft_tokens else flags.draft_tokens + 2
    states = requests * g.state_bytes(flags.state_dtype) * moved if g.linear_layers else 0
    cells = requests * (mean_in + mean_out / 2) * g.kv_bytes(flags.kv_dtype)
    step += (states + cells) / memory
    share, accepted = STEP_SHARE, 1.0
    if flags.draft_tokens:
        step += (flags.draft_tokens - 1) * (mtp_gib * GIB + head) / memory
        share, accepted = DRAFT_SHARES.get(draft_attention, min(DRAFT_SHARES.values())), ACCEPTED_TOKENS
    return requests * mean_out / (prefill + mean_out / accepted * step / share)


def of_plan(
    plan: Mapping[str, Any],
    flags: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    work: Mapping[str, int],
    card: Card | None,
) -> dict[str, Any]:
    """``{"requests", "retracted", "tokens_per_s", "basis"}`` of a plan with its canonical ``flags``; empty for one
    without pools.

    ``retracted``: of those that the running limit lets in, how many find no room at their mean and are put back.
    ``tokens_per_s`` is None for a card whose rates are not known, ``basis`` a sentence that says where it comes from.
    """
    if not plan.get("pools"):
        return {}
    g = Geometry.from_config(checkpoint["config"])
    memory = MemoryFlags.read(flags, g)
    pools = plan["pools"]
    requests = admitted(pools["max_running_requests"], pools["max_total_num_tokens"], work, memory.radix)
    retracted = max(min(pools["max_running_requests"], work["concurrency"]) - requests, 0)
    if card is None:
        basis = "No estimate: cards/known.yml lacks this card."
        return {"requests": requests, "retracted": retracted, "tokens_per_s": None, "basis": basis}
    mtp = (checkpoint.get("mtp") or {}).get("bytes") or 0
    weights = (checkpoint["bytes"] - mtp) / GIB
    draft = str(flags.get("speculative-draft-attention-backend", "flashinfer"))
    speed = tokens_per_s(g, card, memory, work, requests, weights, mtp / GIB, draft)
    varied = admission.vary(work) and work["concurrency"] > requests
    if varied:
        speed *= GROUPED_SHARE if flags.get("enable-prefill-delayer") else VARIED_SHARE
    rates = f"{card.memory_gb_s:,.0f} GB/s and {card.matrix_tflops:,.0f} TFLOP/s of {card.id}"
    how = "with the shares measured on it" if card.measured else "with shares measured on an H200: not measured on it"
    return {
        "requests": requests,
        "retracted": retracted,
        "tokens_per_s": round(speed),
        "basis": f"About {speed:,.0f} tokens/s with {requests} running, computed from {rates}, {how}."
        + (" A share for lengths that vary is taken off, measured once." if varied else ""),
    }
