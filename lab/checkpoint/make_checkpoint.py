"""Write a small, real safetensors checkpoint with the architecture of Qwen3.6-27B, for the lab.

Layers, heads and their sizes are the model's own, so that bytes per token and per state slot are the real ones; hidden
size, vocabulary and vision tower are narrow. Weights are reproducible noise: the model cannot answer anything.

usage: make_checkpoint.py OUTDIR [--no-mtp]
"""

import argparse
import json
import random
import struct
from pathlib import Path

LAYERS, INTERVAL = 64, 4
HIDDEN, INTERMEDIATE, VOCAB = 8, 16, 512
HEADS, KV_HEADS, HEAD_DIM = 24, 4, 256
KEY_HEADS, VALUE_HEADS, LINEAR_DIM, CONV = 16, 48, 128, 4
VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "in_channels": 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,
    "hidden_act": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
    "deepstack_visual_indexes": [],
    "model_type": "qwen3_5",
}
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
)
IDS = {text: 256 + at for at, text in enumerate(SPECIAL)}
SHARDS = 3
CHAT_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %}
{%- endif %}"""


def attention_layer(prefix):
    """Tensors of one layer with full attention, its MLP and its norms: name to shape."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return {
        # Twice the rows: the output gate comes out of the same projection.
        f"{prefix}.self_attn.q_proj.weight": [2 * queries, HIDDEN],
        f"{prefix}.self_attn.k_proj.weight": [keys, HIDDEN],
        f"{prefix}.self_attn.v_proj.weight": [keys, HIDDEN],
        f"{prefix}.self_attn.o_proj.weight": [HIDDEN, queries],
        f"{prefix}.self_attn.q_norm.weight": [HEAD_DIM],
        f"{prefix}.self_attn.k_norm.weight": [HEAD_DIM],
        **mlp(prefix),
    }


def linear_layer(prefix):
    """Tensors of one gated-delta-net layer, its MLP and its norms: name to shape."""
    value, key = VALUE_HEADS * LINEAR_DIM, KEY_HEADS * LINEAR_DIM
    return {
        f"{prefix}.linear_attn.in_proj_qkv.weight": [value + 2 * key, HIDDEN],
        f"{prefix}.linear_attn.in_proj_z.weight": [value, HIDDEN],
        f"{prefix}.linear_attn.in_proj_b.weight": [VALUE_HEADS, HIDDEN],
        f"{prefix}.linear_attn.in_proj_a.weight": [VALUE_HEADS, HIDDEN],
        f"{prefix}.linear_attn.conv1d.weight": [value + 2 * key, 1, CONV],
        f"{prefix}.linear_attn.A_log": [VALUE_HEADS],
        f"{prefix}.linear_attn.dt_bias": [VALUE_HEADS],
        f"{prefix}.linear_attn.norm.weight": [LINEAR_DIM],
        f"{prefix}.linear_attn.out_proj.weight": [HIDDEN, value],
        **mlp(prefix),
    }


def mlp(prefix):
    """Tensors that every layer has: name to shape."""
    return {
        f"{prefix}.mlp.gate_proj.weight": [INTERMEDIATE, HIDDEN],
        f"{prefix}.mlp.up_proj.weight": [INTERMEDIATE, HIDDEN],
        f"{prefix}.mlp.down_proj.weight": [HIDDEN, INTERMEDIATE],
        f"{prefix}.input_layernorm.weight": [HIDDEN],
        f"{prefix}.post_attention_layernorm.weight": [HIDDEN],
    }


def vision_tower():
    """Tensors of the vision tower: name to shape."""
    size, inner = VISION["hidden_size"], VISION["intermediate_size"]
    merged = size * VISION["spatial_merge_size"] ** 2
    patch = [size, VISION["in_channels"], VISION["temporal_patch_size"], VISION["patch_size"], VISION["patch_size"]]
    found = {
        "model.visual.patch_embed.proj.weight": patch,
        "model.visual.patch_embed.proj.bias": [size],
        "model.visual.pos_embed.weight": [VISION["num_position_embeddings"], size],
    }
    for block in range(VISION["depth"]):
        linear = {"attn.qkv": (3 * size, size), "attn.proj": (size, size)}
        linear.update({"mlp.linear_fc1": (inner, size), "mlp.linear_fc2": (size, inner)})
        for name, (rows, columns) in linear.items():
            found[f"model.visual.blocks.{block}.{name}.weight"] = [rows, columns]
            found[f"model.visual.blocks.{block}.{name}.bias"] = [rows]
        for name in ("norm1", "norm2"):
            found[f"model.visual.blocks.{block}.{name}.weight"] = [size]
            found[f"model.visual.blocks.{block}.{name}.bias"] = [size]
    for name, shape in (("norm", [size]), ("linear_fc1", [merged, merged]), ("linear_fc2", [HIDDEN, merged])):
        found[f"model.visual.merger.{name}.weight"] = shape
        found[f"model.visual.merger.{name}.bias"] = shape[:1]
    return found


