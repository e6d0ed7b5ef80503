"""What a model directory really holds: read from config.json, the index and every shard's header, never the weights.

It follows the engine (SGLang 0.5.11): with an index, only the files that it names are read, and of them *every* tensor;
a named file that is not there is left out without a word, and so are missing ``mtp.*`` tensors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

from . import mtp, small_files
from .findings import Finding, worst_first
from .mtp import some, text_config
from .shard import AGAIN, LFS_START, CheckpointError, Header, parse_header
from .small_files import TOKENIZERS

__all__ = ["CheckpointError", "inspect", "parse_header"]

INDEX = "model.safetensors.index.json"
JSON_LIMIT = 64 << 20
_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


def inspect(path: str, uid: int | None = None, gids: Collection[int] = ()) -> dict[str, Any]:
    """The report about the checkpoint in directory ``path``; it never raises for what it finds there.

    With ``uid`` it also says which files a process of that user and those groups cannot read (by mode bits; access
    control lists are not looked at).

    Sizes are bytes, ``max_context`` is tokens (None when the config does not say), ``parameters`` are stored elements.
    ``shards`` has lists of file names, ``findings`` are Finding.as_dict(), worst first. ``digest`` follows config.json,
    the index and each shard's name, size and header: another structure changes it, other weights of the same shapes
    do not.
    """
    return _Inspection(Path(path)).report(uid, gids)


class _Inspection:
    """One look at one directory; the steps in ``report`` go from the small files to the shards to the tensors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.found: list[Finding] = []
        self.digest = hashlib.sha256()
        self.entries: dict[str, Path] = {}
        self.headers: dict[str, Header] = {}
        self.sizes: dict[str, int] = {}

    def report(self, uid: int | None, gids: Collection[int]) -> dict[str, Any]:
        exists = self._list()
        config = self._config() if exists else {}
        index = self._index() if exists else None
        on_disk = sorted(name for name in self.entries if name.endswith(".safetensors"))
        named = sorted(set(index["weight_map"].values())) if index else on_disk
        if exists:
            if index is None:
                self._judge_missing_index(on_disk)
            self._read_shards(named)
        tensors = {name: tensor for header in self.headers.values() for name, tensor in header.tensors.items()}
        by_dtype: Counter[str] = Counter()
        for tensor in tensors.values():
            by_dtype[tensor.dtype] += tensor.bytes
        if index is not None:
            self._compare_index(index, named, on_disk)
        unseen = {name for name, shard in index["weight_map"].items() if shard not in self.headers} if index else set()
        head = mtp.describe(config, tensors, unseen)
        self.found += head.findings
        if exists:
            self.found += small_files.judge(self.root, self.entries, config, tensors)
            for name in TOKENIZERS:
                if name in self.entries and name.endswith(".json"):
                    self._read_json(name, "tokenizer-invalid")
            if uid is not None:
                self.found += small_files.judge_reader(self.root, self.entries, uid, gids)
        context = text_config(config).get("max_position_embeddings")
        architectures = config.get("architectures")
        return {
            "path": str(self.root),
            "exists": exists,
            "architecture": architectures[0] if architectures else None,
            "config": config,
            "tensors": len(tensors),
            "parameters": sum(tensor.elements for tensor in tensors.values()),
            "bytes": sum(by_dtype.values()),
            "bytes_by_dtype": dict(sorted(by_dtype.items())),
            "file_bytes": sum(self.sizes.values()),
            "shards": {
                "named": named,
                "present": [name for name in named if name in self.entries],
                "missing": [name for name in named if name not in self.entries],
                "extra": [name for name in on_disk if name not in named],
            },
            "mtp": {
                **head.as_dict(),
                "files": sorted(name for name, h in self.headers.items() if any(map(mtp.is_head, h.tensors))),
            },
            "quantization": self._quantization(config),
            "vision": isinstance(config.get("vision_config"), dict),
            "max_context": context if type(context) is int else None,
            "tokenizer": any(name in self.entries for name in TOKENIZERS),
            "layers": layers_of(config),
            "digest": f"sha256:{self.digest.hexdigest()}",
            "findings": [finding.as_dict() for finding in worst_first(self.found)],
        }

    def _add(self, id: str, level: str, where: str, seen: str, expected: str, cure: str) -> None:
        self.found.append(Finding(id, level, seen, expected, cure, where))

    def _list(self) -> bool:
        """Fill ``entries`` with the regular files (links followed) and say whether the directory is there."""
        try:
            listed = sorted(self.root.iterdir())
        except OSError as error:
            self._add(
                "checkpoint-missing",
                "error",
                str(self.root),
                f"the directory cannot be listed: {error.strerror}",
                "a directory with config.json and the weights",
                "Correct the model path, mount the storage, or copy the checkpoint there.",
            )
            return False
        for entry in listed:
            try:
                if stat.S_ISREG(entry.stat().st_mode):
                    self.entries[entry.name] = entry
            except OSError as error:
                if isinstance(error, PermissionError) or not entry.is_symlink():
                    self._unreadable(entry.name, error)
                    continue
                self._add(
                    "dangling-symlink",
                    "error" if entry.suffix in (".safetensors", ".json") else "warning",
                    entry.name,
                    f"a link to {entry.readlink()}, which is not there",
                    "a link to a file",
                    "Copy the file that it names, or download the checkpoint again.",
                )
        return True

    def _unreadable(self, name: str, error: OSError) -> None:
        seen = f"it cannot be read: {error.strerror}"
        self._add("unreadable-file", "error", name, seen, "a readable file", "Mend its owner, its mode or the disk.")

    def _read_json(self, name: str, id: str) -> tuple[bytes, dict[str, Any]] | None:
        """A small JSON object with its bytes; None, with a finding, when it cannot be had."""
        try:
            with self.entries[name].open("rb") as stream:
                raw = stream.read(JSON_LIMIT + 1)
        except OSError as error:
            self._unreadable(name, error)
            return None
        if raw.startswith(LFS_START):
            self._add("lfs-pointer", "error", name, "a Git LFS pointer", "the file itself", "Run `git lfs pull`.")
            return None
        try:
            value = json.loads(raw[:JSON_LIMIT])
        except (ValueError, RecursionError) as error:
            self._add(id, "error", name, f"not JSON: {error}" if raw else "0 bytes", "a JSON object", AGAIN)
            return None
        if not isinstance(value, dict):
            self._add(id, "error", name, f"a JSON {type(value).__name__}", "a JSON object", AGAIN)
            return None
        return raw, value

    def _config(self) -> dict[str, Any]:
        if "config.json" not in self.entries:
            cure = "Copy config.json too; is this the model's own directory?"
            self._add("config-missing", "error", "config.json", "no such file", "the model's configuration", cure)
            return {}
        read = self._read_json("config.json", "config-invalid")
        if read is None:
            return {}
        raw, config = read
        self.digest.update(hashlib.sha256(raw).digest())
        names = config.get("architectures")
        if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
            self._add("config-invalid", "error", "config.json", "no architectures", "the name of a model class", AGAIN)
            config = {**config, "architectures": None}
        return config

    def _index(self) -> dict[str, Any] | None:
        if INDEX not in self.entries:
            return None
        read = self._read_json(INDEX, "index-invalid")
        if read is None:
            return None
        raw, index = read
        self.digest.update(hashlib.sha256(raw).digest())
        places = index.get("weight_map")
        # A path with a directory in it is never matched by the engine, which lists the checkpoint's own files.
        names = list(places.values()) if isinstance(places, dict) else []
        if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
            expected = "weight_map from tensor names to names of files in this directory"
            self._add("index-invalid", "error", INDEX, "no such weight_map", expected, AGAIN)
            return None
        return index

    def _judge_missing_index(self, on_disk: list[str]) -> None:
        if not on_disk:
            cure = "Copy the model's *.safetensors files; other formats are not served."
            self._add("weights-missing", "error", "", "no *.safetensors file", "at least one", cure)
        numbered = [match for match in map(_NUMBERED.search, on_disk) if match]
        if INDEX not in self.entries and (len(on_disk) > 1 or any(int(match[2]) > 1 for match in numbered)):
            self._add(
                "index-missing",
                "error",
                INDEX,
                f"no index beside {some(on_disk)} shards",
                "an index, without which a missing shard goes unseen",
                f"Copy {INDEX} from where the model came from.",
            )

    def _read_shards(self, named: list[str]) -> None:
        dangling = {finding.where for finding in self.found if finding.id == "dangling-symlink"}
        for name in named:
            if name in self.entries:
                try:
                    with self.entries[name].open("rb", buffering=0) as stream:
                        self.sizes[name] = os.fstat(stream.fileno()).st_size
                        self.headers[name] = parse_header(stream, self.sizes[name])
                except CheckpointError as error:
                    self.found.append(dataclasses.replace(error.finding, where=name))
                except OSError as error:
                    self._unreadable(name, error)
            elif name not in dangling:
                seen = "the index names it and it is not there"
                self._add("shard-missing", "error", name, seen, "every shard that the index names", "Copy this shard.")
            header = self.headers.get(name)
            self.digest.update(json.dumps([name, self.sizes.get(name), header and header.digest]).encode())
            if header and header.repeated:
                seen = f"the header repeats {some(header.repeated)} tensors; the last one counts"
                self._add("tensor-twice", "warning", name, seen, "each tensor once", AGAIN)

    def _compare_index(self, index: dict[str, Any], named: list[str], on_disk: list[str]) -> None:
        homes: dict[str, list[str]] = defaultdict(list)
        for shard, header in self.headers.items():
            for tensor in header.tensors:
                homes[tensor].append(shard)
        places = index["weight_map"]
        absent: dict[str, list[str]] = defaultdict(list)
        elsewhere: dict[str, list[str]] = defaultdict(list)
        for tensor, shard in places.items():
            if shard in self.headers and tensor not in self.headers[shard].tensors:
                (elsewhere if tensor in homes else absent)[shard].append(tensor)
        unindexed: dict[str, list[str]] = defaultdict(list)
        twice = []
        for tensor, shards in homes.items():
            if tensor not in places:
                unindexed[shards[0]].append(tensor)
            if len(shards) > 1:
                twice.append(f"{tensor} in {' and '.join(shards)}")
        whole = "Copy the index and the shards again from one revision of the model."
        for shard, names in absent.items():
            seen = f"the index puts tensors here that no readable shard has: {some(names)}"
            self._add("tensor-not-in-shard", "error", shard, seen, "each indexed tensor in its shard", whole)
        for shard, names in elsewhere.items():
            seen = f"the index puts tensors here that lie in another shard: {some(names)}; the engine finds them"
            self._add("tensor-elsewhere", "warning", shard, seen, "each indexed tensor in its shard", whole)
        for shard, names in unindexed.items():
            seen = f"tensors that the index does not name: {some(names)}; the engine loads them too"
            self._add("tensor-unindexed", "warning", shard, seen, "an index that names every tensor", whole)
        if twice:
            seen = f"tensors in two shards, of which the one read last counts: {some(twice)}"
            self._add("tensor-twice", "warning", INDEX, seen, "each tensor in one shard", whole)
        extra = [name for name in on_disk if name not in named]
        if extra:
            seen = f"files that the index does not name: {some(extra)}; the engine does not read them"
            self._add("shard-extra", "warning", INDEX, seen, "an index that names every shard", whole)
        metadata = index.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        held = sum(t.bytes for header in self.headers.values() for t in header.tensors.values())
        if isinstance(total, (int, float)) and total != held and len(self.headers) == len(named):
            expected = f"the {held} bytes that the shards hold"
            self._add("index-total", "warning", INDEX, f"a total_size of {total} bytes", expected, whole)

    def _quantization(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """The quantizer's own description: in the config, or in the file that NVIDIA ModelOpt writes beside it."""
        for part in (config, text_config(config)):
            described = part.get("quantization_config")
            if isinstance(described, dict):
                return described
        if "hf_quant_config.json" in self.entries:
            read = self._read_json("hf_quant_config.json", "config-invalid")
            if read and isinstance(read[1].get("quantization"), dict):
                return {"quant_method": "modelopt", **read[1]["quantization"]}
        return None


def layers_of(config: dict[str, Any]) -> dict[str, int]:
    """Layers by kind of attention. Where config.json has an interval, it decides and not ``layer_types``, as in the
    engine (SGLang 0.5.11, configs/qwen3_next.py:255)."""
    text = text_config(config)
    count, interval = text.get("num_hidden_layers"), text.get("full_attention_interval")
    if type(count) is not int or not 0 < count < 10_000:
        return {}
    if "linear_num_value_heads" not in text:
        return {"full attention": count}
    full = count // (interval if type(interval) is int and interval > 0 else 4)
    return {"linear attention": count - full, "full attention": full}
