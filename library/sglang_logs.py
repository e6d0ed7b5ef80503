#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_logs.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_logs
short_description: Print a server's journal
description:
  - Prints the journal of a unit since a time, each line behind a name, and goes on while O(follow) is set.
options:
  unit:
    description: The unit.
    type: str
    required: true
  name:
    description: What to print before each line.
    type: str
    required: true
  since:
    description: A time as C(journalctl --since) takes it, such as C(-10min) or C(2026-12-01 05:00).
    type: str
    required: true
  lines:
    description: At most so many lines, the newest ones; all of them when not given.
    type: int
  follow:
    description: Go on printing until the run is ended.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: It only reads.}
  diff_mode: {support: none, description: It only reads.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: What did GPU 3 say in the last ten minutes
  sglang_logs: {unit: sglang@3.service, name: ct200-gpu3, since: -10min}
"""

RETURN = r"""
lines:
  description: How many lines were printed.
  returned: without O(follow)
  type: int
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_logs")
