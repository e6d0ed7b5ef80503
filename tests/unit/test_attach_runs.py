"""Attaching a head in processes of their own: killed in the middle, two at once, and how much memory it takes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import attach_kit as kit
import pytest
from sglang_pve import attach
from sglang_pve.attach import HEAD
from sglang_pve.head import shapes as head_shapes
from sglang_pve.pieces import Piece, lay_out
from sglang_pve.shard import Tensor


@pytest.fixture
def official(tmp_path: Path) -> Path:
    kit.lab.make(tmp_path / "official")
    return tmp_path / "official"


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    kit.lab.make(tmp_path / "lost", with_draft=False)
    return tmp_path / "lost"


@pytest.fixture
def head(official: Path, tmp_path: Path) -> Path:
    return kit.write(tmp_path / "head.safetensors", kit.head_of(official))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "attached"


RUN = """
import sys
from pathlib import Path
from sglang_pve import attach, pieces
lost, head, place, kill = sys.argv[1:]
wanted = attach.plan(Path(lost), [Path(head)])
if kill:
    def stop(pieces):
        yield from list(pieces)[:7]
        print("half", flush=True)
        sys.stdin.read()
    write = pieces.write
    pieces.write = lambda path, start, order: write(path, start, stop(order))
attach.attach(wanted, Path(place))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def run(lost: Path, head: Path, place: Path, kill: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", RUN, str(lost), str(head), str(place), kill]
    environment = {"PYTHONPATH": str(kit.ROOT / "module_utils")}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_in_the_middle_and_run_again(official: Path, lost: Path, place: Path, head: Path) -> None:
    killed = run(lost, head, place, "kill")
    assert killed.stdout and killed.stdout.readline() == "half\n"
    killed.kill()
    killed.communicate()
    assert not place.exists() and attach._work(place).is_dir()
    attach.attach(attach.plan(lost, [head]), place, print)
    assert kit.head_of(place) == kit.head_of(official) and not list(lost.parent.glob(".*"))


def test_two_at_once(official: Path, lost: Path, place: Path, head: Path) -> None:
    both = [run(lost, head, place) for _ in range(2)]
    assert all(process.wait() == 0 for process in both)
    assert kit.head_of(place) == kit.head_of(official) and not list(lost.parent.glob(".*"))


def test_a_head_is_never_held_in_memory(lost: Path, place: Path, official: Path) -> None:
    """A head of 134 MB with a fused projection of 67 MB."""
    kit.edit(lost / "config.json", lambda config: config["text_config"].update(hidden_size=4096, intermediate_size=16))
    shapes = head_shapes(json.loads((lost / "config.json").read_text()), {})
    pieces = {
        name: Piece(Tensor("BF16", shape, 0, 2 * math.prod(shape)), Path(), 0, ()) for name, shape in shapes.items()
    }
    start, order = lay_out(pieces)
    file = lost.parent / "big.safetensors"
    file.write_bytes(start)
    os.truncate(file, len(start) + sum(piece.tensor.bytes for piece in order))
    out, _ = run(lost, file, place).communicate()
    assert (place / HEAD).stat().st_size == file.stat().st_size > 128 << 20
    assert int(out) < 64 << 10, "KiB"
