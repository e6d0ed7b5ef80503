"""One start, worked out beforehand: what each step prints, how long it takes, and where it ends in an error.

The scheduler process only walks through the steps. All memory figures are GiB, which the engine's journal calls GB.
"""

from . import pools as pool_math
from .checkpoint import Weights
from .failures import OUT_OF_MEMORY, OutOfMemoryError
from .settings import context_of

SUPPORTED = "Qwen3_5ForConditionalGeneration"
# Measured on real starts of 0.5.11: GiB taken before the first reading (driver, CUDA, NCCL), then between that
# reading and the weights, with the weights beside the tensors, by the pools' own tables, and before the graphs.
_CONTEXT, _BEFORE_WEIGHTS, _WITH_WEIGHTS, _WITH_POOLS, _WORKSPACE = 1.28, 0.07, 0.094, 0.05, 0.50
_IMPORT_NOISE = [
    f"Ignore import error when loading sglang.srt.models.{name}: Can not import FA3 in sgl_kernel."
    " Please check your installation."
    for name in ("mimo_audio", "mimo_v2", "mimo_v2_nextn")
]
_BACKENDS = ("triton", "trtllm_mha", "fa4", "flashinfer")


class Step:
    """A stage of the start: its name (see failures.STAGES), its share of the start's time, its lines."""

    def __init__(self, stage, share, lines):
        self.stage = stage
        self.share = share
        self.lines = lines


