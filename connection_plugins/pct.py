# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# A subclass of Ansible's own ssh plugin, and therefore under its licence.
"""Connection plugin: commands and files for an LXC container, through SSH to its Proxmox VE node and ``pct exec``."""

from __future__ import annotations

DOCUMENTATION = """
name: pct
short_description: Run tasks in a Proxmox VE container through SSH to its node
description:
  - Connects to the Proxmox VE node with the C(ssh) client and runs every command by C(pct exec) in the container.
    The container needs no SSH server and no address.
  - One remote command per task with pipelining; ControlPersist is shared by all servers of a container.
  - All options of P(ansible.builtin.ssh#connection) are here and concern the login on the node.
  - Exit status and stderr are those of the command. When ssh or C(pct) fail themselves, the host is unreachable
    and the message says why.
author: sglang-pve
extends_documentation_fragment:
  - pct_ssh
  - connection_pipelining
options:
  vmid:
    description: VMID of the container.
    type: string
    required: true
    vars:
      - name: ansible_pct_vmid
  pct_executable:
    description: C(pct) on the node, a name or a path.
    type: string
    default: pct
    vars:
      - name: ansible_pct_executable
  pct_sudo:
    description:
      - Run C(pct) on the node through C(sudo -n), for an account other than root.
      - This is on the node; O(ignore:become) acts inside the container.
    type: boolean
    default: false
    vars:
      - name: ansible_pct_sudo
  start_timeout:
    description: Seconds after which a container in which nothing begins, such as a frozen one, is unreachable.
    type: integer
    default: 60
    vars:
      - name: ansible_pct_start_timeout
notes:
  - There is never a terminal, whatever O(use_tty) and O(ssh_args) say.
  - Files go through C(pct exec) too, so O(ssh_transfer_method) and the options of sftp and scp have no effect.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.plugins.connection.ssh import Connection as SshConnection
from ansible.utils.display import Display
from ansible.utils.path import unfrackpath

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import login, pct

display = Display()

# ssh reads and writes the files itself, so their size does not matter to this process.
REDIRECT = 'from=$1 to=$2; shift 2; exec "$@" <"$from" >"$to"'

FULL = 1 << 20  # bytes; a file system with less free space than this is taken for full


class NoInput(bytes):
    """No input, but an end of it: for b"" ssh's plugin leaves the command waiting at a terminal."""

    def __bool__(self):
        return True


class FinalFailureError(AnsibleAuthenticationFailure):
    """A connection failure that another attempt cannot mend: the one kind that ssh's retries let pass."""

    _default_message = ""


