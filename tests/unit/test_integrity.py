"""Digests of real files: first reading, later ones, what the hub published, interruptions and changes while reading."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from make_safetensors import make_checkpoint
from sglang_pve import integrity


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self.root, self.manifest = folder / "modèle 1", folder / "state/m.json"
        make_checkpoint(self.root)

    def verify(self, **how: object) -> integrity.Reading:
        return integrity.verify(self.root, self.manifest, **how)

    def found(self, **how: object) -> list[tuple[str, str]]:
        return [(finding.id, finding.where) for finding in self.verify(**how).findings]

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if path.is_file())

    def flip(self, name: str, keep_time: bool = True) -> None:
        """Change one byte; the size stays, and so do the times that a copy would keep."""
        path = self.root / name
        content, status = bytearray(path.read_bytes()), path.stat()
        content[-1] ^= 1
        path.write_bytes(content)
        if keep_time:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def hub(self, name: str, etag: str) -> None:
        place = self.root / ".cache/huggingface/download" / f"{name}.metadata"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"0123456789abcdef\n{etag}\n1764573600.0\n")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


SHARD = "model-00001-of-00003.safetensors"


def test_the_first_reading_keeps_digests_and_the_second_compares(checkpoint: Checkpoint) -> None:
    first = checkpoint.verify()
    assert first.new and sorted(first.new) == checkpoint.names and first.findings == []
    kept = json.loads(checkpoint.manifest.read_text())["files"]
    assert {name: entry["sha256"] for name, entry in kept.items()} == {
        name: hashlib.sha256((checkpoint.root / name).read_bytes()).hexdigest() for name in checkpoint.names
    }
    second = checkpoint.verify(since=float("inf"))
    assert (second.new, second.findings, len(second.entries)) == ([], [], len(checkpoint.names))


def test_one_byte_that_changed_is_found_and_the_digest_stays(checkpoint: Checkpoint) -> None:
    checkpoint.verify()
    checkpoint.flip(SHARD)
    assert checkpoint.found() == [], "size, time and inode are the same: only a full reading sees it"
    for _ in range(2):
        assert checkpoint.found(since=float("inf")) == [("file-altered", SHARD)]
    checkpoint.flip(SHARD, keep_time=False)
    assert checkpoint.found() == [], "it is as it was"


def test_only_what_changed_is_read_again(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.verify()
    checkpoint.flip("config.json", keep_time=False)
    read, original = [], integrity._read
    monkeypatch.setattr(integrity, "_read", lambda name, path, total: read.append(name) or original(name, path, total))
    assert checkpoint.found() == [("file-altered", "config.json")]
    assert read == ["config.json"]


def test_files_that_were_replaced_on_purpose(checkpoint: Checkpoint) -> None:
    checkpoint.verify()
    checkpoint.flip(SHARD, keep_time=False)
    (checkpoint.root / "generation_config.json").unlink()
    assert sorted(checkpoint.found()) == [("file-altered", SHARD), ("file-gone", "generation_config.json")]
    assert checkpoint.found(accept=True) == []
    assert checkpoint.found(since=float("inf")) == []


@pytest.mark.parametrize("kind", ["sha256", "git"])
def test_what_the_hub_published_counts_from_the_first_reading(checkpoint: Checkpoint, kind: str) -> None:
    name = SHARD if kind == "sha256" else "config.json"
    content = (checkpoint.root / name).read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    checkpoint.hub(name, hashlib.sha256(content).hexdigest() if kind == "sha256" else blob)
    assert checkpoint.found() == []
    checkpoint.flip(name, keep_time=False)
    assert checkpoint.found() == [("file-not-as-published", name)]
    assert checkpoint.found(accept=True) == [("file-not-as-published", name)], "that cannot be waved through"


def test_digests_of_the_hub_s_cache_stand_in_the_blobs_names(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub/blobs", tmp_path / "hub/snapshots/abc"
    make_checkpoint(snapshot)
    blobs.mkdir(parents=True)
    for path in list(snapshot.iterdir()):
        name = hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(blobs / name)
        path.symlink_to(f"../../blobs/{name}")
    assert len(integrity.published(snapshot)) == len(list(snapshot.iterdir()))
    assert integrity.verify(snapshot, tmp_path / "m.json").findings == []
    victim = snapshot / SHARD
    victim.resolve().write_bytes(b"x" + victim.read_bytes()[1:])
    (finding,) = integrity.verify(snapshot, tmp_path / "m2.json").findings
    assert (finding.id, finding.where) == ("file-not-as-published", SHARD)


def test_an_interrupted_reading_goes_on_where_it_was(checkpoint: Checkpoint) -> None:
    checkpoint.verify()
    rounds = 0
    # As if all had been read long ago.
    manifest = json.loads(checkpoint.manifest.read_text())
    for entry in manifest["files"].values():
        entry["read"] = 0
    checkpoint.manifest.write_text(json.dumps(manifest))
    since = 1.0
    left = checkpoint.names
    while left:
        reading = checkpoint.verify(since=since, seconds=-1 if rounds == 0 else 60, workers=1)
        assert rounds != 0 or sorted(reading.left) == checkpoint.names
        left, rounds = reading.left, rounds + 1
    assert rounds == 2 and checkpoint.verify(since=since).left == []


def test_a_file_that_changes_while_it_is_read(checkpoint: Checkpoint) -> None:
    name = "big.safetensors"
    os.mkfifo(checkpoint.root / "gate")
    path = checkpoint.root / name
    path.write_bytes(bytes(64 << 20))
    stop = threading.Event()

    def write() -> None:
        with path.open("r+b") as stream:
            while not stop.is_set():
                stream.seek(0)
                stream.write(os.urandom(8))
                stream.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert ("file-changing", name) in checkpoint.found()
    finally:
        stop.set()
        writer.join()
    assert name not in integrity.read_manifest(checkpoint.manifest)
    assert checkpoint.found() == []


def test_a_manifest_that_is_none_is_named(checkpoint: Checkpoint) -> None:
    checkpoint.manifest.parent.mkdir()
    for text in ("", "[]", '{"schema": 2, "files": {}}', '{"schema": 1}'):
        checkpoint.manifest.write_text(text)
        with pytest.raises(integrity.IntegrityError, match=r"m\.json"):
            checkpoint.verify()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(integrity.IntegrityError, match="cannot be listed"):
        integrity.verify(tmp_path / "none", tmp_path / "m.json")
