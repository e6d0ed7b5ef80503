#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_preflight.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_preflight
short_description: Judge a container before anything is touched
description:
  - Prints every finding, worst first, and fails when one is an error.
options:
  state:
    description: State of the container, as M(fleet_state) returned it.
    type: dict
  servers:
    description: The selected servers, as M(sglang_inputs) returned them.
    type: list
    elements: dict
  needs:
    description: What stack, checkpoints and servers need.
    type: dict
  adopting:
    description: A server of somebody else that can be taken over is no error.
    type: bool
    default: false
  findings:
    description: Findings made elsewhere, such as by plans.
    type: list
    elements: dict
attributes:
  check_mode: {support: full, description: It only reads and judges.}
  diff_mode: {support: none, description: It changes nothing.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Judge it
  sglang_preflight:
    state: "{{ _preflight_state.state }}"
    servers: "{{ servers }}"
    needs: "{{ needs }}"
"""

RETURN = r"""
findings:
  description: All findings, worst first.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.fail_json(msg="sglang_preflight needs its action plugin: run from the project's root, with its ansible.cfg")


if __name__ == "__main__":
    main()