class Connection(SshConnection):
    """ssh to the node, ``pct exec`` into the container."""

    transport = "pct"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._mark = ""
        self._files = None
        self._master = self._queue = None
        self._turn = contextlib.ExitStack()
        self._heard = None

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """Runs ``cmd`` in the container; returns its exit status, stdout and stderr."""
        self._mark = secrets.token_hex(16)
        try:
            how = [self.get_option(name) for name in ("pct_executable", "pct_sudo", "start_timeout")]
            line = pct.command_line(self.get_option("vmid"), cmd, self._mark, *how)
        except ValueError as error:
            raise AnsibleError(str(error)) from error
        _, stdout, stderr = super().exec_command(line, in_data=in_data or NoInput(), sudoable=sudoable)
        marked = pct.read_marks(stderr, self._mark)
        return marked.status, stdout, marked.stderr

    def put_file(self, in_path, out_path):
        """Copies a file into the container; the target is the whole new file or what it was before."""
        display.vvv(f"PUT {in_path} TO {out_path}", host=self.get_option("host"))
        try:
            sha256 = _sha256(in_path)
        except FileNotFoundError as error:
            raise AnsibleFileNotFound(f"there is no file {in_path} to copy") from error
        command = pct.put_command(out_path, sha256, secrets.token_hex(8))
        status, said = self._transfer(command, in_path, os.devnull)
        if status != 0:
            raise AnsibleError(
                f"could not write {out_path} in container {self.get_option('vmid')}: {said or f'status {status}'}."
                " Nothing was left behind; make room or correct the path, then run again."
            )

    def fetch_file(self, in_path, out_path):
        """Copies a file out of the container; ``out_path`` is the whole new file or what it was before."""
        display.vvv(f"FETCH {in_path} TO {out_path}", host=self.get_option("host"))
        vmid = self.get_option("vmid")
        target = Path(out_path)
        handle, name = tempfile.mkstemp(prefix=".part-", dir=target.parent)
        os.close(handle)
        part = Path(name)
        try:
            status, said = self._transfer(pct.fetch_command(in_path), os.devnull, name)
            if status == pct.FETCH_NO_FILE:
                raise AnsibleFileNotFound(f"there is no file {in_path} in container {vmid}")
            sent = re.search(r"^([0-9a-f]{64})\s", said, re.MULTILINE)
            if status != 0 or not sent:
                raise AnsibleError(
                    f"could not fetch {in_path} from container {vmid}: {said or f'status {status}'}."
                    f" Check the file there and the free space in {target.parent} here."
                )
            if sent.group(1) != _sha256(part):
                raise AnsibleError(
                    f"{in_path} from container {vmid} is not what arrived here (SHA-256 differs): it changed meanwhile,"
                    f" {target.parent} is full, or the login shell of the node prints text. Nothing was left behind."
                )
            part.replace(target)
        except AnsibleConnectionFailure:
            # ssh that cannot write gives up without a word, which looks like a dropped connection.
            if shutil.disk_usage(target.parent).free < FULL:
                raise AnsibleError(f"could not fetch {in_path}: no space left in {target.parent} here") from None
            raise
        finally:
            part.unlink(missing_ok=True)

    def _transfer(self, command, source, target):
        """Runs ``command`` with stdin from and stdout to local files; returns its status and what it said."""
        self._files = [source, target]
        try:
            status, _, stderr = self.exec_command(command, sudoable=False)
        finally:
            self._files = None
        return status, stderr.decode("utf-8", "replace").strip()

    def _build_command(self, binary, subsystem, *other_args):
        # lxc-attach that sees a terminal puts a proxy terminal between: slow, and stdout and stderr become one.
        # The last of -t and -T wins, also over RequestTTY.
        return super()._build_command(binary, subsystem, "-T", *other_args)

    def _is_tty_requested(self):
        return False

    def _create_control_path(self, host, port, user):
        # A master per container and not per node, since sshd allows ten sessions in one connection (MaxSessions).
        path = super()._create_control_path(host, port, user, self.get_option("vmid"))
        self._master = Path(path % {"directory": unfrackpath(self.control_path_dir)})
        self._queue = self._master.with_name(Path(super()._create_control_path(host, port, user)).name + ".lock")
        return path

    def _bare_run(self, cmd, in_data, sudoable=True, checkrc=True):
        """One attempt of the ssh client. Judged here, inside ssh's own retries, since only here it is known whether
        the command began: what began is never run twice."""
        if self._files:
            cmd = ["/bin/sh", "-c", REDIRECT, "redirect", *self._files, *cmd]
        # Where become has a prompt or a success message, ssh's plugin has read the start mark before it sends input.
        self._heard = None if sudoable and self.become and (self.become.prompt or self.become.success) else b""
        if self._master:
            self._turn = login.wait_for_turn(self._queue, self._master, self.get_option("timeout"))
        with self._turn:
            status, stdout, stderr = super()._bare_run(cmd, in_data, sudoable=sudoable, checkrc=False)
        stderr = (self._heard or b"") + stderr
        failure = self._find_failure(status, stderr)
        if failure and failure.id == "container-missing":
            failure = self._find_failure(status, self._find_container() + stderr)
        if failure:
            raise (AnsibleConnectionFailure if failure.retry else FinalFailureError)(failure.message)
        return status, stdout, stderr

    def _find_failure(self, status, stderr):
        return pct.find_failure(status, pct.read_marks(stderr, self._mark), self.get_option("vmid"), self.host)

    def _find_container(self):
        """What the node's cluster says about where the container is now."""
        find = pct.find_command(self.get_option("vmid"))
        command = self._build_command(self.get_option("ssh_executable"), "ssh", self.host, find)
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout

    def _send_initial_data(self, fh, in_data, ssh_process):
        if self._heard is not None:
            # The container refuses to begin after start_timeout, counted from the login. So this must wait longer.
            seconds = self.get_option("timeout") + self.get_option("start_timeout")
            self._heard = login.wait_for_start(ssh_process, pct.start_mark(self._mark), seconds, pct.TOO_LATE.encode())
        self._turn.close()
        # A command may end without reading its input, and a container may be stopped. What ssh, pct and the command
        # say about it comes later and is better than "could not be sent".
        with contextlib.suppress(OSError):
            fh.write(in_data)
        with contextlib.suppress(OSError):
            fh.close()


def _sha256(path):
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
