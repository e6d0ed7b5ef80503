"""Secrets of a task are on no command line: not here, not on the node, not in the container."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.transport_node import ansible, inventory

pytestmark = pytest.mark.container

SECRET, OPEN = "s3cret-of-the-task", "word-on-a-command-line"


@contextlib.contextmanager
def command_lines() -> Iterator[set[bytes]]:
    """All command lines of this machine while it is open: those of the node and of the container too."""
    seen: set[bytes] = set()
    over = Event()

    def look() -> None:
        while not over.wait(0.005):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    seen.add(file.read_bytes())

    looker = Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        over.set()
        looker.join()


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("become", [True, False])
def test_a_secret_is_on_no_command_line(
    tmp_path: Path, variables: dict[str, Any], pipelining: bool, become: bool
) -> None:
    """The module waits a second with the secret among its arguments; the raw command shows that one sees them."""
    play = tmp_path / "play.yml"
    play.write_text(f"""
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.raw: "sleep 0.5; : {OPEN}"
    - ansible.builtin.wait_for: {{timeout: 1, msg: "{{{{ secret }}}}"}}
    - ansible.builtin.copy: {{content: "{{{{ secret }}}}", dest: /run/secret, mode: "0600"}}
    - ansible.builtin.raw: rm /run/secret
""")
    as_daemon = {"ansible_become_method": "su", "ansible_become_user": "root", "ansible_become": become}
    hosts = inventory(tmp_path, variables, **as_daemon, secret=SECRET, ansible_pipelining=pipelining)
    with command_lines() as seen:
        done = ansible("-i", hosts, str(play), program="ansible-playbook")
    assert done.returncode == 0, done.stdout + done.stderr
    open_lines = [line for line in seen if OPEN.encode() in line]
    assert any(b"lxc-attach" in line for line in open_lines)
    assert any(b"exec" in line and b"--keep-env" in line for line in open_lines)
    assert [line for line in seen if SECRET.encode() in line] == []
