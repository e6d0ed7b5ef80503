"""A plan: a profile resolved for one card type and one checkpoint, as exact argv, environment and predicted pools.

``resolve`` does not raise for what a person can get wrong: each such thing is a finding in the plan, and a plan with
an error finding has an empty argv.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import admission
from .findings import Finding, errors, worst_first
from .flags import FlagTable, human_readable_int, refused, to_argv
from .memory import DTYPE_BYTES, ENGINES, GIB, KV_BYTES, Geometry, GeometryError, MemoryFlags
from .sizing import Budget, Demand

PROFILE_KEYS = {"id", "purpose", "source", "flags", "mtp", "running_limit", "margin_gib", "admit_in_groups"}
WORKLOAD_KEYS = ("mean_input_tokens", "mean_output_tokens", "max_input_tokens", "max_output_tokens", "concurrency")
# 0 when absent: tokens at the start of every prompt that are the same; a radix cache keeps them once.
WORKLOAD_OPTIONS = ("shared_prefix_tokens",)

# Three steps of one candidate: what the model's makers recommend. NEXTN names a head that comes with the checkpoint.
MTP_FLAGS = {
    "speculative-algorithm": "NEXTN",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
    # 847 tokens/s at 8 requests where flashinfer gave 721 (measured on one H200).
    "speculative-draft-attention-backend": "triton",
}
ENVIRONMENT = {
    # Prompt logprobs would need 7.6 GiB a chunk at once without the first, and some 5.8 in the engine's pieces of 2,048
    # positions, which ended a server. In pieces of 256, 197 requests at once left as much free as without (measured).
    "SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK": "1",
    "SGLANG_LOGITS_PROCESSER_CHUNK_SIZE": "256",
    # No start may wait for a hub.
    "HF_HUB_OFFLINE": "1",
}
MTP_ENVIRONMENT = {"SGLANG_ENABLE_SPEC_V2": "1"}
# The engine keeps 6 tokens of the context for itself: managers/tp_worker.py:302-306.
CONTEXT_SLACK = 8
# Whose formulas the profile safe takes for an engine that has none of its own.
NEAREST = "0.5.11"
# The flags that are sized here, and their names in MemoryFlags.
SIZED = {"max-running-requests": "running", "max-mamba-cache-size": "slots", "max-total-tokens": "tokens"}


class _Draft:
    """The plan while it grows: its flags, in which the inventory's always win, findings and reasons."""

    def __init__(self, table: FlagTable, overrides: Mapping[str, Any]) -> None:
        self.overrides = {table.canonical(name): value for name, value in overrides.items()}
        self.flags = {name: value for name, value in self.overrides.items() if value is not None}
        self.findings: list[Finding] = []
        self.reasons: list[str] = []

    def offer(self, flags: Mapping[str, Any]) -> None:
        self.flags.update((name, value) for name, value in flags.items() if name not in self.overrides)

    def take(self, offer: admission.Offer) -> None:
        """Flags with the sentence that explains them; nothing of it where the inventory sets one of them itself."""
        flags, why = offer
        if flags and not flags.keys() & self.overrides.keys():
            self.offer(flags)
            self.reasons.append(why)

    def find(self, rule: str, level: str, seen: str, expected: str, cure: str, where: str = "") -> None:
        self.findings.append(Finding(rule, level, seen, expected, cure, where))


