#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_tune_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_tune_report
short_description: Print what was measured of a server's plans, and choose the fastest
description:
  - A table of plans with what was measured, the estimate and its error, then why some failed, then the fastest. Of
    plans that were not tried yet only the estimate is shown. Runs on the controller.
options:
  server:
    description: The server.
    type: str
    required: true
  trials:
    description: >-
      Plans as C(plan) (C(batch/2)), C(release), C(hash), C(estimate) in tokens/s, and C(load) as M(sglang_load) gave
      it, or C(failed) with the reason.
    type: list
    elements: dict
    required: true
  json:
    description: Also write it as JSON to this file.
    type: str
    default: ''
attributes:
  check_mode: {support: full, description: It only prints.}
  diff_mode: {support: none, description: It only prints.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Show what was measured
  sglang_tune_report:
    server: ct200-gpu3
    trials: [{plan: batch/1, release: 1f0c2d3e4a5b, hash: 0a1b2c3d4e5f, estimate: 1141, failed: it did not start}]
"""

RETURN = r"""
winner:
  description: The fastest trial that passed; empty when none did.
  returned: always
  type: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_tune_report")
