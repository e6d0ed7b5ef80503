#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_inputs.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_inputs
short_description: Check what the inventory says of one server
description:
  - Refuses what cannot be meant, such as a port that is none, a node that is not in the inventory, or an extra variable
    that stands in it.
options:
  index:
    description: Index of the GPU.
    type: raw
    required: true
  port:
    description: Port of the server.
    type: raw
    required: true
  nccl_port:
    description: NCCL port of the server.
    type: raw
    required: true
  listen:
    description: Address that it listens on.
    type: str
    required: true
  stack:
    description: Name of its stack.
    type: str
    required: true
  vmid:
    description: Number of its container.
    type: raw
    required: true
  node:
    description: Inventory name of its node.
    type: str
    required: true
  peers:
    description: Inventory names of the selected servers of its container.
    type: list
    elements: str
    required: true
  servers:
    description: Inventory names of all servers of its container.
    type: list
    elements: str
    required: true
attributes:
  check_mode: {support: full, description: It only reads and judges.}
  diff_mode: {support: none, description: It changes nothing.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Check what the inventory says of the server
  sglang_inputs:
    index: "{{ sglang_gpu }}"
    port: "{{ sglang_port }}"
    nccl_port: "{{ sglang_nccl_port }}"
    listen: "{{ sglang_listen }}"
    stack: "{{ sglang_stack }}"
    vmid: "{{ sglang_vmid }}"
    node: "{{ sglang_node }}"
    peers: "{{ sglang_peers }}"
    servers: "{{ sglang_servers }}"
"""

RETURN = r"""
server:
  description: C(host), C(name) (gpu3), C(index), C(port), C(nccl_port), C(listen) and C(stack).
  returned: success
  type: dict
peers:
  description: The selected servers of the container.
  returned: success
  type: list
  elements: str
leader:
  description: The first of them.
  returned: success
  type: str
names:
  description: All servers of the container, C(gpu3) to inventory name.
  returned: success
  type: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_inputs")