class Startup:
    """The steps of a start, the error that ends the last of them (or None), and what came out.

    `pools`: see pools.Pools, None after an error before them. `free_gib`: left on the card.
    `weights_gib`, `kv_gib` and `graph_gib` are what /server_info shows. `complete`: no tensor is missing.
    """

    def __init__(self, settings, card, model, scale=1.0):
        self.settings = settings
        self.model = model
        self.card = card
        self.context = context_of(settings, model)
        self.total_gib = card.memory_mib / 1024
        self.free_gib = self.total_gib - _CONTEXT
        self.weights_gib = self.kv_gib = self.graph_gib = 0.0
        self.pools = self.error = None
        self.complete = True
        self.has_draft = False
        self.steps = []
        try:
            self._distributed()
            before = self.free_gib
            weights = self._weights()
            self._pools(before, scale)
            self._backend()
            self._graphs()
            if settings["speculative_algorithm"]:
                self._draft(weights)
            pool_math.check(self.pools, self.context)
            self._summary()
        except Exception as error:
            # Whatever it is, it belongs to the scheduler process, which raises it in its place.
            self.error = error

    @property
    def used_mib(self):
        return int((self.total_gib - self.free_gib) * 1024)

    def _step(self, stage, share, *lines):
        self.steps.append(Step(stage, share, list(lines)))

    def _take(self, gib):
        self.free_gib -= gib
        if self.free_gib < 0:
            raise OutOfMemoryError(OUT_OF_MEMORY)

    def _distributed(self):
        begin, end = "Init torch distributed begin.", "Init torch distributed ends. elapsed=0.20 s, mem usage=0.09 GB"
        self._step("distributed", 0.2, begin, end, *_IMPORT_NOISE)

    def _weights(self):
        self._take(_BEFORE_WEIGHTS)
        at_start = self.free_gib
        self._step("weights", 0.3, f"Load weight begin. avail mem={at_start:.2f} GB")
        if SUPPORTED not in self.model.architectures:
            raise ValueError(
                f"Model architectures {self.model.architectures} are not supported for now."
                f" Supported architectures: dict_keys(['{SUPPORTED}'])"
            )
        weights = Weights(self.model.path)
        self.complete = weights.complete and self.settings["load_format"] != "dummy"
        self.has_draft = weights.draft > 0 and self.settings["load_format"] != "dummy"
        self._take(weights.target / pool_math.GIB + _WITH_WEIGHTS)
        self.weights_gib = at_start - self.free_gib
        vision = "fa3" if self.card.capability[0] == 9 else "triton_attn"
        self.steps[-1].lines += [
            f"Multimodal attention backend not set. Use {vision}.",
            f"Using {vision} as multimodal attention backend.",
            "using attn output gate!",
            (
                f"Load weight end. elapsed=0.27 s, type={SUPPORTED}, avail mem={self.free_gib:.2f} GB,"
                f" mem usage={self.weights_gib:.2f} GB."
            ),
        ]
        return weights

    def _pools(self, before, scale):
        s, gib = self.settings, pool_math.GIB
        kind = {"auto": "bfloat16", "bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn"}
        dtype = kind.get(s["kv_cache_dtype"], s["kv_cache_dtype"])
        self._step("pools", 0.1, f"Using KV cache dtype: torch.{dtype}")
        self.shape = shape = pool_math.Shape(self.model, s)
        pools = pool_math.size_pools(shape, s, self.context, before, self.free_gib)
        pools.tokens = int(pools.tokens * scale)
        limit = s["max_total_tokens"]
        lines = self.steps[-1].lines
        if limit is not None and limit > pools.tokens:
            lines.append(
                f"max_total_tokens={limit} is larger than the profiled value {pools.tokens}."
                " Use the profiled value instead."
            )
        conv, state = (size * (pools.slots + 1) / gib for size in (shape.conv, shape.state))
        line = (
            f"Mamba Cache is allocated. max_mamba_cache_size: {pools.slots},"
            f" conv_state size: {conv:.2f}GB, ssm_state size: {state:.2f}GB "
        )
        self._take(conv + state)
        if s["speculative_algorithm"]:
            rows = (pools.running + 1) * s["speculative_num_draft_tokens"]
            conv, state = (size * rows / gib for size in (shape.conv, shape.state))
            line += (
                f"intermediate_ssm_state_cache size: {state:.2f}GB intermediate_conv_window_cache size: {conv:.2f}GB "
            )
            self._take(conv + state)
        self.kv_gib = shape.cell * pools.tokens / gib
        self._take(self.kv_gib + _WITH_POOLS)
        lines += [line, self._kv_line(pools, self.kv_gib), f"Memory pool end. avail mem={self.free_gib:.2f} GB"]
        self.pools = pools

    def _kv_line(self, pools, gib):
        return f"KV Cache is allocated. #tokens: {pools.tokens}, K size: {gib / 2:.2f} GB, V size: {gib / 2:.2f} GB"

    def _backend(self):
        s, capability = self.settings, self.card.capability
        chosen = {s["attention_backend"], s["prefill_attention_backend"], s["decode_attention_backend"]}
        if "fa3" in chosen:
            assert capability[0] in (8, 9), (
                "FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`."
            )
        if self.card.blackwell:
            assert s["attention_backend"] in _BACKENDS, (
                "triton, trtllm_mha, fa4, or flashinfer backend are the only supported backends on Blackwell GPUs for"
                " hybrid GDN models, use --attention-backend to specify the backend."
            )
        decode = s["linear_attn_decode_backend"] or s["linear_attn_backend"]
        prefill = s["linear_attn_prefill_backend"] or s["linear_attn_backend"]
        self._step(
            "graphs",
            0.3,
            f"Linear attention kernel backend: decode={decode}, prefill={prefill}",
            "Using hybrid linear attention backend for hybrid GDN models.",
        )

    def _graphs(self, what="cuda graph", share=1.0):
        """CUDA graphs of one worker; their memory is a line through the measured starts."""
        s, lines = self.settings, self.steps[-1].lines
        if s["disable_cuda_graph"]:
            return
        largest = min(self.pools.running, s["cuda_graph_max_bs"])
        sizes = [size for size in s["cuda_graph_bs"] if size < largest] + [largest]
        if share == 1.0:
            self._take(_WORKSPACE)
        lines.append(f"Capture {what} begin. This can take up to several minutes. avail mem={self.free_gib:.2f} GB")
        if share == 1.0:
            lines.append(f"Capture {what} bs {sizes}")
        each = 0.0125 if s["speculative_algorithm"] else 0.0037
        self.graph_gib = (0.1 + each * largest) * share
        try:
            self._take(self.graph_gib)
        except OutOfMemoryError as error:
            raise Exception(f"Capture cuda graph failed: {error}") from error
        count = len(sizes)
        lines += [
            f"Capturing batches (bs=1 avail_mem={self.free_gib:.2f} GB): 100%|██████████| {count}/{count}",
            (
                f"Capture {what} end. Time elapsed: 3.50 s. mem usage={self.graph_gib:.2f} GB."
                f" avail mem={self.free_gib:.2f} GB."
            ),
            "Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set",
        ]

    def _draft(self, weights):
        """The MTP head. Until it takes over the model's embedding and head it holds its own copy of both."""
        gib = pool_math.GIB
        load = (weights.draft + weights.shared) / gib
        self._step(
            "graphs",
            0.1,
            "Init torch distributed begin.",
            "Init torch distributed ends. elapsed=0.00 s, mem usage=0.00 GB",
            f"Load weight begin. avail mem={self.free_gib:.2f} GB",
        )
        self._take(load)
        cache = self.shape.draft_cell * self.pools.tokens / gib
        self.steps[-1].lines += [
            (
                f"Load weight end. elapsed=0.01 s, type=Qwen3_5ForCausalLMMTP, avail mem={self.free_gib:.2f} GB,"
                f" mem usage={load:.2f} GB."
            ),
            self._kv_line(self.pools, cache),
        ]
        self._take(cache)
        self.steps[-1].lines.append(f"Memory pool end. avail mem={self.free_gib:.2f} GB")
        self.free_gib += weights.shared / gib
        self._graphs("draft cuda graph", share=0.9)

    def _summary(self):
        s = self.settings
        self.steps[-1].lines.append(
            f"max_total_num_tokens={self.pools.tokens}, chunked_prefill_size={s['chunked_prefill_size']},"
            f" max_prefill_tokens={s['max_prefill_tokens']}, max_running_requests={self.pools.running},"
            f" context_len={self.context}, available_gpu_mem={self.free_gib:.2f} GB"
        )
