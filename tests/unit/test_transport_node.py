"""The connection class over a real ssh client and sshd; tests/fake_pct is the node's pct."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from tests.transport_node import SSHD, Node, connect, fresh_node, running_node  # noqa: F401

pytestmark = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs sshd")


# -- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 3, 127, 255])
def test_status_and_both_streams_are_those_of_the_command(node: Node, status: int) -> None:
    node.mode("noisy")
    command = f"printf 'out\\n'; printf 'no newline, \\377' >&2; exit {status}"
    assert connect(node.variables()).exec_command(command) == (status, b"out\n", b"no newline, \xff")


def test_a_killed_command_has_its_signal_as_status(node: Node) -> None:
    assert connect(node.variables()).exec_command("kill -9 $$") == (137, b"", b"Killed\n")


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("false && true; echo 'a  b'", "a  b\n"),
        ('x="1 2"; echo "$x" \'$x\' \\$x', "1 2 $x $x\n"),
        ("printf '%s\\n' 'é日本'", "é日本\n"),
        ("cat <<'END'\n$HOME `id` \\n\nEND", "$HOME `id` \\n\n"),
        ("echo one; # comment", "one\n"),
        ("echo $(echo 'a b' | tr a-z A-Z)", "A B\n"),
    ],
)
def test_quoting(node: Node, command: str, out: str) -> None:
    assert connect(node.variables()).exec_command(command) == (0, out.encode(), b"")


def test_nothing_of_the_node_leaks_and_nothing_runs_there(node: Node) -> None:
    status, out, _ = connect(node.variables()).exec_command("env; umask; pwd")
    seen = out.decode().splitlines()
    assert status == 0
    assert {"HOME=/root", "LANG=C.UTF-8", "TMPDIR=/run/ansible", "container=lxc", "0022"} <= set(seen)
    assert not [line for line in seen if line.startswith(("LEAK", "NODE_SECRET", "LC_", "SSH_", "USER"))]
    if os.geteuid() == 0:
        assert seen[-1] == "/root"


@pytest.mark.parametrize(
    "variables",
    [
        {"ansible_ssh_use_tty": True},
        {"ansible_ssh_extra_args": "-tt"},
        {"ansible_ssh_extra_args": "-o RequestTTY=force"},
    ],
)
def test_there_is_never_a_terminal(node: Node, variables: dict[str, Any]) -> None:
    connection = connect(node.variables(), ansible_pipelining=True, **variables)
    command = "for fd in 0 1 2; do if [ -t $fd ]; then echo terminal; fi; done"
    assert connection.exec_command(command) == (0, b"", b"")
    assert connection.is_pipelining_enabled()


def test_input_reaches_the_command_and_unread_input_is_no_failure(node: Node) -> None:
    connection = connect(node.variables())
    data = os.urandom(300_000)
    assert connection.exec_command("wc -c", in_data=data)[:2] == (0, b"300000\n")
    assert connection.exec_command("exec <&-; echo bad >&2; exit 4", in_data=data * 10) == (4, b"", b"bad\n")


def test_sudo_on_the_node(node: Node) -> None:
    assert connect(node.variables(), ansible_pct_sudo=True).exec_command("echo ü") == (0, "ü\n".encode(), b"")
    assert node.calls()[0] == "sudo"


@pytest.mark.parametrize("vmid", ["20", "$(id)"])
def test_a_bad_vmid_is_told_before_anything_runs(node: Node, vmid: str) -> None:
    with pytest.raises(AnsibleError, match="is no VMID"):
        connect(node.variables(), ansible_pct_vmid=vmid).exec_command("true")
    assert node.calls() == []


# -- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 3])
def test_a_dropped_connection_is_told_and_the_command_is_not_run_again(
    node: Node, tmp_path: Path, retries: int
) -> None:
    connection = connect(node.variables(), ansible_ssh_retries=retries)
    # The wrapper's parent is the sshd process of this connection.
    command = f"echo run >>{tmp_path}/runs; kill -9 $(ps -o ppid= -p $PPID); sleep 10"
    with pytest.raises(AnsibleConnectionFailure, match="dropped while a command ran in container 200"):
        connection.exec_command(command, in_data=b"x")
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_stopped_container_is_not_asked_again_and_big_input_does_not_hide_it(node: Node) -> None:
    node.mode("stopped")
    for data in (None, os.urandom(1 << 20)):
        with pytest.raises(
            AnsibleConnectionFailure, match=r"^container 200 on node 127.0.0.1 is not running .*pct start 200"
        ):
            connect(node.variables(), ansible_ssh_retries=3).exec_command("true", in_data=data)
        assert len(node.calls()) == 1


def test_a_node_that_comes_up_meanwhile_is_reached_by_ssh_retries(node: Node) -> None:
    node.stop()
    with pytest.raises(AnsibleConnectionFailure, match="nothing listens on its SSH port"):
        connect(node.variables()).exec_command("true")
    Timer(0.5, node.start).start()
    assert connect(node.variables(), ansible_ssh_retries=4).exec_command("true")[0] == 0
