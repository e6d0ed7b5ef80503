"""From the values of the command line to the settings that the engine runs with, or its refusal.

The order is the engine's own: the first thing wrong is the one reported.
"""

import os
import random

from .journal import say

# Memory of a card in MiB below which the engine takes smaller chunks and graphs: (limit, chunk, largest graph).
_BY_MEMORY = ((20, 2048, 8), (35, 2048, 24), (60, 4096, 32), (160, 8192, 256))
_LARGEST = (16384, 512)
_TRUE = ("1", "true", "yes")


def resolve(values, card, model):
    """Settings by name for one card (see card.Card) and one checkpoint (see checkpoint.Model).

    Raises RuntimeError, ValueError or AssertionError with the engine's text where it refuses to start.
    """
    s = dict(values)
    s["tokenizer_path"] = s["tokenizer_path"] or s["model_path"]
    s["served_model_name"] = s["served_model_name"] or s["model_path"]
    if card is None:
        raise RuntimeError("No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) is available.")
    s["device"] = (s["device"] or "cuda").split(":")[0]
    if s["random_seed"] is None:
        s["random_seed"] = random.randint(0, 1 << 30)
    if s["mm_process_config"] is None:
        s["mm_process_config"] = {}
    if s["mamba_scheduler_strategy"] == "auto":
        s["mamba_scheduler_strategy"] = "no_buffer"
    s["context_length"] = _context_length(s, model)
    multimodal = "vision_config" in model.config
    if multimodal and not s["enforce_piecewise_cuda_graph"]:
        s["disable_piecewise_cuda_graph"] = True
    _memory(s, card, model)
    _mamba(s, card, model)
    _attention(s, card)
    _linear_attention(s, card)
    s["sampling_backend"] = s["sampling_backend"] or "flashinfer"
    s["grammar_backend"] = s["grammar_backend"] or "xgrammar"
    s["page_size"] = s["page_size"] or 1
    _speculation(s)
    assert ":" not in s["served_model_name"], (
        f"served_model_name cannot contain a colon (':') character. Invalid value: '{s['served_model_name']}'"
    )
    return s


def context_of(settings, model):
    """Longest request in tokens."""
    return settings["context_length"] or model.context


def _context_length(s, model):
    asked = s["context_length"]
    if asked is None or asked <= model.context:
        return asked
    text = (
        f"Warning: User-specified context_length ({asked}) is greater than the derived context_length"
        f" ({model.context}). This may lead to incorrect model outputs or CUDA errors. Note that the derived"
        " context_length may differ from max_position_embeddings in the model's config."
    )
    if os.environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in _TRUE:
        say(text)
        return asked
    raise ValueError(
        f"{text} To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    )


def _memory(s, card, model):
    """Chunk, graphs and, where it is not given, the static fraction (server_args.py, lines 1294 to 1495)."""
    small = [entry[1:] for entry in _BY_MEMORY if card.memory_mib < entry[0] * 1024]
    chunk, graph = small[0] if small else _LARGEST
    s["chunked_prefill_size"] = s["chunked_prefill_size"] or chunk
    if s["cuda_graph_bs"]:
        s["cuda_graph_max_bs"] = max(s["cuda_graph_bs"])
    else:
        s["cuda_graph_max_bs"] = s["cuda_graph_max_bs"] or graph
        s["cuda_graph_bs"] = _graph_sizes(s)
    if s["mem_fraction_static"] is not None:
        return
    reserved = 512 + max(s["chunked_prefill_size"], 2048) * 1.5 + s["cuda_graph_max_bs"] * 2 + 1024 / 8
    if card.memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if s["speculative_algorithm"] not in (None, "NGRAM"):
        reserved += (6 if s["speculative_algorithm"] == "STANDALONE" else 4) * 1024
    fraction = round((card.memory_mib - reserved) / card.memory_mib, 3)
    vision = model.config.get("vision_config")
    if vision and not s["language_only"]:
        size = vision.get("num_hidden_layers", 24) * vision.get("hidden_size", 1024) ** 2 / (24 * 1024**2)
        fraction *= 0.95 * max(0.8, min(1.05, 1 - 0.1 * (size - 1)))
    s["mem_fraction_static"] = fraction


def _graph_sizes(s):
    top = s["cuda_graph_max_bs"]
    if s["disable_cuda_graph_padding"]:
        return list(range(1, top + 1))
    if s["speculative_algorithm"]:
        steps = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, top + 1, 16)]
    else:
        steps = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, top + 1, 32)]
    return [size for size in steps if size < top] + [top]


