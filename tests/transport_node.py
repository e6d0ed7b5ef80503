"""A node for the transport's tests: a real sshd on loopback, with tests/fake_pct or a lab's pct."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import connection_loader, fragment_loader

ROOT = Path(__file__).resolve().parent.parent
# As the real one: a fresh environment, of which the locale is kept.
SUDO = """#!/bin/sh
[ "$1" = -n ] || exit 64
shift
echo sudo >>"$(dirname "$0")/calls"
exec env -i LC_ALL="$LC_ALL" PATH="$PATH" "$@"
"""
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


connection_loader.add_directory(str(ROOT / "connection_plugins"))
fragment_loader.add_directory(str(ROOT / "doc_fragments"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Node:
    """One sshd with its keys in ``directory``; ``start`` and ``stop`` it, and tell its pct how to fail.

    ``tools`` is the directory of a lab's ``pct``, for a node that leads into that lab's container. What the
    configuration does not name is as sshd has it by default, MaxSessions and MaxStartups too.
    """

    def __init__(self, directory: Path, tools: Path | None = None) -> None:
        self.directory = directory
        self.port = free_port()
        self.key = directory / "key"
        self.known_hosts = directory / "known_hosts"
        self.bin = tools or directory / "bin"
        self.server: subprocess.Popen[bytes] | None = None
        if not tools:
            self.bin.mkdir()
            shutil.copy(ROOT / "tests/fake_pct", self.bin / "pct")
            (self.bin / "sudo").write_text(SUDO)
            (self.bin / "sudo").chmod(0o755)
        for name in ("key", "other_key", "host_key"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(keygen, check=True)
        shutil.copy(directory / "key.pub", directory / "authorized_keys")
        self.know_host_key(directory / "host_key.pub")
        (directory / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {directory}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            f"AcceptEnv LANG LC_* LEAK\nSetEnv NODE_SECRET=leaks PATH={self.bin}:/usr/sbin:/usr/bin:/sbin:/bin\n"
        )

    def know_host_key(self, public_key: Path) -> None:
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {public_key.read_text()}")

    def start(self) -> None:
        # sshd wants this directory as root, and on a machine without a running sshd it is not there.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [SSHD, "-D", "-e", "-f", str(self.directory / "sshd_config")]
        with (self.directory / "sshd.log").open("ab") as log:
            self.server = subprocess.Popen(command, stderr=log)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError((self.directory / "sshd.log").read_text())

    def stop(self) -> None:
        if self.server:
            self.server.terminate()
            self.server.wait()
            self.server = None

    def drop_connections(self) -> None:
        """Kills the sshd processes of the connections that are open."""
        assert self.server
        children = ["ps", "-o", "pid=", "--ppid", str(self.server.pid)]
        for pid in subprocess.run(children, capture_output=True, text=True, check=True).stdout.split():
            os.kill(int(pid), signal.SIGKILL)

    def mode(self, word: str) -> None:
        (self.bin / "mode").write_text(word)

    def calls(self) -> list[str]:
        """First lines of the pct calls since the last time this was asked."""
        log = self.bin / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def variables(self, vmid: int = 200) -> dict[str, Any]:
        """What the inventory has to say about a container on this node."""
        return {
            "ansible_connection": "pct",
            "ansible_pct_vmid": vmid,
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": getuser(),
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": f"-F none -o SendEnv=LEAK -o UserKnownHostsFile={self.known_hosts}",
            "ansible_control_path_dir": str(self.directory / "cp"),
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_remote_tmp": "/run/ansible",
        }

    def close_master(self) -> None:
        """Ends the shared connections that ControlPersist keeps."""
        for path in (self.directory / "cp").glob("*"):
            subprocess.run(["ssh", "-O", "exit", "-S", str(path), "x"], capture_output=True, check=False)


def ansible(*arguments: str, program: str = "ansible") -> subprocess.CompletedProcess[str]:
    """Runs Ansible as a user does, from the project's root with its ansible.cfg."""
    environment = {**os.environ, "LANG": "C.UTF-8", "LEAK": "controller", "ANSIBLE_NOCOLOR": "1"}
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", name="running")
def running_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    node.start()
    yield node
    node.close_master()
    node.stop()


@pytest.fixture(name="node")
def fresh_node(running: Node) -> Iterator[Node]:
    running.mode("")
    running.calls()
    yield running
    running.close_master()


def connect(variables: dict[str, Any], **more: Any) -> Any:
    """The plugin as Ansible makes it, with the inventory variables of a container."""
    connection = connection_loader.get("pct", PlayContext(), "/dev/null")
    shared = {"ansible_ssh_args": "-o ControlMaster=auto -o ControlPersist=60s"}
    connection.set_options(var_options={**variables, **shared, **more})
    return connection


def inventory(directory: Path, variables: dict[str, Any], hosts: int = 1, **more: Any) -> str:
    """Writes an inventory of the hosts server0, server1, ... that are all in the same container."""
    path = directory / "inventory.yml"
    names = {f"server{n}": None for n in range(hosts)}
    path.write_text(yaml.safe_dump({"all": {"hosts": names, "vars": {**variables, **more}}}))
    return str(path)


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns as soon as ``condition`` holds; fails when it does not come true at all."""
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come true in 10 seconds")
