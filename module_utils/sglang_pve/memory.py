"""GPU memory of one server: the pools an engine version makes, and what must stay free beside them.

Formulas belong to an engine version (``ENGINES``). Given the free memory before and after the weights, slots and
running requests are exact, and so are KV tokens up to the rounding of what was read. Units: memory in GiB unless a
name says bytes, lengths in tokens, counts in requests.
Source of every formula: SGLang 0.5.11's published wheel, sglang/srt/, file and lines where they stand. "Measured"
means: the real engine with Qwen3.6-27B on one H200 of which 95.0 GiB were left free, 2026-12-01, tests/unit/cases/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .flags import human_readable_int

GIB = 2**30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_BYTES = {"auto": 2, "bf16": 2, "bfloat16": 2, "fp8_e5m2": 1, "fp8_e4m3": 1}


class GeometryError(ValueError):
    """A config.json describes a model whose memory these formulas do not know; the message says which key."""


@dataclass(frozen=True)
class Geometry:
    """The shapes that decide about memory. Counts of layers, heads and elements; ``linear_layers`` may be 0."""

    hidden: int
    intermediate: int
    vocab: int
    full_layers: int
    linear_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    k_heads: int
    k_dim: int
    v_heads: int
    v_dim: int
    conv_kernel: int
    state_dtype: str
    max_context: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Geometry:
        """Read config.json, its text_config where it has one. Raises GeometryError.

        Layers: every ``full_attention_interval``-th has full attention (configs/qwen3_next.py:255, layer_types is not
        read there). A mixture of experts counts the experts one token passes.
        """
        text = config.get("text_config") or config
        other = [key for key in ("kv_lora_rank", "hybrid_override_pattern", "mamba_d_state") if text.get(key)]
        if text.get("sliding_window") and text.get("use_sliding_window", True):
            other.append("sliding_window")
        if other:
            raise GeometryError(f"config.json has {', '.join(other)}: a kind of attention that no formula here covers")
        try:
            layers, heads, hidden = (text[k] for k in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
            linear = 0
            if "linear_num_value_heads" in text:
                linear = layers - layers // int(text.get("full_attention_interval", 4))
            moe = text.get("moe_intermediate_size", 0) * text.get("num_experts_per_tok", 0)
            return cls(
                hidden=hidden,
                intermediate=moe + text.get("shared_expert_intermediate_size", 0) or text["intermediate_size"],
                vocab=text["vocab_size"],
                full_layers=layers - linear,
                linear_layers=linear,
                heads=heads,
                kv_heads=text.get("num_key_value_heads", heads),
                head_dim=text.get("head_dim") or hidden // heads,
                k_heads=text["linear_num_key_heads"] if linear else 0,
                k_dim=text["linear_key_head_dim"] if linear else 0,
                v_heads=text["linear_num_value_heads"] if linear else 0,
                v_dim=text["linear_value_head_dim"] if linear else 0,
                conv_kernel=text["linear_conv_kernel_dim"] if linear else 0,
                # The engine takes float32 for whatever it does not know (configs/mamba_utils.py:75-100).
                state_dtype=text["mamba_ssm_dtype"] if text.get("mamba_ssm_dtype") in DTYPE_BYTES else "float32",
                max_context=text["max_position_embeddings"],
            )
        except KeyError as error:
            raise GeometryError(f"config.json lacks {error.args[0]}, without which memory cannot be computed") from None

    def state_bytes(self, dtype: str) -> int:
        """Bytes of one request's recurrent state in all linear layers; the convolution's part is always bfloat16.

        configs/mamba_utils.py:115-127. Qwen3.6-27B: 153,944,064 with float32, 78,446,592 with bfloat16.
        """
        conv = (self.v_heads * self.v_dim + 2 * self.k_heads * self.k_dim) * max(self.conv_kernel - 1, 0)
        return (conv * 2 + self.v_heads * self.v_dim * self.k_dim * DTYPE_BYTES[dtype]) * self.linear_layers

    def kv_bytes(self, dtype: str, layers: int | None = None) -> int:
        """Bytes of one token's keys and values (pool_configurator.py:105-143). Qwen3.6-27B: 65,536 with bfloat16."""
        return self.kv_heads * 2 * self.head_dim * (self.full_layers if layers is None else layers) * KV_BYTES[dtype]


