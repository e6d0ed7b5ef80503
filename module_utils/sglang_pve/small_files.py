"""The files beside the weights: what a server cannot do without, who may read them, and what a download left behind."""

from __future__ import annotations

import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .findings import Finding
from .mtp import is_head, some, text_config
from .shard import Tensor

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
LEFTOVERS = (".incomplete", ".aria2", ".part", ".partial", ".crdownload")
# In a directory of links that was made to attach a head (attach.py).
ATTACHED = ".sglang-attached.json"
# The embedding's name ends so in every family that the engine serves; a nested model has a prefix before it.
EMBEDDING = "embed_tokens.weight"


def judge(
    root: Path, entries: Mapping[str, Path], config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> list[Finding]:
    """Findings about everything that is not a shard or the index; ``entries`` are the directory's regular files."""
    found = [
        *_missing(root, entries, bool(config.get("vision_config"))),
        *_vocabulary(config, tensors),
        *_escaping(root, entries),
    ]
    places = [root, root / ".cache/huggingface/download"]
    if root.parent.name == "snapshots":
        places.append(root.parent.parent / "blobs")
    left = [name for place in places for name in _names(place) if Path(name).suffix in LEFTOVERS]
    if left:
        cure = "Finish the download, then delete what is left of it."
        seen = f"{some(left)} partial files"
        found.append(Finding("unfinished-download", "warning", seen, "a finished download", cure))
    return found


def _missing(root: Path, entries: Mapping[str, Path], vision: bool) -> list[Finding]:
    found = []
    if not any(name in entries for name in TOKENIZERS):
        expected, cure = f"one of {', '.join(TOKENIZERS)}", "Copy the tokenizer's files too."
        found.append(Finding("tokenizer-missing", "error", "no tokenizer", expected, cure))
    elif "tokenizer_config.json" not in entries:
        cure = "Copy it from where the model came from: special tokens stand in it."
        found.append(Finding("tokenizer-config-missing", "warning", "no tokenizer_config.json", "that file", cure))
    if not _has_template(entries):
        seen = "no chat_template.jinja or chat_template.json, and no chat_template in tokenizer_config.json"
        cure = "Copy it from where the model came from, or name one with the flag chat-template: chats fail without."
        found.append(Finding("chat-template-missing", "warning", seen, "a chat template", cure))
    if "generation_config.json" not in entries:
        cure = "Copy it from where the model came from, or answers may not end where they should."
        expected = "that file, which names the tokens that end an answer"
        found.append(Finding("generation-config-missing", "warning", "no generation_config.json", expected, cure))
    if vision and "preprocessor_config.json" not in entries:
        cure = (
            "Copy it from where the model came from: the engine does not start without (a model with a vision tower)."
        )
        expected = "that file, since config.json has a vision_config"
        found.append(Finding("preprocessor-missing", "error", "no preprocessor_config.json", expected, cure))
    return found


def _has_template(entries: Mapping[str, Path]) -> bool:
    if "chat_template.jinja" in entries or "chat_template.json" in entries:
        return True
    try:
        return b'"chat_template"' in entries["tokenizer_config.json"].read_bytes()
    except (KeyError, OSError):
        return False


def _vocabulary(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[Finding]:
    """Rows of the embedding against vocab_size: the engine cuts or leaves random what differs."""
    size = text_config(dict(config)).get("vocab_size")
    return [
        Finding(
            "vocabulary-size",
            "error",
            f"an embedding of {tensor.shape[0]} rows",
            f"{size}, the vocab_size of config.json",
            "Take config.json and weights from one revision of the model.",
            name,
        )
        for name, tensor in sorted(tensors.items())
        # A padded embedding is larger than the vocabulary, and the engine takes it; a smaller one lacks tokens.
        if name.endswith(EMBEDDING) and not is_head(name) and tensor.shape and type(size) is int
        if tensor.shape[0] < size
    ]


def _escaping(root: Path, entries: Mapping[str, Path]) -> list[Finding]:
    """Links out of the checkpoint. The hub's cache has them too, into its own blobs/, and these are fine."""
    home = root.resolve()
    allowed = [home, *([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])]
    out = [
        f"{name} -> {path.resolve()}"
        for name, path in entries.items()
        if path.is_symlink() and not any(place in path.resolve().parents for place in allowed)
    ]
    if not out or (root / ATTACHED).exists():
        return []
    cure = "Nothing, where that place is as durable as this one; a backup or move of the directory leaves it behind."
    return [Finding("link-outside", "note", f"links out of the checkpoint: {some(out)}", "files of its own", cure)]


def _names(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError:
        return []


def judge_reader(root: Path, entries: Mapping[str, Path], uid: int, gids: Collection[int]) -> list[Finding]:
    """Files that this user cannot read, by mode bits."""
    memory: dict[Path, bool] = {}
    closed = [name for name, path in entries.items() if not _reads(path, uid, gids, memory)]
    if not closed:
        return []
    return [
        Finding(
            "unreadable-file",
            "error",
            f"files that user id {uid} cannot read: {some(closed)}",
            "files and directories open to the service user",
            "chmod -R a+rX the checkpoint and make its parent directories passable (a+x).",
            str(root),
        )
    ]


def _reads(path: Path, uid: int, gids: Collection[int], memory: dict[Path, bool]) -> bool:
    """Whether every directory on the way (links followed) lets the user pass and the file lets them read."""
    if uid == 0:
        return True
    real = path.resolve()
    way = {*path.absolute().parents, *real.parents}
    for directory in way.difference(memory):
        memory[directory] = _allows(directory, uid, gids, stat.S_IXOTH)
    return all(memory[directory] for directory in way) and _allows(real, uid, gids, stat.S_IROTH)


def _allows(path: Path, uid: int, gids: Collection[int], bit: int) -> bool:
    try:
        info = path.stat()
    except OSError:
        return False
    shift = 6 if info.st_uid == uid else 3 if info.st_gid in gids else 0
    return bool(info.st_mode >> shift & bit)
