"""put_file and fetch_file over a real ssh client and sshd; tests/fake_pct is the node's pct."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from threading import Thread

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from sglang_pve import pct

from tests.transport_node import SSHD, Node, connect, fresh_node, running_node, wait_for  # noqa: F401

pytestmark = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs sshd")


NAMES = [
    "plain",
    "with space",
    "it's",
    'say "hi"',
    "$HOME `id` $(id)",
    "new\nline",
    "日本 é",
    "-rf",
    "back\\slash",
    "*?[a]",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_exact_on_both_sides(node: Node, tmp_path: Path, name: str) -> None:
    connection = connect(node.variables())
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    source, there, back = tmp_path / "in" / name, tmp_path / "out" / name, tmp_path / "back"
    source.write_text(name)
    connection.put_file(str(source), str(there))
    connection.fetch_file(str(there), str(back))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    assert back.read_text() == name


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_001])
def test_content_is_exact_private_and_replaces_what_was_there(node: Node, tmp_path: Path, size: int) -> None:
    connection = connect(node.variables())
    source, there, back = (tmp_path / name for name in ("source", "there", "back"))
    source.write_bytes(os.urandom(size))
    for old in (there, back):
        old.write_text("what was there before, longer than one byte")
    connection.put_file(str(source), str(there))
    connection.fetch_file(str(there), str(back))
    assert there.read_bytes() == back.read_bytes() == source.read_bytes()
    assert {path.stat().st_mode & 0o777 for path in (there, back)} == {0o600}
    assert {path.name for path in tmp_path.iterdir()} == {"source", "there", "back"}
    assert len(node.calls()) == 2


def test_files_that_are_not_there(node: Node, tmp_path: Path) -> None:
    connection = connect(node.variables())
    with pytest.raises(AnsibleFileNotFound, match=r"no file .*none to copy"):
        connection.put_file(f"{tmp_path}/none", f"{tmp_path}/there")
    with pytest.raises(AnsibleFileNotFound, match=r"no file .*none in container 200"):
        connection.fetch_file(f"{tmp_path}/none", f"{tmp_path}/back")
    assert not list(tmp_path.iterdir())


def test_a_target_that_cannot_be_written_is_told(node: Node, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("x")
    with pytest.raises(AnsibleError, match=r"(?s)could not write .*/none/there in container 200: .*none"):
        connect(node.variables()).put_file(f"{tmp_path}/source", f"{tmp_path}/none/there")


def test_a_connection_that_drops_in_a_copy_leaves_the_old_file(node: Node, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").write_text("old")
    os.mkfifo(tmp_path / "source")
    connection = connect(node.variables())

    def send_half_and_drop() -> None:
        with (tmp_path / "source").open("wb") as pipe:
            pipe.write(b"half")
            pipe.flush()
            wait_for(lambda: any(part.read_bytes() == b"half" for part in there.glob(".part-*")))
            node.drop_connections()

    sender = Thread(target=send_half_and_drop)
    sender.start()
    command = pct.put_command(f"{there}/file", hashlib.sha256(b"the whole").hexdigest(), "n1")
    with pytest.raises(AnsibleConnectionFailure, match="dropped while a command ran"):
        connection._transfer(command, f"{tmp_path}/source", os.devnull)
    sender.join()
    wait_for(lambda: [path.name for path in there.iterdir()] == ["file"])
    assert (there / "file").read_text() == "old"


def test_fetch_of_damaged_data_leaves_the_old_file(node: Node, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("content")
    (tmp_path / "back").write_text("old")
    node.mode("chatty")
    with pytest.raises(AnsibleError, match="is not what arrived here"):
        connect(node.variables()).fetch_file(f"{tmp_path}/there", f"{tmp_path}/back")
    assert (tmp_path / "back").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"there", "back"}
