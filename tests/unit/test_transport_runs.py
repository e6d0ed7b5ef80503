"""Whole Ansible runs over the connection, as a user starts them; tests/fake_pct is the node's pct."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.transport_node import SSHD, Node, ansible, fresh_node, inventory, running_node  # noqa: F401

pytestmark = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs sshd")


def test_what_cannot_be_reached_does_not_stop_the_others(node: Node, tmp_path: Path) -> None:
    """Ansible's own words for a failure of the connection, as against one of the task."""
    hosts = {
        "fine": {},
        "no_pct": {"ansible_pct_executable": "no_pct"},
        # Another container, since a master of the same would need no key.
        "refused": {"ansible_pct_vmid": 201, "ansible_ssh_private_key_file": f"{node.directory}/other_key"},
        "down": {"ansible_port": 1},
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": node.variables()}}))
    done = ansible("-i", f"{tmp_path}/hosts.yml", "all", "-m", "command", "-a", "id -u", "-o")
    assert done.returncode == 4
    lines = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    assert lines["fine"].startswith("CHANGED")
    for name, words in (("no_pct", "there is no pct"), ("refused", "refused the login"), ("down", "nothing listens")):
        assert lines[name].startswith("UNREACHABLE!")
        assert words in lines[name]


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


def test_the_documentation_lists_own_options_and_those_of_ssh() -> None:
    done = ansible("-t", "connection", "-j", "pct", program="ansible-doc")
    assert done.returncode == 0, done.stderr
    options = yaml.safe_load(done.stdout)["pct"]["doc"]["options"]
    assert options["vmid"]["required"]
    assert {"pct_executable", "pct_sudo", "host_key_checking", "private_key_file", "pipelining"} <= set(options)
