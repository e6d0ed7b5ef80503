"""The connection class over a real ssh client and sshd; tests/fake_pct is the node's pct."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from sglang_pve import pct

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


def hide_host_key(node: Node) -> None:
    node.known_hosts.write_text("")


def change_host_key(node: Node) -> None:
    node.know_host_key(node.directory / "other_key.pub")


# What is done to the node, what is said in the inventory, and what the user reads.
FAULTS: dict[str, tuple[Callable[[Node], object], dict[str, Any], str]] = {
    "stopped": (lambda node: node.mode("stopped"), {}, "container 200 on node .* is not running .*`pct start 200`"),
    "missing": (lambda node: node.mode("missing"), {}, "container 200 does not exist on node .*`pct list`"),
    "locked": (lambda node: node.mode("locked"), {}, "is locked by another task .*`pct unlock 200`"),
    "old pct": (lambda node: node.mode("old"), {}, "does not know --keep-env .*5.0.9"),
    "no cluster": (lambda node: node.mode("cluster"), {}, "cluster file system .*pve-cluster"),
    "no pct": (str, {"ansible_pct_executable": "no_pct"}, "there is no pct on node .*ansible_pct_executable"),
    "node down": (str, {"ansible_port": 1}, "nothing listens on its SSH port .*systemctl status ssh"),
    "wrong name": (str, {"ansible_host": "no-such-node.invalid"}, "cannot be resolved .*ansible_host"),
    "key refused": (str, {"ansible_ssh_private_key_file": "other_key"}, "refused the login .*authorized_keys"),
    "no key": (str, {"ansible_ssh_private_key_file": "/no/key"}, "private SSH key .*ansible_ssh_private_key_file"),
    "unknown host key": (hide_host_key, {}, "is not known here .*ssh-keyscan"),
    "other host key": (change_host_key, {}, "shows another SSH host key .*ssh-keygen -R"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_makes_the_host_unreachable_with_its_cure(
    node: Node, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    act, variables, says = FAULTS[fault]
    monkeypatch.chdir(node.directory)  # keys are named relative to it
    known = node.known_hosts.read_text()
    try:
        act(node)
        with pytest.raises(AnsibleConnectionFailure, match=says):
            connect(node.variables(), **variables).exec_command("true")
    finally:
        node.known_hosts.write_text(known)


@pytest.mark.parametrize(("closes", "says"), [(True, "closed the connection .*sshd"), (False, "does not answer .*on")])
def test_a_node_that_hangs_up_and_one_that_is_silent(node: Node, closes: bool, says: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        if closes:
            Thread(target=lambda: listener.accept()[0].close()).start()
        variables = {"ansible_port": listener.getsockname()[1], "ansible_ssh_timeout": 1}
        with pytest.raises(AnsibleConnectionFailure, match=says):
            connect(node.variables(), **variables).exec_command("true")


def test_a_migrated_container_is_told_with_its_new_node(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real node the directory is /etc/pve/nodes, where each node of the cluster sees the files of all."""
    monkeypatch.setattr(pct, "NODES", str(tmp_path / "nodes"))
    node.mode("missing")
    with pytest.raises(AnsibleConnectionFailure, match="container 200 does not exist on node"):
        connect(node.variables()).exec_command("true")
    (tmp_path / "nodes/pve2/lxc").mkdir(parents=True)
    (tmp_path / "nodes/pve2/lxc/200.conf").touch()
    with pytest.raises(AnsibleConnectionFailure, match=r"was migrated \(.*/nodes/pve2/lxc/200.conf\).*sglang_node"):
        connect(node.variables()).exec_command("true")


@pytest.mark.parametrize(("mode", "files"), [("hangs", False), ("hangs noisily", True)])
def test_where_nothing_begins_the_wait_has_an_end(node: Node, mode: str, files: bool) -> None:
    node.mode(mode)
    limits = {"ansible_pct_start_timeout": 1, "ansible_ssh_timeout": 1, "ansible_ssh_retries": 3}
    connection = connect(node.variables(), **limits)
    with pytest.raises(AnsibleConnectionFailure, match="nothing began in container 200 "):
        if files:
            connection.put_file(__file__, "/nowhere")
        else:
            connection.exec_command("true", in_data=b"x" * 300_000)
    assert len(node.calls()) == 1


def test_what_begins_too_late_does_not_begin(node: Node, tmp_path: Path) -> None:
    node.mode("slow")
    connection = connect(node.variables(), ansible_pct_start_timeout=1)
    with pytest.raises(AnsibleConnectionFailure, match=r"nothing began in container 200 .*will not run later"):
        connection.exec_command(f"touch {tmp_path}/late")
    assert not list(tmp_path.iterdir())


def test_a_command_that_began_may_take_longer_than_the_start_timeout(node: Node) -> None:
    connection = connect(node.variables(), ansible_pct_start_timeout=1)
    assert connection.exec_command("cat; sleep 2.5; echo late", in_data=b"early\n") == (0, b"early\nlate\n", b"")


def test_a_command_finds_an_end_of_its_input_where_there_is_none(node: Node) -> None:
    assert connect(node.variables()).exec_command("cat; echo end") == (0, b"end\n", b"")


def test_ssh_that_explains_itself_does_not_hide_what_happens(node: Node) -> None:
    """Under -v the first connection keeps stderr open for as long as it persists."""
    connection = connect(node.variables(), ansible_ssh_verbosity=3)
    assert connection.exec_command("echo x >&2; exit 3")[0] == 3
    node.close_master()
    node.mode("stopped")
    with pytest.raises(AnsibleConnectionFailure, match="is not running"):
        connect(node.variables(), ansible_ssh_verbosity=3, ansible_pct_start_timeout=30).exec_command("true")


@pytest.mark.parametrize("retries", [0, 3])
def test_a_dropped_connection_is_told_and_the_command_is_not_run_again(
    node: Node, tmp_path: Path, retries: int
) -> None:
    connection = connect(node.variables(), ansible_ssh_retries=retries)
    # The wrapper's parent is the sshd process of this connection. It needs a moment to pass the start mark on.
    command = f"echo run >>{tmp_path}/runs; sleep 1; kill -9 $(ps -o ppid= -p $PPID); sleep 10"
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
