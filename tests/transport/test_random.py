"""Random words, input, output and file names through the connection into a real container and back."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.container

# One connection and one directory serve all examples: each leaves them as they were.
shared = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
chunk = st.binary(max_size=64)
data = st.one_of(chunk, st.builds(lambda part, times: part * times, chunk, st.integers(1, 9000)))
names = (
    st.one_of(text, text.map(lambda name: f"-{name}"), st.text("'\"\\$`*?[~! \n\t;&|<>(){}#-", min_size=1))
    .map(lambda name: name.replace("/", "_"))
    .filter(lambda name: name not in ("", ".", "..") and len(name.encode()) <= 255)
)


@settings(shared, max_examples=300)
@given(argv=st.lists(text), stdin=data, stderr=chunk, status=st.integers(0, 255))
@example(
    argv=["a\nb", "", "-n", "'", '"', "$HOME", "`id`", "\\", "*", "\x1e"], stdin=b"\0\n\xff", stderr=b"\x1e", status=255
)
@example(argv=["é" * 9000], stdin=b"", stderr=b"", status=137)
def test_words_input_output_and_status(
    connection: Any, argv: list[str], stdin: bytes, stderr: bytes, status: int
) -> None:
    octal = "".join(f"\\{byte:03o}" for byte in stderr)
    command = f"{shlex.join(['printf', '%s.', *argv])}; cat; printf '{octal}' >&2; exit {status}"
    said = "".join(f"{word}." for word in argv or [""]).encode()
    assert connection.exec_command(command, in_data=stdin) == (status, said + stdin, stderr)


@settings(shared, max_examples=100)
@given(name=names, content=data)
def test_files_of_any_name(connection: Any, tmp_path: Path, name: str, content: bytes) -> None:
    for directory in ("in", "out"):
        (tmp_path / directory).mkdir(exist_ok=True)
    source, back = tmp_path / "in" / name, tmp_path / "out" / name
    source.write_bytes(content)
    connection.put_file(str(source), f"/run/random/{name}")
    connection.fetch_file(f"/run/random/{name}", str(back))
    assert back.read_bytes() == content
    there = connection.exec_command("cd /run/random; find . -mindepth 1 -print0; rm -rf /run/random; mkdir /run/random")
    assert there == (0, f"./{name}\0".encode(), b"")
    source.unlink()
    back.unlink()


@pytest.fixture(autouse=True)
def random_directory(connection: Any) -> None:
    connection.exec_command("rm -rf /run/random; mkdir /run/random")


@settings(shared, max_examples=20)
@given(before=st.binary(max_size=20), bad=st.sampled_from([b"\xff", b"\xc3", b"\x80", b"\xed\xa0\x80"]))
def test_what_is_not_utf8_is_refused_and_not_changed(
    connection: Any, tmp_path: Path, before: bytes, bad: bytes
) -> None:
    name = os.fsdecode(before.replace(b"\0", b"").replace(b"/", b"") + bad)
    (tmp_path / "source").write_text("x")
    with pytest.raises(AnsibleError, match="not UTF-8"):
        connection.put_file(f"{tmp_path}/source", f"/run/random/{name}")
    with pytest.raises(AnsibleError, match="not UTF-8"):
        connection.fetch_file(f"/run/random/{name}", f"{tmp_path}/back")
    assert connection.exec_command("ls -A /run/random") == (0, b"", b"")
    assert [path.name for path in tmp_path.glob("*back*")] == []
