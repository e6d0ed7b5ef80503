"""The fixture `lab`: a lab of its own for one test session, made and removed by playbooks/lab.yml."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Lab:
    """Where a lab is and how to reach it; `inventory` is a directory for `ansible-playbook -i`."""

    vmid: int
    inventory: Path
    dir: Path
    ssh_port: int
    key: Path
    known_hosts: Path

    @property
    def rootfs(self) -> Path:
        """The container's root file system as this machine sees it."""
        return self.dir / "lxc" / str(self.vmid) / "rootfs"

    def ssh_command(self, command: str) -> list[str]:
        """The command line that runs `command` on the node."""
        options = [f"UserKnownHostsFile={self.known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes"]
        login = ["ssh", "-F", "none", "-i", str(self.key), "-p", str(self.ssh_port), "root@127.0.0.1"]
        return [*login, *(word for option in options for word in ("-o", option)), "--", command]

    def ssh(self, command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `command` on the node by ssh."""
        return subprocess.run(self.ssh_command(command), input=stdin, capture_output=True, text=True, check=False)

    def pct(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the node's `pct` directly, without ssh."""
        command = [str(self.dir / "node/bin/pct"), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def playbook_command(self, *arguments: str) -> list[str]:
        """The command line that runs playbooks/lab.yml for this lab, from any directory."""
        tool = str(Path(sys.executable).with_name("ansible-playbook"))
        return [tool, "-i", str(self.inventory), str(PROJECT / "playbooks/lab.yml"), *arguments]

    def playbook(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run playbooks/lab.yml for this lab."""
        command = self.playbook_command(*arguments)
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def own_lab(first_vmid: int = 291) -> Iterator[Lab]:
    """A lab's description, under a VMID that no other test session uses now; not made here, but removed at the end."""
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    with contextlib.ExitStack() as stack:
        for vmid in range(first_vmid, first_vmid + 9):
            lock = stack.enter_context((Path(tempfile.gettempdir()) / f"sglang-pve-test-lab-{vmid}.lock").open("w"))
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        else:
            pytest.fail(f"test sessions hold all VMIDs from {first_vmid} on; wait for one to end")
        inventory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sglang-pve-lab-")))
        hosts = yaml.safe_load((PROJECT / "inventory/lab/hosts.yml").read_text())
        hosts["all"]["vars"]["lab_vmid"] = vmid
        (inventory / "hosts.yml").write_text(yaml.safe_dump(hosts))
        (inventory / "group_vars").symlink_to(PROJECT / "inventory/lab/group_vars")
        state = Path("/var/lib/sglang-pve-lab") / str(vmid)
        lab = Lab(vmid, inventory, state, 22000 + vmid, state / "node/user_key", state / "node/known_hosts")
        absent(lab)  # a session that was killed may have left it behind
        try:
            yield lab
        finally:
            absent(lab)


def present(lab: Lab) -> None:
    made = lab.playbook()
    assert made.returncode == 0, made.stdout + made.stderr


def absent(lab: Lab) -> None:
    removed = lab.playbook("-e", "lab_state=absent")
    assert removed.returncode == 0, removed.stdout + removed.stderr


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A running lab, shared by the session: leave its container running and its files as they were."""
    with own_lab() as made:
        present(made)
        yield made
