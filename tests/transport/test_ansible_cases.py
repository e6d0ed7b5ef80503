"""What Ansible expects of every connection plugin, over a real container, with pipelining and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab_fixture import Lab
from tests.transport_node import ansible, connect, inventory

pytestmark = pytest.mark.container


# The cases of Ansible's own integration test of connection plugins: text outside ASCII in a raw command and its output,
# in the name and content of a file on its way there and back, and waiting for the connection.
CASES = r"""
- hosts: all
  gather_facts: false
  vars:
    here: "{{ local }}/ひらがな"
    there: "{{ remote }}/ひらがな"
  tasks:
    - ansible.builtin.wait_for_connection: {timeout: 10}
    - ansible.builtin.raw: echo 'žluť ☃ 日本'
      register: echo
    - ansible.builtin.assert:
        that: [echo is changed, "echo.stdout_lines == ['žluť ☃ 日本']", "echo.stderr == ''"]

    - ansible.builtin.file: {path: "{{ there }}", state: directory, mode: "0755"}
    - ansible.builtin.copy: {src: "{{ here }}/ž ☃.txt", dest: "{{ there }}/ž ☃.txt", mode: "0640"}
    - ansible.builtin.copy: {src: "{{ here }}/ž ☃.txt", dest: "{{ there }}/ž ☃.txt", mode: "0640"}
      register: again
    - ansible.builtin.fetch: {src: "{{ there }}/ž ☃.txt", dest: "{{ here }}/back ☃.txt", flat: true}
    - ansible.builtin.stat: {path: "{{ there }}/ž ☃.txt"}
      register: copied
    - ansible.builtin.file: {path: "{{ there }}", state: absent}
    - ansible.builtin.stat: {path: "{{ there }}"}
      register: removed
    - ansible.builtin.assert:
        that: [again is not changed, copied.stat.mode == '0640', not removed.stat.exists]
"""

TOUR = r"""
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.setup: {gather_subset: min}
      register: facts
    - ansible.builtin.raw: echo 'one && two' | tr a-z A-Z; echo "$HOME"
      register: raw
    - ansible.builtin.copy: {content: "x $y 'z'\n", dest: "{{ remote }}/a file", mode: "0640"}
    - ansible.builtin.copy: {content: "", dest: "{{ remote }}/empty", mode: "0640"}
    - ansible.builtin.meta: reset_connection
    - ansible.builtin.fetch: {src: "{{ remote }}/a file", dest: "{{ local }}/back", flat: true}
    - ansible.builtin.fetch: {src: "{{ remote }}/empty", dest: "{{ local }}/back-empty", flat: true}
    - ansible.builtin.script: "{{ local }}/script.sh 'a b'"
      register: script
    - ansible.builtin.command: sleep 0
      async: 20
      poll: 1
    - ansible.builtin.command: "false"
      failed_when: false
      register: failed
    - ansible.builtin.shell: echo "$WORD" "$TMPDIR"
      environment: {WORD: "it's"}
      register: shell
    - ansible.builtin.command: id -un
      become: true
      become_method: ansible.builtin.su
      become_user: daemon
      register: become
    - ansible.builtin.copy: {content: "x", dest: "{{ remote }}/of daemon", mode: "0600"}
      become: true
      become_method: ansible.builtin.su
      become_user: daemon
    - ansible.builtin.stat: {path: "{{ remote }}/of daemon"}
      register: owned
    - ansible.builtin.assert:
        that:
          - facts.ansible_facts.ansible_hostname == hostname
          - raw.stdout_lines == ['ONE && TWO', '/root']
          - script.stdout_lines == ['script got a b']
          - failed.rc == 1
          - shell.stdout == "it's /run/ansible"
          - become.stdout == 'daemon'
          - owned.stat.pw_name == 'daemon'
"""


# All places where anything is written, on one disk that has no byte left. Only /run is free, as on a real full disk.
PLACES = "/etc /home /opt /root /srv /tmp /usr/local /var"
FILL = f"""set -e
mkdir /run/disk && mount -t tmpfs -o size=200m disk /run/disk
for place in {PLACES}; do
  mkdir -p /run/disk$place && cp -a $place/. /run/disk$place && mount --bind /run/disk$place $place
done
! cat /dev/zero 2>/dev/null >/run/disk/fill"""


@pytest.fixture
def remote(connection: Any) -> str:
    directory = "/run/transport test"
    connection.exec_command(f"rm -rf '{directory}'; mkdir -m 1777 '{directory}'")
    return directory


def run(tmp_path: Path, variables: dict[str, Any], play: str, **more: Any) -> None:
    (tmp_path / "play.yml").write_text(play)
    become = {"ansible_become_flags": "-s /bin/sh", "ansible_system_tmpdirs": ["/run/ansible"]}
    hosts = inventory(tmp_path, variables, local=str(tmp_path), ansible_async_dir="/run/ansible", **become, **more)
    done = ansible("-i", hosts, f"{tmp_path}/play.yml", program="ansible-playbook")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("pipelining", [True, False])
def test_the_cases_of_ansible(tmp_path: Path, variables: dict[str, Any], remote: str, pipelining: bool) -> None:
    here = tmp_path / "ひらがな"
    here.mkdir()
    (here / "ž ☃.txt").write_text("žluť ☃ 日本\n")
    run(tmp_path, variables, CASES, remote=remote, ansible_pipelining=pipelining)
    assert (here / "back ☃.txt").read_text() == "žluť ☃ 日本\n"


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("disk", ["free", "full"])
def test_a_tour_of_what_ansible_does(
    lab: Lab, tmp_path: Path, variables: dict[str, Any], remote: str, disk: str, pipelining: bool
) -> None:
    (tmp_path / "script.sh").write_text('#!/bin/sh\necho "script got $1"\n')
    connection = connect(variables)
    if disk == "full":
        assert connection.exec_command(FILL) == (0, b"", b"")
    try:
        writable = connection.exec_command(f"for d in {PLACES}; do echo x >$d/.x && rm $d/.x && echo yes; done")[1]
        assert writable == (b"" if disk == "full" else b"yes\n" * len(PLACES.split()))
        run(
            tmp_path,
            variables,
            TOUR,
            remote=remote,
            hostname=f"ct{lab.vmid}",
            ansible_pipelining=pipelining,
            ansible_become_password="not asked for",
        )
        assert (tmp_path / "back").read_text() == "x $y 'z'\n"
        assert (tmp_path / "back-empty").read_text() == ""
    finally:
        if disk == "full":
            connection.exec_command(f"umount -l {PLACES} /run/disk; rmdir /run/disk")