def draft_head():
    """The 15 tensors of the multi-token-prediction head: name to shape."""
    return {
        "mtp.fc.weight": [HIDDEN, 2 * HIDDEN],
        "mtp.pre_fc_norm_embedding.weight": [HIDDEN],
        "mtp.pre_fc_norm_hidden.weight": [HIDDEN],
        "mtp.norm.weight": [HIDDEN],
        **attention_layer("mtp.layers.0"),
    }


def shards(with_draft):
    """Tensors of each shard in order. The head lies in the last two, split, as the real one is."""
    files = [{} for _ in range(SHARDS)]
    files[0].update({"model.language_model.embed_tokens.weight": [VOCAB, HIDDEN], **vision_tower()})
    for layer in range(LAYERS):
        make = attention_layer if layer % INTERVAL == INTERVAL - 1 else linear_layer
        files[layer * SHARDS // LAYERS].update(make(f"model.language_model.layers.{layer}"))
    files[-1].update({"model.language_model.norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]})
    if with_draft:
        head = list(draft_head().items())
        files[-2].update(head[:8])
        files[-1].update(head[8:])
    return files


# The upper byte of a bfloat16 between about 0.002 and 0.03, with either sign: noise of the size that weights have.
_UPPER = bytes((0x3B, 0x3C, 0xBB, 0xBC)[byte % 4] for byte in range(256))


def noise(name, count):
    """That many bfloat16 values, always the same for one name."""
    source = random.Random(name)
    data = bytearray(2 * count)
    data[0::2] = source.getrandbits(8 * count).to_bytes(count, "little")
    data[1::2] = source.getrandbits(8 * count).to_bytes(count, "little").translate(_UPPER)
    return data


def write_shard(path, tensors):
    """Write one safetensors file. Returns the bytes of its tensors."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    sizes = {}
    for name, shape in tensors.items():
        sizes[name] = 1
        for side in shape:
            sizes[name] *= side
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * sizes[name]]}
        at += 2 * sizes[name]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, count in sizes.items():
            file.write(noise(name, count))
    return at


def config():
    """config.json: the real one's keys and sizes, but for the narrow ones. It declares the MTP head in any case."""
    kinds = ["full_attention" if at % INTERVAL == INTERVAL - 1 else "linear_attention" for at in range(LAYERS)]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": IDS["<|image_pad|>"],
        "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
        "vision_end_token_id": IDS["<|vision_end|>"],
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "eos_token_id": IDS["<|im_end|>"],
            "full_attention_interval": INTERVAL,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "initializer_range": 0.02,
            "intermediate_size": INTERMEDIATE,
            "layer_types": kinds,
            "linear_conv_kernel_dim": CONV,
            "linear_key_head_dim": LINEAR_DIM,
            "linear_num_key_heads": KEY_HEADS,
            "linear_num_value_heads": VALUE_HEADS,
            "linear_value_head_dim": LINEAR_DIM,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
            "mlp_only_layers": [],
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "partial_rotary_factor": 0.25,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000000,
                "rope_type": "default",
            },
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": VOCAB,
        },
        "vision_config": VISION,
    }


def byte_letters():
    """The character that stands for each byte in a byte-level tokenizer: itself where it prints, else one above 255."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printing else next(spare)) for byte in range(256)]


def tokenizer():
    """tokenizer.json: one token a byte, its id the byte, and the special tokens from 256 on."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": text, **flags} for text, at in IDS.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(byte_letters())},
            "merges": [],
        },
    }


def small_files():
    """The other JSON files, by name."""
    image = {
        "patch_size": VISION["patch_size"],
        "temporal_patch_size": VISION["temporal_patch_size"],
        "merge_size": VISION["spatial_merge_size"],
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }
    return {
        "config.json": config(),
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 262144,
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
        "generation_config.json": {
            "eos_token_id": [IDS["<|im_end|>"], IDS["<|endoftext|>"]],
            "pad_token_id": IDS["<|endoftext|>"],
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 20,
            "top_p": 0.95,
        },
        "preprocessor_config.json": image,
    }


def make(folder, with_draft=True):
    """Write the whole checkpoint. Returns the bytes of all its tensors, as the index states them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    total, places = 0, {}
    for at, tensors in enumerate(shards(with_draft), start=1):
        name = f"model-{at:05d}-of-{SHARDS:05d}.safetensors"
        total += write_shard(folder / name, tensors)
        places.update(dict.fromkeys(tensors, name))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    for name, content in {"model.safetensors.index.json": index, **small_files()}.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return total


def main():
    """Write a checkpoint from the command line."""
    parser = argparse.ArgumentParser(description="Write the lab's checkpoint.")
    parser.add_argument("outdir", help="folder that the checkpoint is written to")
    parser.add_argument("--no-mtp", action="store_true", help="leave the mtp.* tensors out, as many variants do")
    options = parser.parse_args()
    total = make(options.outdir, not options.no_mtp)
    print(f"{options.outdir}: {total / 1e6:.1f} MB of tensors in {SHARDS} shards")


if __name__ == "__main__":
    main()
