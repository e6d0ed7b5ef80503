"""The transport into a real LXC container: what a stand-in without namespaces cannot show."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from tests.lab_fixture import Lab
from tests.transport_node import ansible, connect, inventory, wait_for

pytestmark = pytest.mark.container


@pytest.fixture
def variables(lab: Lab, tmp_path: Path) -> dict[str, Any]:
    return {
        "ansible_connection": "pct",
        "ansible_pct_vmid": lab.vmid,
        "ansible_host": "127.0.0.1",
        "ansible_port": lab.ssh_port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(lab.key),
        "ansible_ssh_common_args": f"-F none -o IdentitiesOnly=yes -o UserKnownHostsFile={lab.known_hosts}",
        "ansible_control_path_dir": str(tmp_path / "cp"),
    }


@pytest.fixture
def connection(variables: dict[str, Any]) -> Iterator[Any]:
    made = connect(variables)
    yield made
    made.reset()


@pytest.mark.parametrize("status", [0, 3, 127, 137, 255])
def test_status_and_streams(connection: Any, status: int) -> None:
    command = f"hostname; printf 'é $x' >&2; exit {status}"
    code, out, err = connection.exec_command(command)
    assert (code, err) == (status, "é $x".encode())
    assert out.startswith(b"ct")


def test_a_killed_command_has_its_signal_as_status(connection: Any) -> None:
    assert connection.exec_command("kill -9 $$")[0] == 137


def test_nothing_of_the_node_leaks(connection: Any) -> None:
    _, out, _ = connection.exec_command("unset OLDPWD; env | cut -d= -f1 | sort; pwd; umask; cat /proc/1/comm")
    names = ["HOME", "LANG", "PATH", "PWD", "TMPDIR", "container"]
    assert out.decode().split() == [*names, "/root", "0022", "systemd"]


def test_no_terminal_even_when_asked_for(variables: dict[str, Any]) -> None:
    made = connect(variables, ansible_ssh_extra_args="-tt")
    assert made.exec_command("tty; echo on stderr >&2") == (0, b"not a tty\n", b"on stderr\n")
    made.reset()


@pytest.mark.parametrize("size", [0, 5_000_000])
def test_files_arrive_whole_owned_by_root_and_private(connection: Any, tmp_path: Path, size: int) -> None:
    source, back, there = tmp_path / "source", tmp_path / "back", "/run/it's $HOME 日本"
    source.write_bytes(os.urandom(size))
    connection.put_file(str(source), there)
    connection.fetch_file(there, str(back))
    assert back.read_bytes() == source.read_bytes()
    _, out, _ = connection.exec_command("cd /run; stat -c '%U %a %n' it*; rm it*")
    assert out.decode() == "root 600 it's $HOME 日本\n"


def test_a_full_disk_is_told_and_leaves_the_old_file(connection: Any, tmp_path: Path) -> None:
    connection.exec_command("mkdir /run/small && mount -t tmpfs -o size=1m tmpfs /run/small && echo old >/run/small/f")
    try:
        (tmp_path / "big").write_bytes(os.urandom(3 << 20))
        with pytest.raises(AnsibleError, match=r"could not write /run/small/f in container .*No space left on device"):
            connection.put_file(f"{tmp_path}/big", "/run/small/f")
        assert connection.exec_command("ls -A /run/small; cat /run/small/f")[1] == b"f\nold\n"
    finally:
        connection.exec_command("umount /run/small; rmdir /run/small")


def test_a_full_disk_here_is_told_and_leaves_the_old_file(connection: Any, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        (small / "back").write_text("old")
        connection.exec_command("head -c 3M /dev/zero >/run/big")
        with pytest.raises(AnsibleError, match=r"could not fetch /run/big: no space left in .*/small here"):
            connection.fetch_file("/run/big", f"{small}/back")
        assert [(path.name, path.read_text()) for path in small.iterdir()] == [("back", "old")]
    finally:
        subprocess.run(["umount", str(small)], check=True)
        connection.exec_command("rm /run/big")


def test_full_disks_do_not_lock_ansible_out(connection: Any, variables: dict[str, Any], tmp_path: Path) -> None:
    places = "/tmp /var/tmp /root"
    fill = "mount -t tmpfs -o size=4k full $d && head -c 8192 /dev/zero >$d/fill 2>/dev/null"
    connection.exec_command(f"for d in {places}; do {fill}; done")
    try:
        assert connection.exec_command("echo x >/tmp/x")[0] != 0
        more = {"ansible_remote_tmp": "/run/ansible", "ansible_python_interpreter": "/usr/bin/python3"}
        for pipelining in (True, False):
            hosts = inventory(tmp_path, variables, **more, ansible_pipelining=pipelining)
            done = ansible("-i", hosts, "server0", "-m", "command", "-a", "mktemp -u")
            assert "/run/ansible/tmp." in done.stdout, done.stdout + done.stderr
    finally:
        # Lazily, since /root is where commands run.
        connection.exec_command(f"umount -l {places}")


def test_a_wrapper_that_is_killed_is_told_apart_from_a_dropped_connection(connection: Any) -> None:
    with pytest.raises(AnsibleConnectionFailure, match=r"was killed with its shell \(status 137\)"):
        connection.exec_command("kill -9 $PPID; sleep 1")


def test_a_frozen_container_is_told_and_what_was_asked_of_it_does_not_run_later(lab: Lab, connection: Any) -> None:
    """As during a backup: processes are kept from running, and lxc-attach waits."""
    lxc = ["-P", str(lab.dir / "lxc"), "-n", str(lab.vmid)]
    connection.exec_command("rm -f /root/late")
    connection.set_option("start_timeout", 2)
    connection.set_option("timeout", 1)
    subprocess.run(["lxc-freeze", *lxc], check=True)
    try:
        with pytest.raises(AnsibleConnectionFailure, match=f"nothing began in container {lab.vmid} "):
            connection.exec_command("touch /root/late", in_data=b"x")
    finally:
        subprocess.run(["lxc-unfreeze", *lxc], check=True)
    # A command that starts later also starts after the one that was waiting.
    assert connection.exec_command("sleep 1; ls /root/late")[0] != 0


def test_a_stopped_a_missing_and_a_stopping_container(lab: Lab, variables: dict[str, Any]) -> None:
    made = connect(variables)
    with pytest.raises(AnsibleConnectionFailure, match=r"container 999999 does not exist on node 127.0.0.1"):
        connect(variables, ansible_pct_vmid=999999).exec_command("true")
    stopper = Thread(target=lambda: (wait_for((lab.rootfs / "root/began").exists), lab.pct("stop", str(lab.vmid))))
    try:
        stopper.start()
        with pytest.raises(AnsibleConnectionFailure, match=r"was killed with its shell|dropped while a command ran"):
            made.exec_command("touch /root/began; sleep 60")
        stopper.join()
        with pytest.raises(AnsibleConnectionFailure, match=f"is not running .*pct start {lab.vmid}"):
            made.exec_command("true", in_data=os.urandom(1 << 20))
    finally:
        stopper.join()
        (lab.rootfs / "root/began").unlink(missing_ok=True)
        if "running" not in lab.pct("status", str(lab.vmid)).stdout:
            lab.pct("start", str(lab.vmid))
        wait_for(lambda: lab.pct("exec", str(lab.vmid), "--", "systemctl", "is-system-running", "--wait").stdout != "")
        made.reset()
