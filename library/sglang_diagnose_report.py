#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_diagnose_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_diagnose_report
short_description: Say what is wrong with servers, and pack what somebody else needs to look at it
description:
  - Prints for each server that is not well its diagnosis (signatures/), with evidence and cure. Runs on the controller.
options:
  containers:
    description: >-
      What M(sglang_diagnose) and M(fleet_state) returned, as C(name), C(read), C(state) and C(hosts) (gpu0 to host).
    type: list
    elements: dict
    required: true
  json:
    description: Also write it as JSON to this file; C(-) prints JSON in place of the report.
    type: str
    default: ''
  bundle:
    description: >-
      Also write a .tgz to this file with journals, releases, units, state and diagnoses, without keys and prompts.
    type: path
attributes:
  check_mode: {support: full, description: It only prints.}
  diff_mode: {support: none, description: It only prints.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Print it
  sglang_diagnose_report:
    containers: "{{ containers }}"
"""

RETURN = r"""
servers:
  description: By host, C(well), and C(diagnosis) or null.
  returned: always
  type: dict
verdict:
  description: C(well) or C(ill).
  returned: always
  type: str
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_diagnose_report")
