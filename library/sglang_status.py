#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_status.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_status
short_description: Print the servers of every container as one table
description:
  - Prints a table, plain when piped and with colours in a terminal, and a verdict.
options:
  leaders:
    description: >-
      Inventory names of the leaders of the containers. Each has registered what M(fleet_state) said in C(_status), also
      when that failed.
    type: list
    elements: str
    required: true
  json:
    description: A file to write the same to as JSON; - prints JSON in place of the table.
    type: str
attributes:
  check_mode: {support: full, description: It only reads and judges.}
  diff_mode: {support: none, description: It changes nothing.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Print it
  sglang_status:
    leaders: "{{ groups['sglang_leaders'] }}"
"""

RETURN = r"""
verdict:
  description: ready, degraded or down.
  returned: success
  type: str
said:
  description: Why, one sentence each.
  returned: success
  type: list
  elements: str
servers:
  description: One row a selected server.
  returned: success
  type: list
  elements: dict
containers:
  description: >-
    Of each container C(node), C(vmid), C(unreachable) (why it could not be read, or empty), C(lock) (who holds it),
    C(notes) on its history, and its last C(history) entries.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_status")
