#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the state of a container."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_state
short_description: Read everything about the servers of a container in one call
description:
  - Reads host facts, GPUs, stacks, releases, every server (unit, process, release, parameters, health, pools) and the
    history. Changes nothing and needs no lock.
options:
  root:
    description: Where stacks, releases and servers are.
    type: path
    default: /opt/sglang
  history:
    description: The history.
    type: path
    default: /var/lib/sglang/history.jsonl
  paths:
    description: Paths whose free space is wanted.
    type: list
    elements: path
    default: [/opt/sglang, /var/lib/sglang, /var/cache/sglang, /dev/shm, /tmp]
attributes:
  check_mode: {support: full, description: It only reads.}
  diff_mode: {support: none, description: It only reads.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: What is there
  fleet_state:
  register: _fleet
"""

RETURN = r"""
state:
  description: >-
    C(host), C(gpus), C(stacks), C(releases), C(servers) by name (C(gpu0)), C(lock) with a sentence about who holds it,
    and C(history) with the line of verified states, all verified releases, the last entries, how many lines could not
    be read, and notes on it.
  returned: always
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import fleet


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/sglang"},
            "history": {"type": "path", "default": "/var/lib/sglang/history.jsonl"},
            "paths": {
                "type": "list",
                "elements": "path",
                "default": ["/opt/sglang", "/var/lib/sglang", "/var/cache/sglang", "/dev/shm", "/tmp"],
            },
        },
        supports_check_mode=True,
    )
    root, history = Path(module.params["root"]), Path(module.params["history"])
    try:
        state = fleet.read(root, Path("/etc/systemd/system"), history, module.params["paths"])
    except (OSError, RuntimeError) as error:
        module.fail_json(msg=f"the state of the container cannot be read: {error}")
    module.exit_json(changed=False, state=state)


if __name__ == "__main__":
    main()