def _mamba(s, card, model):
    """Where recurrent state and prefix cache go together (server_args.py, lines 2366 to 2456)."""
    name = model.architectures[0] if model.architectures else "None"
    page, interval = s["page_size"], s["mamba_track_interval"]
    if s["attention_backend"] is None and card.capability[0] == 10:
        s["attention_backend"] = "triton"
    if s["mamba_scheduler_strategy"] == "extra_buffer":
        if s["disable_radix_cache"]:
            raise ValueError(
                "mamba extra_buffer is not compatible with --disable-radix-cache Overlap scheduling is already"
                " supported with no_buffer + disable_radix_cache. Please use --mamba-scheduler-strategy no_buffer"
                " instead."
            )
        draft = s["speculative_num_draft_tokens"]
        if draft is not None:
            assert interval >= draft, (
                f"mamba_track_interval {interval} must be greater than or equal to speculative_num_draft_tokens {draft}"
            )
        if page is not None:
            assert interval % page == 0, f"mamba_track_interval {interval} must be divisible by page_size {page}"
            assert max(64, page) % min(64, page) == 0, (
                "For SSM models with extra buffer, either FLA_CHUNK_SIZE or page_size must be divisible by the other,"
                f" got FLA_CHUNK_SIZE=64, self.page_size={page}"
            )
    elif not s["disable_radix_cache"]:
        if page not in (None, 1):
            say(
                f"{name} with radix cache requires page_size=1 in the current Mamba scheduling mode (no_buffer),"
                f" but got {page}. Automatically setting page_size=1."
            )
            s["page_size"] = 1
        if s["speculative_algorithm"]:
            raise ValueError(
                f"Speculative decoding for {name} is not compatible with radix cache when using"
                " --mamba-scheduler-strategy no_buffer.To use radix cache with speculative decoding, please use"
                " --mamba-scheduler-strategy extra_buffer and set SGLANG_ENABLE_SPEC_V2=1."
            )
        say(
            "Disabling overlap schedule since mamba no_buffer is not compatible with overlap schedule, try to use"
            " --disable-radix-cache if overlap schedule is necessary"
        )
        s["disable_overlap_schedule"] = True
        if s["attention_backend"] == "trtllm_mha":
            say("Disabling radix cache since trtllm_mha does not support page_size = 1, required by MambaRadixCache.")
            s["disable_radix_cache"], s["disable_overlap_schedule"] = True, False


def _attention(s, card):
    if not any(s[name] for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")):
        s["attention_backend"] = "fa3" if card.capability[0] == 9 else "flashinfer"
    prefill = s["prefill_attention_backend"] or s["attention_backend"]
    decode = s["decode_attention_backend"] or s["attention_backend"]
    if "trtllm_mha" in (s["attention_backend"], prefill, decode):
        if prefill == "trtllm_mha" and card.capability[0] != 10:
            raise ValueError(
                "TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100)."
                " Please use a different prefill backend."
            )
        if decode == "trtllm_mha" and card.capability[0] not in (9, 10, 12):
            raise ValueError(
                "TRTLLM MHA backend for decode is only supported on Hopper (SM90), Blackwell (SM100) and (SM120) GPUs."
                " Please use a different decode backend."
            )
        if s["page_size"] not in (16, 32, 64):
            say(
                "TensorRT-LLM MHA only supports page_size of 16, 32 or 64, changing page_size from"
                f" {s['page_size']} to 64."
            )
            s["page_size"] = 64


def _linear_attention(s, card):
    decode = s["linear_attn_decode_backend"] or s["linear_attn_backend"]
    if decode == "flashinfer" and s["mamba_ssm_dtype"] != "bfloat16" and card.capability[0] >= 10:
        raise ValueError(
            "--linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16,"
            f" got {s['mamba_ssm_dtype']!r}"
        )


def _speculation(s):
    """Speculative decoding with a draft (server_args.py, lines 3286 to 3560)."""
    if s["speculative_algorithm"] is None:
        return
    if s["speculative_algorithm"] == "NEXTN":
        s["speculative_algorithm"] = "EAGLE"
    if s["max_running_requests"] is None:
        s["max_running_requests"] = 48
        say(
            "Max running requests is reset to 48 for speculative decoding."
            " You can override this by explicitly setting --max-running-requests."
        )
    if s["speculative_algorithm"] in ("NGRAM", "DFLASH"):
        s["disable_overlap_schedule"] = True
        s["speculative_num_draft_tokens"] = s["speculative_num_draft_tokens"] or 12
        return
    if (s["speculative_eagle_topk"] or 1) > 1:
        s["disable_overlap_schedule"] = True
        say(
            "Spec v1 is used for eagle/eagle3/standalone speculative decoding because"
            " spec v2 currently only supports topk = 1."
        )
    else:
        say("Spec v2 is enabled by default for eagle/eagle3/standalone speculative decoding.")
    if s["speculative_num_steps"] is None:
        # The real one has no text here either.
        assert s["speculative_eagle_topk"] is None and s["speculative_num_draft_tokens"] is None
        s["speculative_num_steps"], s["speculative_eagle_topk"], s["speculative_num_draft_tokens"] = 3, 1, 4
    if s["speculative_eagle_topk"] == 1 and s["speculative_num_draft_tokens"] != s["speculative_num_steps"] + 1:
        say("speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1")
        s["speculative_num_draft_tokens"] = s["speculative_num_steps"] + 1
    if s["speculative_eagle_topk"] > 1 and s["page_size"] > 1 and s["attention_backend"] not in ("flashinfer", "fa3"):
        raise ValueError(
            "speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results for paged"
            " attention backends. This combination is only supported for the 'flashinfer' backend."
        )
