#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pass NVIDIA's device nodes to a Proxmox VE container."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_passthrough
short_description: Write the entries that pass a node's GPUs to a container
description:
  - Runs as root on the Proxmox VE node. Edits C(/etc/pve/lxc/VMID.conf) under Proxmox VE's own lock, after a copy of
    it was kept. Entries of other devices, comments and snapshots stay as they are.
  - Entries of the other style for the same devices are replaced. Says whether the container must be restarted, and
    restarts it only when asked.
options:
  vmid:
    description: Number of the container.
    type: int
    required: true
  style:
    description:
      - V(devN) are Proxmox VE's own entries (8.2 and later), which follow device numbers that change.
      - V(raw) are lines for LXC, for older versions; after a change of the kernel they must be written again.
    type: str
    choices: [devN, raw]
    default: devN
  cards:
    description: Numbers N of the C(/dev/nvidiaN) to pass; all that the node has where empty.
    type: list
    elements: int
    default: []
  mode:
    description: Permissions inside, of devN entries.
    type: str
    default: "0666"
  restart:
    description: Restart the container where that is needed. It ends everything that runs in it.
    type: bool
    default: false
  backup_dir:
    description: Where the file as it was is kept.
    type: path
    default: /var/backups/sglang-pve
  root:
    description: Directory that stands for the node's root directory.
    type: path
    default: /
attributes:
  check_mode: {support: full, description: Nothing is written and nothing restarted.}
  diff_mode: {support: full, description: The lines of the file.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Pass all cards
  pve_passthrough:
    vmid: 200
  delegate_to: pve1
"""

RETURN = r"""
devices:
  description: Paths that are passed.
  returned: always
  type: list
backup_file:
  description: The file as it was; empty where nothing was written.
  returned: always
  type: str
restart_needed:
  description: Whether the container must be restarted to have the devices.
  returned: always
  type: bool
restarted:
  description: Whether it was.
  returned: always
  type: bool
"""

import fcntl
import os
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import command, driver, passthrough, pve_node

LOCK_WAIT_S = 10
RESTART_TIMEOUT_S = 900


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "vmid": {"type": "int", "required": True},
            "style": {"type": "str", "choices": list(passthrough.STYLES), "default": "devN"},
            "cards": {"type": "list", "elements": "int", "default": []},
            "mode": {"type": "str", "default": "0666"},
            "restart": {"type": "bool", "default": False},
            "backup_dir": {"type": "path", "default": "/var/backups/sglang-pve"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    p = module.params
    root = Path(p["root"])
    path = root / f"etc/pve/lxc/{p['vmid']}.conf"
    try:
        devices = passthrough.choose(driver.device_nodes(root), p["cards"])
        before, after, backup = _write(module, root, path, devices)
    except FileNotFoundError:
        module.fail_json(
            msg=f"there is no {path}; expected container {p['vmid']} on this node. Correct sglang_node or sglang_vmid."
        )
    except (passthrough.PassthroughError, OSError) as error:
        module.fail_json(msg=f"{path} stays as it was: {error}")
    changed = before != after
    reader = pve_node.Reader(root)
    needed = _restart_needed(module, reader, devices, changed)
    restart = needed and p["restart"]
    if restart and not module.check_mode:
        _restart(module)
    module.exit_json(
        changed=changed or restart,
        devices=[device["path"] for device in devices],
        backup_file=backup,
        restart_needed=needed and not restart,
        restarted=restart,
        diff={"before": before, "after": after, "before_header": str(path), "after_header": str(path)},
    )


def _write(module, root, path, devices):
    """Edit the file under Proxmox VE's lock (PVE::AbstractConfig, lock_config): what it was, what it is, the copy."""
    p = module.params
    if module.check_mode:
        before = _read(path)
        return before, passthrough.edit(before, devices, p["style"], p["mode"]), ""
    lock = root / f"run/lock/lxc/pve-config-{p['vmid']}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as held:
        _hold(held, lock)
        before = _read(path)
        after = passthrough.edit(before, devices, p["style"], p["mode"])
        if after == before:
            return before, after, ""
        backup = _keep(Path(p["backup_dir"]), path)
        # Whole or not at all, and as Proxmox VE does it, since its file system knows neither owners nor modes.
        part = path.with_name(f"{path.name}.tmp.{os.getpid()}")
        try:
            part.write_bytes(after.encode("utf-8", "surrogateescape"))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return before, after, str(backup)


def _read(path):
    # Not read_text, which would turn CRLF into LF.
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _hold(held, lock):
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise passthrough.PassthroughError(
                    f"Proxmox VE holds {lock} for longer than {LOCK_WAIT_S} s; run again when its task has ended"
                ) from None
            time.sleep(0.2)


def _keep(directory, path):
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = directory / f"{path.name}.{time.strftime('%Y%m%dT%H%M%S')}.{os.getpid()}"
    copy.write_bytes(path.read_bytes())
    return copy


def _restart_needed(module, reader, devices, changed):
    """A container that does not run needs none. One that does is asked what it has, since it may be behind its file."""
    vmid = module.params["vmid"]
    state = reader.api(f"/nodes/localhost/lxc/{vmid}/status/current") or {}
    if state.get("status") != "running":
        return False
    if changed or not state.get("pid"):
        return changed
    inside = driver.device_nodes(Path(f"/proc/{state['pid']}/root"))
    mode = module.params["mode"] if module.params["style"] == "devN" else None
    return bool(passthrough.lacking(devices, inside, mode))


def _restart(module):
    vmid = str(module.params["vmid"])
    try:
        done = command.run(["pct", "reboot", vmid], RESTART_TIMEOUT_S)
    except (command.MissingCommandError, command.HungCommandError) as error:
        module.fail_json(msg=f"the file is written, but the container was not restarted: {error}")
    if done.rc != 0:
        module.fail_json(msg=f"the file is written, but pct reboot {vmid} ended with {done.rc}: {done.err.strip()}")


if __name__ == "__main__":
    main()
