#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_plan_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_plan_report
short_description: Print ladders of plans
description:
  - A table for each card type with the plans of its ladder, how they differ, and the reasons of the first. Servers
    whose ladders are the same are shown together. Fails where one has no plan. Runs on the controller.
options:
  plans:
    description: What M(sglang_plan) returned for each server, as C(server) and C(ladder).
    type: list
    elements: dict
    required: true
  json:
    description: Also write it as JSON to this file; C(-) prints JSON in place of the tables.
    type: str
    default: ''
attributes:
  check_mode: {support: full, description: It only prints.}
  diff_mode: {support: none, description: It only prints.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Print them
  sglang_plan_report:
    plans: [{server: ct200-gpu0, ladder: "{{ planned.ladder }}"}]
"""

RETURN = r"""
ladders:
  description: Each ladder with its C(card) and C(servers).
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_plan_report")
