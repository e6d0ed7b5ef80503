"""Tensors taken out of safetensors files and laid down in a new one, without ever holding one in memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .checkpoint import INDEX
from .copying import state
from .hold import RefusedError
from .mtp import PREFIX, is_head, some
from .shard import BITS, CheckpointError, Header, Tensor, parse_header

BLOCK = 1 << 20


@dataclass(frozen=True)
class Piece:
    """A tensor and the file that has it; its data begin ``offset`` bytes from the file's start.

    ``state`` is the file's when its header was read.
    """

    tensor: Tensor
    file: Path
    offset: int
    state: tuple[int, ...]


def find(sources: Sequence[Path], extract: bool) -> dict[str, Piece]:
    """The ``mtp.*`` tensors of files, or of whole checkpoints through their index, by name.

    Raises RefusedError where there are none or one is there twice, and unless ``extract`` for a file that holds
    anything else.
    """
    found: dict[str, Piece] = {}
    for file, wanted in (place for source in sources for place in _places(source, extract)):
        header, start, seen = read_header(file)
        names = [name for name in header.tensors if is_head(name)]
        for name in set(names).intersection(found):
            raise RefusedError(f"{name} is in {found[name].file} and in {file}. Name each file once")
        if not set(names) >= wanted:
            raise RefusedError(f"{file} lacks {some(wanted - set(names))}, which the index beside it puts there")
        for name in names:
            found[name] = Piece(header.tensors[name], file, start + header.tensors[name].begin, seen)
    if not found:
        places = ", ".join(map(str, sources))
        raise RefusedError(f"no {PREFIX}* tensor in {places}. Name the files, or the model, that have the head")
    return found


def _places(source: Path, extract: bool) -> list[tuple[Path, set[str]]]:
    """Files to take the head from, each with the names that an index puts there."""
    if not source.is_dir():
        others = [name for name in read_header(source)[0].tensors if not is_head(name)]
        if others and not extract:
            raise RefusedError(
                f"{source} holds {some(others)} beside the head, and the engine reads every tensor of a file. "
                f"Say that the {PREFIX}* are to be extracted, or name a file that holds nothing else"
            )
        return [(source, set())]
    if not (source / INDEX).is_file():
        return [(file, set()) for file in sorted(source.glob("*.safetensors"))]
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map(source).items():
        if is_head(name):
            shards.setdefault(shard, set()).add(name)
    return [(source / shard, names) for shard, names in sorted(shards.items())]


def weight_map(directory: Path) -> dict[str, str]:
    """The index of a checkpoint: tensor to file name."""
    places = read_json(directory / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise RefusedError(f"{directory / INDEX} has no weight_map from tensors to files. Copy it again")
    return places


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"{path} cannot be read ({error}), expected a JSON object. Copy it again") from error
    if not isinstance(value, dict):
        raise RefusedError(f"{path} is a JSON {type(value).__name__}, expected an object. Copy it again")
    return value


def read_header(file: Path) -> tuple[Header, int, tuple[int, ...]]:
    """A file's header, where its data begin in bytes, and the file's state."""
    try:
        with file.open("rb") as stream:
            info = os.fstat(stream.fileno())
            header = parse_header(stream, info.st_size)
            stream.seek(0)
            return header, 8 + int.from_bytes(stream.read(8), "little"), state(info)
    except CheckpointError as error:
        finding = error.finding
        raise RefusedError(f"{file}: {finding.seen}, expected {finding.expected}. {finding.cure}") from error
    except OSError as error:
        raise RefusedError(f"{file} cannot be read ({error.strerror}), expected a safetensors file") from error


def lay_out(pieces: dict[str, Piece]) -> tuple[bytes, list[Piece]]:
    """The start of the new file (length and header), and the pieces in the order in which their data follow it."""
    # Wide types first, so that every tensor is aligned.
    order = sorted(pieces, key=lambda name: (-BITS[pieces[name].tensor.dtype], name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor = pieces[name].tensor
        begin, end = end, end + tensor.bytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [pieces[name] for name in order]


def write(path: Path, start: bytes, pieces: Iterable[Piece]) -> str:
    """Write the new file and return its SHA-256. Raises RefusedError where a source is not as its header was."""
    digest = hashlib.sha256(start)
    with path.open("xb") as writer:
        writer.write(start)
        for piece in pieces:
            with piece.file.open("rb") as reader:
                reader.seek(piece.offset)
                for block in _blocks(reader, piece.tensor.bytes):
                    digest.update(block)
                    writer.write(block)
            if state(piece.file.stat()) != piece.state:
                raise RefusedError(f"{piece.file} changed while it was read. Run again when nothing writes to it")
        writer.flush()
        os.fsync(writer.fileno())
    path.chmod(0o644)
    return digest.hexdigest()


def _blocks(reader: BinaryIO, length: int) -> Iterable[bytes]:
    while length:
        block = reader.read(min(BLOCK, length))
        if not block:
            raise OSError(f"{reader.name} ended {length} bytes early")
        length -= len(block)
        yield block