@dataclass(frozen=True)
class MemoryFlags:
    """The flags that decide about memory, as the engine resolves them (server_args.py:2366-2456, 3286-3560).

    ``slots``, ``running``, ``tokens`` are None where the command line leaves them to the engine. ``draft_tokens`` is 0
    without speculative decoding, ``graph_limit`` 0 without CUDA graphs; ``chunk`` is the largest prefill batch.
    """

    fraction: float
    running: int | None
    slots: int | None
    tokens: int | None
    ratio: float
    page: int
    context: int
    chunk: int
    radix: bool
    extra_buffer: bool
    overlap: bool
    draft_tokens: int
    state_dtype: str
    kv_dtype: str
    graph_limit: int
    mixed_chunk: bool

    @classmethod
    def read(cls, flags: Mapping[str, Any], geometry: Geometry) -> MemoryFlags:
        """From canonical flag names to values. Raises ValueError for a value that the flag table would refuse too."""

        def number(name: str) -> int | None:
            value = flags.get(name)
            return None if value is None else human_readable_int(str(value))

        draft = (number("speculative-num-draft-tokens") or 4) if flags.get("speculative-algorithm") else 0
        radix = not flags.get("disable-radix-cache")
        extra = flags.get("mamba-scheduler-strategy") == "extra_buffer"
        plain_radix = geometry.linear_layers > 0 and radix and not extra
        context = number("context-length") or geometry.max_context
        chunk = number("chunked-prefill-size") or 8192
        running = number("max-running-requests")
        return cls(
            fraction=float(flags.get("mem-fraction-static") or 0),
            running=48 if draft and running is None else running,
            slots=number("max-mamba-cache-size"),
            tokens=number("max-total-tokens"),
            ratio=float(flags.get("mamba-full-memory-ratio") or 0.9),
            page=1 if plain_radix else number("page-size") or 1,
            context=context,
            # A negative size turns chunking off: a batch then holds --max-prefill-tokens, or one longer prompt.
            chunk=chunk if chunk > 0 else max(number("max-prefill-tokens") or 16384, context),
            radix=radix,
            extra_buffer=extra,
            overlap=not flags.get("disable-overlap-schedule"),
            draft_tokens=draft,
            state_dtype=str(flags.get("mamba-ssm-dtype") or geometry.state_dtype),
            kv_dtype=str(flags.get("kv-cache-dtype") or "auto"),
            graph_limit=0 if flags.get("disable-cuda-graph") else number("cuda-graph-max-bs") or 256,
            # With speculative decoding the engine turns it off (server_args.py:3286-3560).
            mixed_chunk=bool(flags.get("enable-mixed-chunk")) and not draft,
        )


@dataclass(frozen=True)
class Pools:
    """What the engine makes: state slots, KV tokens and running requests, with the GiB of each part."""

    slots: int
    tokens: int
    running: int
    state_gib: float
    speculative_gib: float
    kv_gib: float
    rest_gib: float

    @property
    def problem(self) -> str:
        """The engine's own message when it cannot start with these pools, else ""."""
        if self.tokens <= 0:
            return "Not enough memory. Please try to increase --mem-fraction-static."
        return "" if self.running > 0 else "max_running_request is zero"


@dataclass(frozen=True)
class Reserve:
    """What must stay free outside the pools, in GiB. The two phases of a start with MTP do not meet: the larger counts.

    ``padding`` slot 0 of each pool; ``serving`` what comes after the graphs in service; ``loading`` the same moment
    while a draft loads (0 without one).
    """

    padding: float
    workspace: float
    graphs: float
    context: float
    serving: float
    loading: float
    margin: float

    @property
    def total(self) -> float:
        fixed = self.padding + self.workspace + self.graphs + self.context + self.margin
        return fixed + max(self.serving, self.loading)


