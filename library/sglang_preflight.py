#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_preflight.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_preflight
short_description: Judge a container before anything is touched
description:
  - Says what of the inventory does not go with the container, and gathers the facts that M(sglang_rules) judges.
  - It prints nothing and fails for no finding, so that all of them are shown at once by M(sglang_rules).
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
  stack:
    description: The stack, as M(sglang_stack_info) returned it.
    type: dict
    required: true
  needs:
    description: What stack, checkpoints and servers need.
    type: dict
    required: true
  pve:
    description: C(node) and C(container) facts as the node gives them; what they say wins over what the container says.
    type: dict
    default: {}
  pve_notes:
    description: What could not be read on the node, and why.
    type: list
    elements: str
    default: []
  cuda_home:
    description: CUDA toolkit in the container.
    type: path
    required: true
  staged:
    description: Whether checkpoints are served from a copy in memory.
    type: bool
    required: true
  adopting:
    description: A server of somebody else that can be taken over is no error.
    type: bool
    default: false
  findings:
    description: Findings made elsewhere, such as by checkpoints.
    type: list
    elements: dict
    default: []
  waive:
    description: Rules to pass over, each with the operator's reason. Handed on to M(sglang_rules).
    type: dict
    default: {}
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
    stack: "{{ _preflight_stack.stack }}"
    needs: "{{ needs }}"
    cuda_home: /usr/local/cuda
    staged: true
  register: judged
"""

RETURN = r"""
findings:
  description: What does not go with the container.
  returned: success
  type: list
  elements: dict
facts:
  description: The facts that its servers share (docs/facts.md).
  returned: success
  type: dict
cards:
  description: The card of each selected server by inventory name; null where it is not there or lent.
  returned: success
  type: dict
plannable:
  description: Whether plans can be made, which needs the cards and a checkpoint.
  returned: success
  type: bool
waive:
  description: As given.
  returned: success
  type: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_preflight")
