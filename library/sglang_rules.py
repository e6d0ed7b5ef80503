#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_rules.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_rules
short_description: Judge facts by the rules, and say whether to go on
description:
  - Evaluates C(rules/*.yml) on the facts of containers and their plans, or on a file of facts, which needs no machine.
  - Prints every finding, worst first, what was waived and why, and the verdict. It fails when a finding is an error.
  - A fact that is not known gives C(not checked), never a silent pass.
  - docs/rules.md has every rule, docs/facts.md every fact.
options:
  containers:
    description: >-
      C(leader) (inventory name), C(judged) (what M(sglang_preflight) returned) and C(servers), each with C(host),
      C(plan) (of M(sglang_plan)), C(model) (of M(checkpoint_info)) and C(stack),
      where it is another than the container's. C(waived) are rules that were waived when it was deployed, with reasons.
    type: list
    elements: dict
    default: []
  file:
    description: A facts file, JSON or YAML, one document or several, in place of containers.
    type: path
  waive:
    description: Rules to pass over in the file, each with a reason. Containers bring their own.
    type: dict
    default: {}
  rules_dir:
    description: Directory of rules on the controller.
    type: path
  flags_dir:
    description: Directory of the engines' flag tables on the controller.
    type: path
  json:
    description: A file to write the answer to as JSON; C(-) prints it in place of the table.
    type: str
    default: ""
  brief:
    description: Show only the number of rules that were not checked.
    type: bool
    default: false
  save:
    description: A file to keep the facts in, so that they can be judged again without the machine. Secrets are masked.
    type: path
attributes:
  check_mode: {support: full, description: It only reads and judges.}
  diff_mode: {support: none, description: It changes nothing.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Judge facts that were saved
  sglang_rules:
    file: facts.yml
    waive: {driver-persistence: the cards are always in use}
"""

RETURN = r"""
verdict:
  description: C(go), or C(no) with an error.
  returned: always
  type: str
said:
  description: How many findings of each level.
  returned: always
  type: str
findings:
  description: All findings that remain, worst first.
  returned: always
  type: list
  elements: dict
waived:
  description: Findings that were passed over, each with its reason, by leader.
  returned: always
  type: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_rules")