@dataclass(frozen=True)
class Engine:
    """The formulas of one engine version."""

    version: str
    # flashinfer's 384 MiB (environ.py:364) and cuBLAS's: 0.49 to 0.51 between "Memory pool end" and "Capture begin".
    workspace_gib: float = 0.51
    # CUDA graphs against tokens per step: 0.21 at 22, 0.25 at 37, 0.49 at 111, 0.85 at 197, 0.94 at 219, 1.07 at 256,
    # 1.23 at 307; with four draft tokens 0.14, 0.33, 0.64 and 0.97 at 4, 16, 40 and 72 requests. This line is above all
    # of them, by 0.24 at most.
    graph_base_gib: float = 0.14
    graph_token_gib: float = 0.0037
    # Blocks of the caching allocator around what a prefill chunk computes: 2.45 measured where its shapes give 2.34.
    prefill_blocks: float = 1.06
    # A draft's graphs against those of the target: with triton's attention 0.55 at 16 requests, with flashinfer's 0.36.
    draft_graphs: float = 1.5
    # What a draft keeps beside its weights, tokens and graphs: 0.11 to 0.12.
    draft_rest_gib: float = 0.12

    def slots_per_request(self, flags: MemoryFlags) -> int:
        """State slots that one running request takes (model_runner_kv_cache_mixin.py:178-192)."""
        if not flags.radix:
            return 1
        return 3 + (0 if not flags.extra_buffer else 2 if flags.overlap else 1)

    def pools(self, g: Geometry, pre: float, post: float, flags: MemoryFlags) -> Pools:
        """Pools from the GiB free before and after the target's weights (model_runner_kv_cache_mixin.py:55-131,
        699-760; pool_configurator.py:165-181). ``Pools.problem`` says when the engine would not start."""
        state, cell = g.state_bytes(flags.state_dtype), g.kv_bytes(flags.kv_dtype)
        rest = post - pre * (1 - flags.fraction)
        speculative = state * (flags.running or 0) * flags.draft_tokens / GIB
        rest -= speculative
        slots = 0
        if g.linear_layers:
            if flags.slots is not None:
                slots = flags.slots
            elif not flags.radix and flags.running is not None:
                slots = flags.running
            else:
                slots = max(int(rest * flags.ratio / (1 + flags.ratio) * GIB // state), 0)
        left = rest - slots * state / GIB
        tokens = int(left * GIB) // cell // flags.page * flags.page
        if flags.tokens is not None and flags.tokens < tokens:
            tokens = flags.tokens // flags.page * flags.page
        bound = max(min(int(tokens / flags.context * 512), 4096), 2048)
        running = min(tokens // 2 if flags.running is None else flags.running, bound)
        if g.linear_layers:
            running = min(running, slots // self.slots_per_request(flags))
        return Pools(slots, tokens, running, slots * state / GIB, speculative, tokens * cell / GIB, left)

    def reserve(self, g: Geometry, flags: MemoryFlags, pools: Pools, mtp_bytes: int, margin: float) -> Reserve:
        """What must stay free beside ``pools``. ``mtp_bytes`` counts only with draft tokens."""
        requests, width = max(pools.running, 1), max(flags.draft_tokens, 1)
        state, cell = g.state_bytes(flags.state_dtype), g.kv_bytes(flags.kv_dtype)
        # The intermediate states have a padding row too (memory_pool.py:225-300).
        padding = (state * (1 + flags.draft_tokens) + flags.page * cell) / GIB
        graphs = 0.0
        if flags.graph_limit:
            graphs = self.graph_base_gib + self.graph_token_gib * min(requests, flags.graph_limit) * width
        # req_to_token, and flashinfer's index (4 B) and mask (1 B) of the graphs: memory_pool.py:130-150,
        # flashinfer_backend.py:533-556. A draft has its own.
        context = ((requests + 1) * 4 + requests * width * 5 * (2 if flags.draft_tokens else 1)) * flags.context / GIB
        serving, loading = self._prefill_gib(g, flags, requests), 0.0
        if flags.draft_tokens:
            draft_kv = pools.tokens * g.kv_bytes(flags.kv_dtype, layers=1) / GIB
            weights = mtp_bytes / GIB
            # The draft loads its own embedding and head and gives them back: 5.53 for 0.79 of weights (measured).
            loading = weights + 2 * g.vocab * g.hidden * 2 / GIB + draft_kv
            serving += weights + draft_kv + graphs * self.draft_graphs + self.draft_rest_gib
        return Reserve(padding, self.workspace_gib, graphs, context, serving, loading, margin)

    def _prefill_gib(self, g: Geometry, flags: MemoryFlags, requests: int) -> float:
        """Peak of one prefill chunk while all requests run: 2.24 measured at 22 running, 2.45 at 197, 2.44 at 307.

        One MLP and one mixer layer at a time, in two bytes an element; summed, because the caching allocator's blocks
        of one seldom fit the other. Sampling (float32 logits, their softmax and a sorted copy) comes after it and takes
        the same blocks. Mixed with decoding, a chunk keeps both: 3.76 measured at 307.
        """
        mlp = 3 * g.hidden + 3 * g.intermediate
        full = (3 * g.heads + 2 * g.kv_heads) * g.head_dim
        keys, values = g.k_heads * g.k_dim, g.v_heads * g.v_dim
        # Projection, convolution and its split copies, six value-sized buffers, one chunk state per 64 tokens.
        linear = (2 * keys + 2 * values) + 2 * (2 * keys + values) + 6 * values + values * g.k_dim // 64
        chunk = flags.chunk * (mlp + max(full, linear)) * 2 / GIB * self.prefill_blocks
        logits = requests * max(flags.draft_tokens, 1) * g.vocab * 4 / GIB
        return chunk + 5 * logits if flags.mixed_chunk else max(chunk, 3 * logits)


ENGINES = {"0.5.11": Engine("0.5.11")}
