"""Gives a checkpoint that lost its MTP head one from elsewhere: a new directory of links, with a merged index.

The engine reads the files that the index names and of them every tensor, so the head is copied into a file of its own.
The checkpoint itself is not touched. What was made stands in the marker; nothing else is ever replaced or deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from . import checkpoint, head, pieces, unquantized
from .checkpoint import INDEX
from .hold import RefusedError, check_owner, held
from .mtp import is_head, text_config
from .small_files import ATTACHED, LEFTOVERS

MARKER = ATTACHED
HEAD = "mtp-head.safetensors"
MODELOPT = "hf_quant_config.json"
WORK = ".sglang-attaching"
SCHEMA = 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Attached:
    """What is to be made: ``links`` by name, ``texts`` (small files) by name, and the head's file."""

    base: Path
    given: list[str]
    links: dict[str, str]
    texts: dict[str, str]
    start: bytes
    order: list[pieces.Piece]
    warnings: list[str]

    @property
    def head_bytes(self) -> int:
        return len(self.start) + sum(piece.tensor.bytes for piece in self.order)

    def identity(self) -> dict[str, Any]:
        """What two runs must have in common for the second to have nothing to do."""
        sources = {str(piece.file): piece.file.stat() for piece in self.order}
        return {
            "schema": SCHEMA,
            "base": str(self.base),
            "links": self.links,
            "texts": {name: _sha256(text.encode()) for name, text in self.texts.items()},
            "head": {"bytes": self.head_bytes, "header": _sha256(self.start)},
            "sources": {name: [info.st_size, info.st_mtime_ns] for name, info in sorted(sources.items())},
        }


def plan(base: Path, sources: Sequence[Path], extract: bool = False) -> Attached:
    """What attaching the head in ``sources`` to ``base`` makes. Reads headers and small files; raises RefusedError."""
    report = checkpoint.inspect(str(base))
    if not report["exists"]:
        raise RefusedError(f"{base} cannot be listed, expected a checkpoint. Correct the path")
    if report["mtp"]["tensors"]:
        lost = report["mtp"]["missing"]
        state = f"{len(lost)} are missing, and two halves need not fit" if lost else "it needs none"
        raise RefusedError(f"{base} has {report['mtp']['tensors']} mtp.* tensors of its own; {state}. Attach no head")
    found = pieces.find(sources, extract)
    config = pieces.read_json(base / "config.json")
    warnings = head.check(config, {name: piece.tensor for name, piece in found.items()})
    start, order = pieces.lay_out(found)
    index = _merged_index(base, found)
    texts = {INDEX: as_text(index), **_configs(base, config)}
    named = set(index["weight_map"].values())
    links = {
        entry.name: str(entry)
        for entry in sorted(base.absolute().iterdir())
        if entry.is_file()
        and not entry.name.startswith(".")
        and entry.name not in (*texts, HEAD)
        and entry.suffix not in LEFTOVERS
        # The engine does not read others, and staging would copy them.
        and (entry.suffix != ".safetensors" or entry.name in named)
    }
    return Attached(base.absolute(), [str(source) for source in sources], links, texts, start, order, warnings)


def preview(wanted: Attached, path: Path, uid: int | None = None, gids: Collection[int] = ()) -> dict[str, Any]:
    """The report of checkpoint.inspect about ``path`` as it will be; it raises RefusedError for one with an error.

    With ``uid`` the report has the finding about files of the base that this user cannot read.
    """
    with tempfile.TemporaryDirectory(prefix="sglang-attach-") as place:
        _fill(wanted, Path(place), sparse=True)
        (Path(place) / MARKER).touch()
        report = checkpoint.inspect(place)
    for finding in report["findings"]:
        if finding["level"] == "error":
            raise RefusedError(
                f"{wanted.base} with the head would be no whole checkpoint: {finding['where']}: {finding['seen']}, "
                f"expected {finding['expected']}. {finding['cure']}"
            )
    if uid is not None:
        closed = checkpoint.inspect(str(wanted.base), uid, gids)["findings"]
        report["findings"] += [finding for finding in closed if finding["id"] == "unreadable-file"]
    return {**report, "path": str(path)}


