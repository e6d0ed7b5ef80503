"""32 servers in four containers behind one sshd with its default limits, and two real containers on one node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab_fixture import Lab, own_lab, present
from tests.transport_node import Node, ansible

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.raw: echo {{ inventory_hostname }}; sleep 1
      register: echo
    - ansible.builtin.command: hostname
      register: name
    - ansible.builtin.copy: {content: "", dest: "{{ here }}/{{ inventory_hostname }}", mode: "0600"}
    - ansible.builtin.assert:
        that: ["echo.stdout_lines == [inventory_hostname]", hostname is undefined or name.stdout == hostname]
"""


def play(
    directory: Path, node: Node, containers: dict[int, dict[str, Any]], servers: int, forks: int, here: str
) -> str:
    """Runs PLAY for so many servers in each container; returns what sshd logged meanwhile."""
    hosts = {
        f"ct{vmid}-gpu{n}": {"ansible_pct_vmid": vmid, **more}
        for vmid, more in containers.items()
        for n in range(servers)
    }
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": node.variables()}}))
    (directory / "play.yml").write_text(PLAY)
    log = directory / "sshd.log"
    before = log.stat().st_size
    arguments = ["-i", f"{directory}/hosts.yml", f"{directory}/play.yml", "-f", str(forks), "-e", f"here={here}"]
    done = ansible(*arguments, program="ansible-playbook")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"unreachable=0 +failed=0", done.stdout)) == len(hosts)
    return log.read_bytes()[before:].decode()


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.start()
    yield node
    node.close_master()
    node.stop()


@pytest.mark.parametrize("forks", [10, 32])
def test_32_servers_in_four_containers(many: Node, tmp_path: Path, forks: int) -> None:
    (tmp_path / "there").mkdir()
    said = play(tmp_path, many, {200: {}, 201: {}, 202: {}, 203: {}}, 8, forks, f"{tmp_path}/there")
    assert len(list((tmp_path / "there").iterdir())) == 32
    # One login per container. The two others are what sshd says at its limits MaxSessions and MaxStartups.
    assert said.count("Accepted publickey") == 4
    assert "no more sessions" not in said
    assert "MaxStartups" not in said


@pytest.mark.container
def test_two_real_containers_on_one_node(lab: Lab, tmp_path: Path) -> None:
    with own_lab(lab.vmid + 1) as other:
        present(other)
        tools = tmp_path / "tools"
        tools.mkdir()
        cases = "".join(f'{one.vmid}) exec {one.dir}/node/bin/pct "$@" ;;\n' for one in (lab, other))
        (tools / "pct").write_text(f"#!/bin/sh\ncase $2 in\n{cases}esac\n")
        (tools / "pct").chmod(0o755)
        node = Node(tmp_path, tools)
        node.start()
        try:
            containers = {one.vmid: {"hostname": f"ct{one.vmid}"} for one in (lab, other)}
            said = play(tmp_path, node, containers, 8, 16, "/run")
            for one in (lab, other):
                files = {path.name for path in (one.rootfs / "run").glob("ct*")}
                listed = one.pct("exec", str(one.vmid), "--", "sh", "-c", "cd /run; ls -d ct*; rm ct*").stdout.split()
                assert files == set() and listed == [f"ct{one.vmid}-gpu{n}" for n in range(8)]
            assert said.count("Accepted publickey") == 2
        finally:
            node.close_master()
            node.stop()
