#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Append to the history."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_history
short_description: Append to the history of a container
description:
  - Appends what happened to the append-only history; nothing in it is ever changed or removed.
  - With O(passed) it records that a deployment or rollback is verified, unless the history says just that already.
options:
  path:
    description: The history.
    type: path
    default: /var/lib/sglang/history.jsonl
  entries:
    description: Entries to append as they are (C(event), C(server), C(release), ...).
    type: list
    elements: dict
    default: []
  waived:
    description: >-
      Rules that an operator passed over for this deployment, each with C(rule), C(reason) and what it is about. What
      the history says already is not recorded again.
    type: list
    elements: dict
    default: []
  kind:
    description: How the servers of O(passed) came to what they run. A rollback is always recorded.
    type: str
    choices: [deploy, rollback]
    default: deploy
  passed:
    description: Server (C(gpu0)) to release, of every selected server, when all of them passed their gate.
    type: dict
    default: {}
  servers:
    description: All servers of the container, selected or not.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full, description: Says whether something would be appended.}
  diff_mode: {support: none, description: Entries are returned as written.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Keep that the fleet is verified
  sglang_history:
    kind: deploy
    passed: {gpu0: 1f0c2d3e4a5b}
    servers: [gpu0, gpu1]
"""

RETURN = r"""
appended:
  description: The entries, with their time.
  returned: always
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import history


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/var/lib/sglang/history.jsonl"},
            "entries": {"type": "list", "elements": "dict", "default": []},
            "waived": {"type": "list", "elements": "dict", "default": []},
            "kind": {"type": "str", "choices": ["deploy", "rollback"], "default": "deploy"},
            "passed": {"type": "dict", "default": {}},
            "servers": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    arguments = module.params
    path = Path(arguments["path"])
    try:
        known, _broken = history.read(path)
        entries = [*arguments["entries"], *history.new_waivers(known, arguments["waived"])]
        if arguments["passed"]:
            verified = history.verified_entry(known, arguments["kind"], arguments["passed"], arguments["servers"])
            states = history.line(known)
            if arguments["kind"] == "rollback" or not states or states[-1] != verified["servers"]:
                entries.append(verified)
        if entries and not module.check_mode:
            entries = history.append(path, entries)
    except history.HistoryError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"the history {path} cannot be written: {error}")
    module.exit_json(changed=bool(entries), appended=entries)


if __name__ == "__main__":
    main()