def is_current(wanted: Attached, path: Path) -> bool:
    """Whether ``path`` is what is wanted already."""
    marker = _marker(path)
    return marker is not None and marker["made"] == wanted.identity() and not _altered(path, marker)


def outlives(base: Path, sources: Sequence[Path], path: Path) -> bool:
    """Whether ``path`` was made of these, is as it was made, and a source is gone: it is not needed a second time."""
    marker = _marker(path)
    return (
        marker is not None
        and (marker["made"]["base"], marker["given"]) == (str(base.absolute()), [str(source) for source in sources])
        and not _altered(path, marker)
        and not all(source.exists() for source in sources)
    )


def attach(wanted: Attached, path: Path, say: Say = print) -> bool:
    """Make ``path``; returns whether it was not so before. It is there as a whole or as it was."""
    with held(path.parent, lambda holder: say(f"{path}: waiting for {holder}")):
        check_place(wanted, path)
        if is_current(wanted, path):
            return False
        work = _work(path)
        _remove_work(work)
        try:
            work.mkdir()
            work.chmod(0o755)
            digest = _fill(wanted, work, sparse=False)
            content = {"made": wanted.identity(), "given": wanted.given, "head_sha256": digest}
            _write(work / MARKER, as_text(content))
            marker = _marker(path)
            if marker:
                _take_away(path, marker)
            work.rename(path)
        finally:
            _remove_work(work)
    return True


def detach(path: Path, say: Say = print, dry_run: bool = False) -> tuple[list[str], list[str]]:
    """Take away what ``attach`` made at ``path``: names of what goes, and of what stays since it was not made so.

    While something stays, so does the marker. Raises RefusedError for a directory that ``attach`` did not make.
    """
    if not path.parent.is_dir():
        return [], []
    with contextlib.ExitStack() as holds:
        if not dry_run:
            holds.enter_context(held(path.parent, lambda holder: say(f"{path}: waiting for {holder}")))
            _remove_work(_work(path))
        if not path.exists():
            return [], []
        marker = _marker(path)
        if marker is None:
            raise RefusedError(f"{path} has no {MARKER}: it was not made by attaching a head. It is left as it is")
        left = _altered(path, marker, gone=False)
        ours = sorted(_names(path) - {*left, MARKER})
        if not dry_run:
            _take_away(path, marker)
        return ours, left


def is_attached(path: Path) -> bool:
    """Whether ``path`` was made by attaching a head, also one that was changed since."""
    return _marker(path) is not None


def lost_sources(path: Path) -> list[str]:
    """Sources of the head in ``path`` that are gone: it may be the last copy. Empty where ``attach`` made nothing."""
    marker = _marker(path)
    return [source for source in marker["given"] if not Path(source).exists()] if marker else []


def check_place(wanted: Attached, path: Path) -> None:
    """Raise RefusedError where ``path`` holds anything that attaching did not make."""
    place = path.resolve()
    for other in (wanted.base.resolve(), *(piece.file.resolve() for piece in wanted.order)):
        if other == place or place in other.parents or other in place.parents:
            raise RefusedError(f"{path} and {other} lie in each other. Name a directory apart")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RefusedError(f"{path} is no directory. Remove what is there or name another place")
    marker = _marker(path)
    foreign = _altered(path, marker, gone=False) if marker else sorted(_names(path))
    if foreign:
        raise RefusedError(
            f"{path} holds files that attaching a head did not make: {', '.join(foreign[:5])}. "
            "They are left as they are; move them away or name another place"
        )


