"""An account on the node that is not root, with a sudo rule for `pct exec` in one container alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from tests.lab_fixture import Lab
from tests.transport_node import ROOT, Node, ansible, connect, inventory

pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(not shutil.which("visudo"), reason="needs the package sudo: apt-get install sudo"),
]

ACCOUNT = "sglang-pve-test"


def documented_rule(vmid: int, pct: Path) -> str:
    """The line that docs/transport.md tells the reader to write, for this container and this pct."""
    [line] = re.findall(r"^\w+ ALL=.*pct exec.*$", (ROOT / "docs/transport.md").read_text(), re.MULTILINE)
    return re.sub(r"^\w+", ACCOUNT, line).replace("/usr/sbin/pct", str(pct)).replace(" 200 ", f" {vmid} ")


@pytest.fixture(params=["", "use_pty"], ids=["sudo before 1.9.14", "sudo since 1.9.14"])
def account(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Node]:
    """A node with the account on it; newer versions of sudo have use_pty by default."""
    pct = lab.dir / "node/bin/pct"
    rules = Path("/etc/sudoers.d") / f"{ACCOUNT}-{lab.vmid}"
    defaults = f"Defaults:{ACCOUNT} {request.param or '!use_pty'}\n"
    with tempfile.TemporaryDirectory(prefix="sglang-pve-sudo-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # sshd reads authorized_keys as the account
        node = Node(directory, lab.dir / "node/bin")
        # '*' is a password that nothing matches; '!', as by default, would be a locked account to sshd.
        add = ["useradd", "--system", "--shell", "/bin/bash", "--home-dir", "/nonexistent", "--password", "*", ACCOUNT]
        subprocess.run(add, check=True)
        try:
            rules.write_text(defaults + documented_rule(lab.vmid, pct) + "\n")
            rules.chmod(0o440)
            subprocess.run(["visudo", "--check", "--file", str(rules)], check=True, capture_output=True)
            node.start()
            yield node
        finally:
            node.close_master()
            node.stop()
            rules.unlink(missing_ok=True)
            subprocess.run(["userdel", ACCOUNT], check=True)


@pytest.fixture
def as_account(lab: Lab, account: Node) -> dict[str, Any]:
    return {
        **account.variables(lab.vmid),
        "ansible_user": ACCOUNT,
        "ansible_pct_sudo": True,
        "ansible_pct_executable": str(lab.dir / "node/bin/pct"),
    }


def test_everything_works_as_for_root(lab: Lab, as_account: dict[str, Any], tmp_path: Path) -> None:
    connection = connect(as_account)
    status, out, err = connection.exec_command("id -un; hostname; tty; echo 'ü $x' >&2; exit 255")
    assert (status, out, err) == (255, f"root\nct{lab.vmid}\nnot a tty\n".encode(), "ü $x\n".encode())
    data = os.urandom(3_000_000)
    assert connection.exec_command("cat", in_data=data) == (0, data, b"")
    _, names, _ = connection.exec_command("unset OLDPWD; env | cut -d= -f1 | sort")
    assert names.decode().split() == ["HOME", "LANG", "PATH", "PWD", "TMPDIR", "container"]
    there = "/run/it's $HOME\nž"
    (tmp_path / "source").write_bytes(data)
    connection.put_file(f"{tmp_path}/source", there)
    connection.fetch_file(there, f"{tmp_path}/back")
    assert (tmp_path / "back").read_bytes() == data
    connection.exec_command("rm /run/it*")
    for pipelining in (True, False):
        hosts = inventory(tmp_path, as_account, ansible_pipelining=pipelining)
        done = ansible("-i", hosts, "server0", "-m", "command", "-a", "id -un")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "root" in done.stdout


def test_another_container_is_refused_with_the_cure(as_account: dict[str, Any]) -> None:
    with pytest.raises(
        AnsibleConnectionFailure, match=r"the account on node .* may not run pct .*sudo.*ansible_pct_sudo"
    ):
        connect(as_account, ansible_pct_vmid=999).exec_command("true")


def test_the_rule_allows_nothing_else(lab: Lab, as_account: dict[str, Any], account: Node) -> None:
    pct, vmid = lab.dir / "node/bin/pct", lab.vmid

    def run(command: str) -> int:
        login = ["ssh", "-F", "none", "-i", str(account.key), "-p", str(account.port), f"{ACCOUNT}@127.0.0.1"]
        known = ["-o", f"UserKnownHostsFile={account.known_hosts}", "-o", "BatchMode=yes"]
        return subprocess.run([*login, *known, "--", command], capture_output=True, check=False).returncode

    assert run(f"sudo -n {pct} exec {vmid} --keep-env 0 -- true") == 0
    for refused in (
        "id",
        "sh",
        f"{pct} list",
        f"{pct} stop {vmid}",
        f"{pct} exec 999 --keep-env 0 -- true",
        f"{pct} exec {vmid} --keep-env 1 -- true",
        f"{pct} exec {vmid} -- true",
        f"{pct} exec 999 {vmid} --keep-env 0 -- true",
        f"{pct} push {vmid} /etc/shadow /root/x",
        f"{lab.dir}/node/bin/pvesh get /version",
    ):
        assert run(f"sudo -n {refused}") == 1, refused


def test_without_a_rule_the_message_says_so(as_account: dict[str, Any]) -> None:
    with pytest.raises(
        AnsibleConnectionFailure, match=r"the account on node .* may not run pct .*a password is required"
    ):
        connect(as_account, ansible_pct_executable="/usr/bin/env").exec_command("true")
