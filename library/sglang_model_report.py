#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_model_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_model_report
short_description: Print what checkpoints hold and what is wrong with them
description:
  - A readable report of each checkpoint with its findings, worst first. Runs on the controller.
options:
  models:
    description: What M(checkpoint_info) and M(checkpoint_verify) returned, as C(container), C(report), C(reading).
    type: list
    elements: dict
    required: true
  json:
    description: Also write it as JSON to this file; C(-) prints JSON in place of the report.
    type: str
    default: ''
attributes:
  check_mode: {support: full, description: It only prints.}
  diff_mode: {support: none, description: It only prints.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Print it
  sglang_model_report:
    models: [{container: ct200, report: "{{ _seen.checkpoints[sglang_model_path] }}"}]
"""

RETURN = r"""
verdict:
  description: C(good), C(doubtful) (a warning) or C(broken), of the worst checkpoint.
  returned: always
  type: str
models:
  description: Each checkpoint's C(report), C(reading), C(findings) and C(verdict).
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_model_report")
