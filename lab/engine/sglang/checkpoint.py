"""What the engine learns from a checkpoint: its configuration, and which tensors really come out of its files."""

import json
import struct
from pathlib import Path

INDEX = "model.safetensors.index.json"


class SafetensorError(Exception):
    """A damaged safetensors file."""


SafetensorError.__module__ = "safetensors_rust"


class Model:
    """A checkpoint's `config` and `text` (its text_config) as dictionaries, and `path`."""

    def __init__(self, path):
        self.path = path
        folder = Path(path)
        if not folder.is_dir():
            raise OSError(
                f"Incorrect path_or_model_id: '{path}'. Please provide either the path to a local folder"
                " or the repo_id of a model on the Hub."
            )
        if not (folder / "config.json").is_file():
            raise OSError(f"{path} does not appear to have a file named config.json.")
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.text = self.config.get("text_config", self.config)
        self.architectures = self.config.get("architectures") or []
        self.context = self.text["max_position_embeddings"]

    @property
    def full_layers(self):
        """Number of layers with full attention; the real engine goes by the interval, not by layer_types."""
        return self.text["num_hidden_layers"] // self.text["full_attention_interval"]

    @property
    def linear_layers(self):
        return self.text["num_hidden_layers"] - self.full_layers


class Weights:
    """Bytes of the tensors by part, as found in the files.

    `target`: what the model itself loads; `draft`: the mtp.* tensors; `shared`: embedding and head, of which the draft
    holds its own copy until it takes over the model's. `complete` is False where the index names tensors that no
    file holds: 0.5.11 skips a missing file without a word and serves with uninitialised memory.
    """

    def __init__(self, path):
        folder = Path(path)
        files = sorted(folder.glob("*.safetensors"))
        named = {}
        if (folder / INDEX).is_file():
            named = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            listed = set(named.values())
            files = [file for file in files if file.name in listed]
        if not files:
            raise RuntimeError(f"Cannot find any model weights with `{path}`")
        self.target = self.draft = self.shared = 0
        found = set()
        for file in files:
            for name, size in tensor_sizes(file).items():
                found.add(name)
                if "mtp" in name:
                    self.draft += size
                else:
                    self.target += size
                if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                    self.shared += size
        self.complete = all(name in found for name in named if "mtp" not in name)


def tensor_sizes(file):
    """Bytes of each tensor of a safetensors file, read from its header alone."""
    with file.open("rb") as stream:
        length = stream.read(8)
        size = struct.unpack("<Q", length)[0] if len(length) == 8 else 0
        try:
            header = json.loads(stream.read(size)) if 0 < size < 100_000_000 else None
        except ValueError:
            header = None
    if header is None:
        raise SafetensorError("Error while deserializing header: invalid header")
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if 8 + size + end != file.stat().st_size:
        raise SafetensorError("Error while deserializing header: incomplete metadata, file not fully covered")
    return {name: entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items()}