def _merged_index(base: Path, found: dict[str, pieces.Piece]) -> dict[str, Any]:
    if (base / INDEX).exists():
        index = pieces.read_json(base / INDEX)
        # Names of a head whose shard was lost, or was quantized without it, would be looked for there.
        places = {name: shard for name, shard in pieces.weight_map(base).items() if not is_head(name)}
        files = sorted({base / shard for shard in places.values()})
    else:
        index, places, files = {}, {}, sorted(base.glob("*.safetensors"))
    held_bytes = sum(piece.tensor.bytes for piece in found.values())
    for file in files:
        tensors = pieces.read_header(file)[0].tensors
        held_bytes += sum(tensor.bytes for tensor in tensors.values())
        if not index:
            places |= dict.fromkeys(tensors, file.name)
    found_metadata = index.get("metadata")
    metadata = dict(found_metadata) if isinstance(found_metadata, dict) else {}
    if isinstance(metadata.get("total_parameters"), int):
        metadata["total_parameters"] += sum(piece.tensor.elements for piece in found.values())
    places |= dict.fromkeys(found, HEAD)
    return {**index, "metadata": {**metadata, "total_size": held_bytes}, "weight_map": dict(sorted(places.items()))}


def _configs(base: Path, config: dict[str, Any]) -> dict[str, str]:
    """The files that have to say something else than those of the base: the head is there, and is not quantized."""
    changed: dict[str, str] = {}
    new = json.loads(json.dumps(config))
    text = text_config(new)
    text["mtp_num_hidden_layers"] = text.get("mtp_num_hidden_layers") or 1
    for part in (new, text):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part.get(key), dict):
                part[key] = unquantized.without_head(part[key])
    if new != config:
        changed["config.json"] = as_text(new)
    if (base / MODELOPT).is_file():
        content = pieces.read_json(base / MODELOPT)
        if isinstance(content.get("quantization"), dict):
            changed[MODELOPT] = as_text(unquantized.modelopt_file_without_head(content))
    return changed


def _fill(wanted: Attached, place: Path, sparse: bool) -> str:
    """Write everything but the marker; a sparse head has its header and size, and no data. Returns its SHA-256."""
    for name, target in wanted.links.items():
        (place / name).symlink_to(target)
    for name, text in wanted.texts.items():
        _write(place / name, text)
    if sparse:
        (place / HEAD).write_bytes(wanted.start)
        os.truncate(place / HEAD, wanted.head_bytes)
        return ""
    return pieces.write(place / HEAD, wanted.start, wanted.order)


def _marker(path: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads((path / MARKER).read_bytes())
        return dict(marker) if marker["made"]["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()} if path.is_dir() else set()


def _altered(path: Path, marker: dict[str, Any], gone: bool = True) -> list[str]:
    """Names in ``path`` that are not as they were made; what is ``gone`` counts too, unless told otherwise."""
    names = {HEAD, *marker["made"]["links"], *marker["made"]["texts"]}
    there = _names(path)
    names = there | names if gone else there
    return sorted(name for name in names if name != MARKER and not _as_made(path / name, marker["made"]))


def _as_made(place: Path, made: dict[str, Any]) -> bool:
    name = place.name
    with contextlib.suppress(OSError):
        if place.is_symlink():
            return bool(str(place.readlink()) == made["links"].get(name))
        if name == HEAD:
            return bool(place.stat().st_size == made["head"]["bytes"])
        return name in made["texts"] and bool(_sha256(place.read_bytes()) == made["texts"][name])
    return False


def _take_away(path: Path, marker: dict[str, Any]) -> None:
    left = _altered(path, marker, gone=False)
    for name in (HEAD, *marker["made"]["links"], *marker["made"]["texts"]):
        if name not in left:
            (path / name).unlink(missing_ok=True)
    if not left:
        (path / MARKER).unlink()
        path.rmdir()


def _work(path: Path) -> Path:
    return path.with_name(f".{path.name}{WORK}")


def _remove_work(work: Path) -> None:
    """Remove what a run that was killed left; links in it are removed, never followed."""
    if work.exists():
        check_owner(work)
        shutil.rmtree(work)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def as_text(value: Any) -> str:
    """JSON as these files are written."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
