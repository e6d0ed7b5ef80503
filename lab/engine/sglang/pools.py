"""How SGLang 0.5.11 divides GPU memory among recurrent state, KV cache and requests.

Written from the engine's formulas (its published wheel: model_runner_kv_cache_mixin.py, pool_configurator.py,
mamba_utils.py) apart from the product's planner, so that each can show the other wrong.
Memory is in GiB where a name ends in _gib, else in bytes.
"""

GIB = 1 << 30
# Slots of recurrent state that one running request takes, by what the prefix cache needs beside it.
SLOTS_WITHOUT_RADIX = 1
SLOTS_NO_BUFFER = 3
SLOTS_EXTRA_BUFFER = 4
SLOTS_EXTRA_BUFFER_OVERLAP = 5

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_KV_BITS = {"auto": 16, "bf16": 16, "bfloat16": 16, "fp8_e5m2": 8, "fp8_e4m3": 8}


class Shape:
    """Bytes in a hybrid model: `conv` and `state` of a slot, `cell` of a token, `draft_cell` of its MTP head."""

    def __init__(self, model, settings):
        text = model.text
        value = text["linear_num_value_heads"] * text["linear_value_head_dim"]
        key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        dtype = settings["mamba_ssm_dtype"] or text.get("mamba_ssm_dtype", "float32")
        layers = model.linear_layers
        self.conv = (value + 2 * key) * (text["linear_conv_kernel_dim"] - 1) * 2 * layers
        self.state = value * text["linear_key_head_dim"] * _STATE_BYTES[dtype] * layers
        per_layer = text["num_key_value_heads"] * text["head_dim"] * 2
        bits = _KV_BITS.get(settings["kv_cache_dtype"])
        # Four bits a value, and one byte of scale for each sixteen values.
        self.draft_cell = per_layer * bits // 8 if bits else per_layer // 2 + per_layer // 16
        self.cell = self.draft_cell * model.full_layers

    @property
    def slot(self):
        return self.conv + self.state


class Pools:
    """Sizes found: `slots` of recurrent state, `tokens` of KV cache, `running` requests at once."""

    def __init__(self, slots, tokens, running):
        self.slots = slots
        self.tokens = tokens
        self.running = running


def slots_per_request(settings):
    """How many state slots one running request takes."""
    if settings["disable_radix_cache"]:
        return SLOTS_WITHOUT_RADIX
    if settings["mamba_scheduler_strategy"] != "extra_buffer":
        return SLOTS_NO_BUFFER
    return SLOTS_EXTRA_BUFFER if settings["disable_overlap_schedule"] else SLOTS_EXTRA_BUFFER_OVERLAP


def size_pools(shape, settings, context, before_gib, after_gib):
    """Pools for a card with so much free memory before and after the weights were loaded.

    Raises RuntimeError where no room is left for tokens. `running` may come out as 0: see `check`.
    """
    asked = settings["max_running_requests"]
    rest = after_gib - before_gib * (1 - settings["mem_fraction_static"])
    if settings["speculative_algorithm"]:
        rest -= shape.slot * asked * settings["speculative_num_draft_tokens"] / GIB
    if settings["max_mamba_cache_size"] is not None:
        slots = settings["max_mamba_cache_size"]
    elif settings["disable_radix_cache"] and asked is not None:
        slots = asked
    else:
        ratio = settings["mamba_full_memory_ratio"]
        slots = int(rest * ratio / (1 + ratio) * GIB // shape.slot)
    page = settings["page_size"]
    tokens = int((rest - slots * shape.slot / GIB) * GIB) // shape.cell // page * page
    if tokens <= 0:
        raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")
    if settings["max_total_tokens"] is not None:
        tokens = min(tokens, settings["max_total_tokens"]) // page * page
    estimate = max(min(int(tokens / context * 512), 4096), 2048)
    running = min(estimate, tokens // 2 if asked is None else asked, slots // slots_per_request(settings))
    return Pools(slots, tokens, running)


def check(pools, context):
    """The two things the engine asserts of finished pools."""
    assert pools.running > 0, "max_running_request is zero"
    assert min(context, pools.tokens) - 6 > 0, "Memory pool size is too small"
