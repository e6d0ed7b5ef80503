"""Whole Ansible runs over the connection, as a user starts them; tests/fake_pct is the node's pct."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.transport_node import SSHD, Node, ansible, fresh_node, inventory, running_node  # noqa: F401

pytestmark = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs sshd")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def changed_key(node: Node) -> dict[str, Any]:
    node.know_host_key(node.directory / "other_key.pub")
    return {}


# What is done to the node or said in the inventory, and what the user reads.
FAULTS = {
    "stopped": (lambda node: node.mode("stopped"), "is not running", "pct start 200"),
    "missing": (lambda node: node.mode("missing"), "does not exist on node", "pct list"),
    "locked": (lambda node: node.mode("locked"), "is locked by another task", "pct unlock 200"),
    "old pct": (lambda node: node.mode("old"), "does not know --keep-env", "5.0.9"),
    "no cluster": (lambda node: node.mode("cluster"), "cluster file system", "pve-cluster"),
    "no pct": (lambda _: {"ansible_pct_executable": "no_pct"}, "there is no pct on node", "ansible_pct_executable"),
    "node down": (lambda _: {"ansible_port": 1}, "nothing listens on its SSH port", "systemctl status ssh"),
    "key refused": (
        lambda node: {"ansible_ssh_private_key_file": f"{node.directory}/other_key"},
        "refused the login",
        "authorized_keys",
    ),
    "no key": (
        lambda _: {"ansible_ssh_private_key_file": "/no/key"},
        "private SSH key",
        "ansible_ssh_private_key_file",
    ),
    "other host key": (changed_key, "shows another SSH host key", "ssh-keygen -R"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_makes_the_host_unreachable_with_its_cure(node: Node, tmp_path: Path, fault: str) -> None:
    act, what, cure = FAULTS[fault]
    known = node.known_hosts.read_text()
    try:
        done = ansible("-i", inventory(tmp_path, node.variables(), **(act(node) or {})), "server0", "-m", "ping", "-o")
    finally:
        node.known_hosts.write_text(known)
    assert done.returncode == 4
    assert "UNREACHABLE" in done.stdout
    assert what in done.stdout
    assert cure in done.stdout


def test_one_call_per_module_and_one_login_for_all_servers(node: Node, tmp_path: Path) -> None:
    log = node.directory / "sshd.log"
    hosts = inventory(tmp_path, node.variables(), hosts=3)
    ansible("-i", hosts, "server0", "-m", "ping")
    logins = log.read_text().count("Accepted publickey")
    node.calls()
    done = ansible("-i", hosts, "all", "-m", "command", "-a", "printf %s 'a && b'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("a && b") == 3
    assert len(node.calls()) == 3
    assert log.read_text().count("Accepted publickey") == logins


TOUR = r"""
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.wait_for_connection: {timeout: 10}
    - ansible.builtin.raw: echo 'one && two' | tr a-z A-Z; echo "$HOME"
      register: raw
    - ansible.builtin.copy: {content: "x $y 'z'\n", dest: "{{ here }}/a file", mode: "0640"}
    - ansible.builtin.copy: {content: "", dest: "{{ here }}/empty", mode: "0640"}
    - ansible.builtin.meta: reset_connection
    - ansible.builtin.fetch: {src: "{{ here }}/a file", dest: "{{ here }}/back", flat: true}
    - ansible.builtin.script: "{{ here }}/script.sh 'a b'"
      register: script
    - ansible.builtin.command: sleep 0
      async: 20
      poll: 1
    - ansible.builtin.command: "false"
      environment: {WORD: "it's"}
      failed_when: false
      register: failed
    - ansible.builtin.shell: echo "$WORD" "$TMPDIR"
      environment: {WORD: "it's"}
      register: shell
    - ansible.builtin.assert:
        that:
          - raw.stdout_lines == ['ONE && TWO', '/root']
          - script.stdout_lines == ['script got a b']
          - failed.rc == 1
          - shell.stdout == "it's /run/ansible"
"""


@as_root
@pytest.mark.parametrize("pipelining", [True, False])
def test_a_tour_of_what_ansible_does_over_a_connection(node: Node, tmp_path: Path, pipelining: bool) -> None:
    (tmp_path / "tour.yml").write_text(TOUR)
    (tmp_path / "script.sh").write_text('#!/bin/sh\necho "script got $1"\n')
    hosts = inventory(
        tmp_path, node.variables(), here=str(tmp_path), ansible_pipelining=pipelining, ansible_async_dir="/run/ansible"
    )
    done = ansible("-i", hosts, f"{tmp_path}/tour.yml", program="ansible-playbook")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "back").read_text() == "x $y 'z'\n"
    assert (tmp_path / "a file").stat().st_mode & 0o777 == 0o640


@as_root
@pytest.mark.parametrize(
    "module", [("command", "id -un"), ("copy", "content=x dest=/run/ansible/become-copy mode=0600")]
)
def test_become_acts_inside(node: Node, tmp_path: Path, module: tuple[str, str]) -> None:
    become = {"ansible_become": True, "ansible_become_method": "su", "ansible_become_user": "daemon"}
    hosts = inventory(
        tmp_path, node.variables(), **become, ansible_become_flags="-s /bin/sh", ansible_system_tmpdirs=["/run/ansible"]
    )
    try:
        done = ansible("-i", hosts, "server0", "-m", module[0], "-a", module[1])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "daemon" in done.stdout
    finally:
        Path("/run/ansible/become-copy").unlink(missing_ok=True)


def test_the_documentation_lists_own_options_and_those_of_ssh() -> None:
    done = ansible("-t", "connection", "-j", "pct", program="ansible-doc")
    assert done.returncode == 0, done.stderr
    options = yaml.safe_load(done.stdout)["pct"]["doc"]["options"]
    assert options["vmid"]["required"]
    assert {"pct_executable", "pct_sudo", "host_key_checking", "private_key_file", "pipelining"} <= set(options)
