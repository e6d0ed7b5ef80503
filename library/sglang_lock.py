#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a container."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_lock
short_description: Take, renew or give back the lock of a container
description:
  - One run at a time may change a container. Each step renews the lock of its run, so a run that died does not hold the
    next one up for longer than O(ttl); the lock of a process of the same controller that is gone is taken over at once.
  - Who held a lock that is taken over is reported.
  - State that a newer version of this project wrote is refused here, before anything is touched.
  - The action plugin of this name fills in O(owner) and looks whether a holder on the same controller still lives.
options:
  state:
    description: Whether this run is to hold the lock.
    type: str
    choices: [present, absent]
    default: present
  owner:
    description: The run, filled in by the action plugin.
    type: dict
  over:
    description: An owner that is known to be dead, filled in by the action plugin.
    type: dict
  step:
    description: What this run does next, filled in by the action plugin; whoever is held up is told.
    type: str
    default: ""
  ttl:
    description: Seconds until the lock runs out unless it is renewed.
    type: int
    default: 900
  path:
    description: The lock.
    type: path
    default: /run/sglang-pve/lock.json
attributes:
  check_mode: {support: full, description: It takes nothing, and says who holds the lock.}
  diff_mode: {support: none, description: A lock is no configuration.}
  action: {support: full, description: It runs on the controller and in the container.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Hold the container's lock
  sglang_lock:
    ttl: 3600
"""

RETURN = r"""
taken_over:
  description: The lock of another run that had ended or run out.
  returned: when there was one
  type: dict
holder:
  description: The lock that is in the way.
  returned: failure
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import lock, schema


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "owner": {"type": "dict"},
            "over": {"type": "dict"},
            "step": {"type": "str", "default": ""},
            "ttl": {"type": "int", "default": 900},
            "path": {"type": "path", "default": "/run/sglang-pve/lock.json"},
        },
        supports_check_mode=True,
    )
    wanted, path = module.params, Path(module.params["path"])
    refusal = schema.refusal(schema.newer()) if wanted["state"] == "present" else ""
    if refusal:
        module.fail_json(msg=refusal)
    if module.check_mode:
        module.exit_json(changed=False, holder=lock.read(path))
    if wanted["state"] == "absent":
        lock.release(path, wanted["owner"])
        module.exit_json(changed=False)
    try:
        before = lock.take(path, wanted["owner"], wanted["ttl"], wanted["step"], wanted["over"])
    except lock.LockHeldError as error:
        module.fail_json(
            msg=f"{error}. Wait for it, or end that run; if it is gone already, remove {path} in the container.",
            holder=error.holder,
        )
    # A lock is no change of the container, so a run with nothing to do stays at changed=0.
    module.exit_json(changed=False, **({"taken_over": before} if before else {}))


if __name__ == "__main__":
    main()