def resolve(
    *,
    profile: Mapping[str, Any],
    engine: str,
    flag_table: FlagTable,
    checkpoint: Mapping[str, Any],
    gpu: Mapping[str, Any],
    workload: Mapping[str, Any],
    model_path: str,
    served_model_name: str,
    allow_reduced_state: bool = False,
    mtp: bool | None = None,
    overrides: Mapping[str, Any] | None = None,
    env_overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resolve ``profile`` (a file of profiles/) for one card type and one checkpoint.

    ``checkpoint``: config (config.json), bytes (of all tensors), mtp {bytes, complete, missing}. ``gpu``: card and
    memory_total_mib. ``workload``: WORKLOAD_KEYS. ``mtp``: None leaves it to the profile. ``overrides``: flags of the
    inventory, which win over the profile; None removes one and leaves its value to the engine. ``env_overrides``
    likewise.
    Returns profile, card, engine, argv, env, pools (as /server_info names them), memory (GiB), reasons (sentences) and
    findings (dicts, worst first).
    """
    overrides, env_overrides = overrides or {}, env_overrides or {}
    draft = _Draft(flag_table, overrides)
    draft.findings.extend(flag_table.check(flag_table.spelled(overrides)))
    draft.findings.extend(refused(draft.overrides, env_overrides))
    _check_inputs(draft, profile, engine, gpu, workload, served_model_name)
    if not errors(draft.findings):
        _check_ranges(draft)
    geometry = _geometry(draft, checkpoint)
    head = checkpoint.get("mtp") or {}
    hybrid = geometry is None or geometry.linear_layers > 0
    own = profile.get("flags") or {}
    draft.offer({name: value for name, value in own.items() if hybrid or not name.startswith("mamba-")})
    draft.offer({"model-path": model_path, "served-model-name": served_model_name, "enable-metrics": True})
    _choose_mtp(draft, profile, head, mtp)
    pools: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    if geometry and not errors(draft.findings):
        _choose_precision(draft, geometry, allow_reduced_state)
        budget = Budget.of(
            ENGINES.get(engine, ENGINES[NEAREST]),
            geometry,
            total_mib=int(gpu["memory_total_mib"]),
            tensor_bytes=int(checkpoint["bytes"]),
            mtp_bytes=int(head.get("bytes") or 0),
            margin=float(profile["margin_gib"]),
        )
        pools, memory = _size(draft, budget, profile, _numbers(workload))
        draft.findings.extend(flag_table.check(flag_table.spelled(draft.flags)))
    env = {**ENVIRONMENT, **(MTP_ENVIRONMENT if "speculative-algorithm" in draft.flags else {}), **env_overrides}
    return {
        "profile": str(profile.get("id", "")),
        "card": str(gpu.get("card", "")),
        "engine": engine,
        "argv": [] if errors(draft.findings) else to_argv(flag_table.spelled(draft.flags)),
        "env": {name: str(value) for name, value in sorted(env.items()) if value is not None},
        "pools": pools,
        "memory": memory,
        "reasons": draft.reasons,
        # What is wrong with a flag of the inventory is found again in the whole command line.
        "findings": [finding.as_dict() for finding in worst_first(dict.fromkeys(draft.findings))],
    }


def _numbers(workload: Mapping[str, Any]) -> dict[str, int]:
    return {key: int(workload.get(key) or 0) for key in (*WORKLOAD_KEYS, *WORKLOAD_OPTIONS)}


def _check_inputs(
    draft: _Draft,
    profile: Mapping[str, Any],
    engine: str,
    gpu: Mapping[str, Any],
    workload: Mapping[str, Any],
    served_model_name: str,
) -> None:
    if engine not in ENGINES:
        careful = profile.get("id") == "safe"
        cure = (
            "Compare the server's pools with the plan." if careful else "Set sglang_profile: safe, or another engine."
        )
        expected = f"one whose memory formulas are known: {', '.join(ENGINES)}; others plan only the profile safe"
        seen = f"engine {engine}, planned with the formulas of {NEAREST}" if careful else f"engine {engine}"
        draft.find("engine-unknown", "not checked" if careful else "error", seen, expected, cure)
    if set(profile) - {"ladder"} != PROFILE_KEYS:
        odd = ", ".join(sorted((set(profile) - {"ladder"}) ^ PROFILE_KEYS))
        expected = f"exactly {', '.join(sorted(PROFILE_KEYS))}"
        draft.find("profile-keys", "error", f"missing or unknown: {odd}", expected, "Correct the profile's file.")
    if int(gpu.get("memory_total_mib") or 0) <= 0:
        seen = f"memory_total_mib {gpu.get('memory_total_mib')}"
        draft.find(
            "gpu-memory", "error", seen, "the card's total memory in MiB", "Look at nvidia-smi in the container."
        )
    if not served_model_name or ":" in served_model_name:
        cure = "Choose another sglang_served_model_name."
        draft.find("served-model-name", "error", repr(served_model_name), "a name without a colon", cure)
    for key in WORKLOAD_KEYS:
        if int(workload.get(key) or 0) < 1:
            cure = "Correct the workload of the inventory."
            draft.find("workload", "error", f"{key} {workload.get(key)}", "a count of 1 or more", cure, key)
    if int(workload.get("shared_prefix_tokens") or 0) > int(workload.get("mean_input_tokens") or 0):
        seen, expected = f"shared_prefix_tokens {workload['shared_prefix_tokens']}", "at most mean_input_tokens"
        draft.find("workload", "error", seen, expected, "Correct the workload of the inventory.")
    for kind in ("input", "output"):
        mean, most = (int(workload.get(f"{part}_{kind}_tokens") or 0) for part in ("mean", "max"))
        if mean > most > 0:
            cure = "Correct the workload of the inventory."
            draft.find("workload", "error", f"a mean of {mean}", f"at most the maximum, {most}", cure, f"{kind} tokens")


def _check_ranges(draft: _Draft) -> None:
    """Numbers of the inventory that have the right type and still cannot be meant."""
    fraction = draft.overrides.get("mem-fraction-static", 0.5)
    if fraction is None or not 0 < float(fraction) < 1:
        cure = "Give it such a number, or remove the entry to have it computed."
        expected = "a number between 0 and 1: all pools follow from it"
        draft.find("flag-range", "error", str(fraction), expected, cure, "--mem-fraction-static")
    for name in (*SIZED, "page-size", "context-length"):
        value = draft.overrides.get(name)
        if value is not None and human_readable_int(str(value)) < 1:
            cure = "Correct it, or remove the entry to have it computed."
            draft.find("flag-range", "error", str(value), "1 or more", cure, f"--{name}")


def _geometry(draft: _Draft, checkpoint: Mapping[str, Any]) -> Geometry | None:
    if int(checkpoint.get("bytes") or 0) < 1:
        seen = f"bytes {checkpoint.get('bytes')}"
        draft.find("checkpoint-bytes", "error", seen, "the size of all its tensors", "Inspect the checkpoint first.")
    try:
        return Geometry.from_config(checkpoint.get("config") or {})
    except GeometryError as error:
        cure = "Choose another checkpoint; formulas for a new kind of model go into memory.py."
        draft.find("checkpoint-geometry", "error", str(error), "a model whose memory is known", cure)
        return None


def _choose_mtp(draft: _Draft, profile: Mapping[str, Any], head: Mapping[str, Any], asked: bool | None) -> None:
    complete, missing = bool(head.get("complete")), [str(name) for name in head.get("missing") or []]
    names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    lacking = f"the checkpoint's MTP head is not complete: {names + ' missing' if names else 'it has none'}"
    wanted = asked if asked is not None else profile.get("mtp") == "when complete"
    if wanted and (complete or asked):
        draft.offer(MTP_FLAGS)
        draft.reasons.append("MTP drafts three tokens a step: it pays at low concurrency and costs state memory.")
    elif wanted:
        draft.reasons.append(f"MTP is off: {lacking}.")
        cure = "Attach a head, or leave it: the profile serves without."
        draft.find("mtp-absent", "note", lacking, "a complete head, which this profile uses", cure)
    algorithm = draft.flags.get("speculative-algorithm")
    if algorithm in ("NEXTN", "EAGLE") and "speculative-draft-model-path" not in draft.flags:
        if not complete:
            cure = "Set sglang_mtp: false, or take a checkpoint with its head: the engine would draft noise, silently."
            draft.find("mtp-incomplete", "error", lacking, "every mtp.* tensor", cure)
    elif algorithm:
        seen, cure = f"{algorithm} with a draft of its own", "Watch the memory of the first start."
        draft.find("draft-memory", "not checked", seen, "a draft whose memory is computed", cure)


def _choose_precision(draft: _Draft, geometry: Geometry, allow_reduced_state: bool) -> None:
    """bfloat16 state where that is allowed; what the inventory's own flags lower is pointed out."""
    if allow_reduced_state and geometry.linear_layers and geometry.state_dtype == "float32":
        draft.offer({"mamba-ssm-dtype": "bfloat16"})
        draft.reasons.append("States are bfloat16, half the model's own float32, because the inventory allows it.")
    kv = str(draft.flags.get("kv-cache-dtype", "auto"))
    if kv not in KV_BYTES:
        expected = f"one whose size is known: {', '.join(KV_BYTES)}"
        draft.find("kv-dtype", "error", kv, expected, "Choose another type.", "--kv-cache-dtype")
    state = str(draft.flags.get("mamba-ssm-dtype", geometry.state_dtype))
    lowered = {
        "--kv-cache-dtype": KV_BYTES.get(kv, 2) < 2,
        "--mamba-ssm-dtype": not allow_reduced_state and DTYPE_BYTES.get(state, 4) < DTYPE_BYTES[geometry.state_dtype],
        "--quantization": "quantization" in draft.flags,
    }
    for flag in (flag for flag, low in lowered.items() if low):
        seen, cure = str(draft.flags[flag[2:]]), "Compare answers with and without it before you rely on them."
        draft.find("precision", "warning", seen, "the checkpoint's own precision", cure, flag)
    if lowered["--quantization"]:
        seen, cure = "weights changed while loading", "Compare the server's pools with the plan."
        draft.find("weights-size", "not checked", seen, "weights as they are stored", cure, "--quantization")


def _size(
    draft: _Draft, budget: Budget, profile: Mapping[str, Any], work: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make context length, running limit and pools explicit; return the pools and where the memory goes."""
    mean_in, mean_out, max_in, max_out, concurrency = (work[key] for key in WORKLOAD_KEYS)
    longest, known = max_in + max_out, budget.geometry.max_context
    limit = min(concurrency, profile["running_limit"] or concurrency)
    # Graphs for all requests that may run, until it is known how many do.
    context = min(math.ceil((longest + CONTEXT_SLACK) / 64) * 64, known)
    draft.offer({"context-length": context, "cuda-graph-max-bs": limit})
    flags = MemoryFlags.read(draft.flags, budget.geometry)
    if flags.context > known:
        cure = "Lower it, or remove the entry to have it computed."
        draft.find("context-length", "error", str(flags.context), f"at most {known}", cure, "--context-length")
    if longest > flags.context:
        cure = "Lower max_input_tokens or max_output_tokens of the workload."
        expected = f"at most {flags.context}, the context length"
        draft.find("context-length", "error", f"requests of up to {longest} tokens", expected, cure)
    if errors(draft.findings):
        return {}, {}
    left = {field for name, field in SIZED.items() if draft.overrides.get(name, 0) is None}
    # Beside its tokens a request holds part of a page and, with MTP, the tokens of one draft.
    beside = flags.page - 1 + flags.draft_tokens
    shared = work["shared_prefix_tokens"] if flags.radix else 0
    demand = Demand(
        limit, mean_in - shared + mean_out + beside, min(longest + CONTEXT_SLACK, flags.context) + beside, shared
    )
    if "max-running-requests" not in draft.overrides:
        most = budget.largest_running(flags, demand, left)
        # Where not even one fits, the numbers of one are told.
        flags = replace(flags, running=max(most, 1))
        why = "the most that fit" if most < limit else "as many as the workload and the profile ask for"
        draft.reasons.append(
            f"{flags.running} run at once, {why}, with KV for {mean_in - shared} + {mean_out} tokens each."
        )
    flags = budget.settle(flags, left)
    pools = budget.pools(flags)
    if pools.problem or pools.tokens < demand.max_tokens:
        _does_not_fit(draft, budget, flags, demand)
        return {}, {}
    _judge(draft, budget, flags, demand, left)
    draft.offer({"mem-fraction-static": flags.fraction, "max-running-requests": pools.running})
    draft.offer({"cuda-graph-max-bs": pools.running, "max-total-tokens": pools.tokens})
    if budget.geometry.linear_layers:
        draft.offer({"max-mamba-cache-size": pools.slots})
    free, reserve = budget.rest(flags), budget.reserve(flags)
    draft.reasons.append(
        f"A fraction of {flags.fraction} leaves {free:.2f} GiB outside the pools; {reserve.total:.2f} are needed there."
    )
    draft.take(admission.conservativeness((pools.tokens - shared) / pools.running, mean_in - shared, max_out))
    if profile["admit_in_groups"] and _overlaps(draft.flags, budget.geometry):
        draft.take(admission.groups(work, pools.running, flags.chunk))
    reported = {
        "max_total_num_tokens": pools.tokens,
        "max_running_requests": pools.running,
        "max_mamba_cache_size": pools.slots if budget.geometry.linear_layers else None,
    }
    return reported, budget.breakdown(flags)


def _overlaps(flags: Mapping[str, Any], geometry: Geometry) -> bool:
    """Whether the engine surely keeps overlap scheduling: server_args.py:2428-2433, 3436-3472."""
    states_allow = (
        not geometry.linear_layers
        or bool(flags.get("disable-radix-cache"))
        or str(flags.get("mamba-scheduler-strategy")).startswith("extra_buffer")
    )
    return states_allow and not flags.get("disable-overlap-schedule") and not flags.get("speculative-algorithm")


def _does_not_fit(draft: _Draft, budget: Budget, flags: MemoryFlags, demand: Demand) -> None:
    """The error for pools that cannot work: what they need, what there is, what to do."""
    geometry, requests, slots = budget.geometry, flags.running or 1, flags.slots or 0
    each = budget.engine.slots_per_request(flags)
    if "max-mamba-cache-size" in draft.overrides and 0 < slots < each:
        cure = "Remove it to have it computed."
        expected = f"at least the {each} of one running request"
        draft.find("memory", "error", f"{slots} state slots", expected, cure, "--max-mamba-cache-size")
        return
    if "max-total-tokens" in draft.overrides and flags.tokens is not None and flags.tokens < demand.max_tokens:
        cure = "Remove it to have it computed, or lower the workload's maximum tokens."
        expected = f"at least the {demand.max_tokens} of the workload's longest request"
        draft.find("memory", "error", f"{flags.tokens} KV tokens", expected, cure, "--max-total-tokens")
        return
    state, token = geometry.state_bytes(flags.state_dtype), geometry.kv_bytes(flags.kv_dtype)
    need = {
        "weights": budget.weights,
        f"states for {requests} running": state * (slots + requests * flags.draft_tokens) / GIB,
        f"KV of one request of {demand.max_tokens} tokens": token * demand.max_tokens / GIB,
    }
    seen = f"{sum(need.values()):.2f} GiB needed: " + ", ".join(f"{name} {gib:.2f}" for name, gib in need.items())
    expected = f"at most {budget.pre * flags.fraction:.2f}, the fraction {flags.fraction} of {budget.pre:.2f} GiB"
    fixed = [name for name in (*SIZED, "mem-fraction-static") if draft.overrides.get(name) is not None]
    cures = [f"remove {', '.join(fixed)} from the inventory's flags"] if fixed else []
    cures.append("lower the workload's maximum tokens")
    if flags.state_dtype == "float32" and geometry.linear_layers:
        cures.append("set sglang_allow_reduced_state: true, which halves the states")
    draft.find(
        "memory", "error", seen, expected, f"Either {'; '.join(cures)}; take a smaller checkpoint or a larger card."
    )


def _judge(draft: _Draft, budget: Budget, flags: MemoryFlags, demand: Demand, left: set[str]) -> None:
    """What the inventory's own sizes do to a plan that would start. Sizes chosen here pass."""
    pools, reserve, rest = budget.pools(flags), budget.reserve(flags), budget.rest(flags)
    if reserve.total > rest:
        level = "error" if reserve.total - reserve.margin > rest else "warning"
        seen = f"{rest:.2f} GiB outside the pools"
        expected = f"{reserve.total:.2f}, {reserve.margin:.2f} of them margin"
        cure = "Lower it, or remove it to have it computed."
        draft.find("memory-reserve", level, seen, expected, cure, "--mem-fraction-static")
    if flags.running is not None and pools.running < flags.running:
        seen, expected = f"{pools.running} requests can run", f"the {flags.running} of --max-running-requests"
        each = budget.engine.slots_per_request(flags)
        cure = f"Give --max-mamba-cache-size {flags.running * each} ({each} slots a request), or lower the limit."
        draft.find("running-limit", "warning", seen, expected, cure, "--max-running-requests")
    if pools.tokens < demand.tokens(pools.running):
        seen = f"{pools.tokens} KV tokens for {pools.running} running requests"
        expected = f"{demand.tokens(pools.running)}, their mean need"
        draft.find("kv-tight", "warning", seen, expected, "Lower --max-running-requests: some would be put back.")
    sure = budget.settle(replace(flags, tokens=None)).tokens or 0
    if flags.tokens is not None and flags.tokens > sure:
        seen, expected = str(flags.tokens), f"at most {sure}, 1 % under what the card should hold"
        cure = "Lower it, or the server may report fewer than the plan."
        draft.find("tokens-uncertain", "warning", seen, expected, cure, "--max-total-tokens")
    for name in (name for name, field in SIZED.items() if field in left):
        cure = "Remove the null: what the server reports may differ from this plan."
        draft.find("pool-open", "note", "null, so the engine chooses", "an explicit size", cure, f"--{name}")
