#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_takeovers.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_takeovers
short_description: Show which servers of others would be taken over
description:
  - Prints for each of them its process, user, port and flags, and what takes its place.
options:
  state:
    description: State of the container, as M(fleet_state) returned it.
    type: dict
    required: true
  servers:
    description: The selected servers, as M(sglang_inputs) returned them.
    type: list
    elements: dict
    required: true
  rollouts:
    description: What each of the servers is to run, in their order.
    type: list
    elements: dict
    required: true
  confirmed:
    description: Whether this run takes them over.
    type: bool
    required: true
attributes:
  check_mode: {support: full, description: It only reads and prints.}
  diff_mode: {support: none, description: It changes nothing.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Show what would be taken over
  sglang_takeovers:
    state: "{{ _preflight_state.state }}"
    servers: "{{ servers }}"
    rollouts: "{{ rollouts }}"
    confirmed: false
"""

RETURN = r"""
names:
  description: Our servers (C(gpu3)) that take the place of another, in the inventory's order.
  returned: always
  type: list
  elements: str
shown:
  description: Server to C(pid) and C(started) of the process that it replaces; empty to go on with an earlier run.
  returned: always
  type: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_takeovers")
