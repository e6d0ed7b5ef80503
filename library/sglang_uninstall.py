#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove everything that this project put into a container."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_uninstall
short_description: List or remove all that this project put into a container
description:
  - Knows units, account, stacks, releases, servers, staged checkpoints, compiled kernels, state and wheels of ours.
  - Removes exactly these. A foreign file in a directory of ours stays, with its directory, and is named; so does
    whatever is mounted there. A checkpoint is never touched, only its staged copy and, where O(attached) asks for
    it, the directory of links that a head was attached in.
  - Stops servers through their units. Can be run again after an interruption.
options:
  state:
    description: Only list what is there, or remove it.
    type: str
    choices: [listed, absent]
    default: listed
  user:
    description: The service account. It goes only where it is the one that a deployment makes.
    type: str
    default: sglang
  wheelhouse:
    description: The directory that deployments send wheels to; left alone where it is a mount.
    type: path
    default: /opt/sglang/wheelhouse
  models:
    description: Directories that servers use beside those that are staged. Those made by attaching a head are listed.
    type: list
    elements: path
    default: []
  attached:
    description: Also remove directories that a head was attached in. Other containers may serve them.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: Lists what would go.}
  diff_mode: {support: full, description: Lists what goes.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: What is ours here
  sglang_uninstall:
  register: _ours

- name: Remove it
  sglang_uninstall:
    state: absent
"""

RETURN = r"""
listing:
  description: >-
    What is, or was, ours: C(ours) (path, bytes), C(servers), C(staged), C(attached) (path, lost_sources: a source of
    the head that is gone, goes), C(units), C(account); and C(foreign), which stays.
  returned: always
  type: dict
gib:
  description: Size of all that is ours on disk, without staged copies.
  returned: always
  type: float
stay:
  description: What lies in directories of ours and was left there.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import uninstall
from ansible.module_utils.sglang_pve.server import ServerError
from ansible.module_utils.sglang_pve.staging import StagingError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["listed", "absent"], "default": "listed"},
            "user": {"type": "str", "default": "sglang"},
            "wheelhouse": {"type": "path", "default": "/opt/sglang/wheelhouse"},
            "models": {"type": "list", "elements": "path", "default": []},
            "attached": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    places = uninstall.Places(
        user=module.params["user"],
        wheelhouse=Path(module.params["wheelhouse"]),
        models=[Path(path) for path in module.params["models"]],
        attached=module.params["attached"],
    )
    goes = module.params["state"] == "absent"
    try:
        listing = uninstall.look(places)
        stay = [str(path) for path in listing.foreign]
        if goes and not listing.empty and not module.check_mode:
            stay = uninstall.carry_out(places, listing)
    except (ServerError, StagingError, OSError) as error:
        module.fail_json(msg=f"{error}; what was removed until then is gone, and the same command goes on")
    changed = goes and not listing.empty
    lines = "".join(f"{path}\n" for path in sorted(map(str, listing.ours)))
    module.exit_json(
        changed=changed,
        listing=listing.as_dict(),
        gib=round(sum(listing.ours.values()) / 2**30, 2),
        stay=stay,
        diff={"before_header": "ours", "after_header": "ours", "before": lines, "after": ""} if changed else {},
    )


if __name__ == "__main__":
    main()
