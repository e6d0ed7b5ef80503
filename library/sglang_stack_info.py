#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_stack_info.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_stack_info
short_description: Read a stack's data, and find its wheels, on the controller
description:
  - Reads C(STACKS_DIR/NAME/stack.yml) and C(lock.txt), checks them, and computes the stack's id. Needs no container.
  - With O(wheelhouse_source), also finds the wheels that a container lacks, by their SHA-256. One that is missing or
    altered is an error that names each.
options:
  name:
    description: The stack's name, a directory in O(stacks_dir).
    type: str
    required: true
  stacks_dir:
    description: The directory of stacks on the controller.
    type: path
    required: true
  python:
    description: The container's Python version; its major.minor is part of the stack's id.
    type: str
    required: true
  wheelhouse_source:
    description: A directory on the controller with wheels to send.
    type: path
  wanted:
    description: The requirements to send, as RV(ignore:lacking) of M(sglang_stack) names them; everything by default.
    type: list
    elements: str
  machine:
    description: The container's architecture.
    type: str
    default: x86_64
attributes:
  check_mode: {support: full, description: It only reads.}
  diff_mode: {support: none, description: It only reads.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Find what the container lacks
  sglang_stack_info:
    name: sglang-0.5.11-cu130
    stacks_dir: "{{ playbook_dir }}/../stacks"
    python: "3.11.2"
    wheelhouse_source: /srv/wheelhouse
    wanted: "{{ _wheels.lacking | map(attribute='requirement') }}"
  register: _info
"""

RETURN = r"""
stack:
  description: What C(stack.yml) says, and C(name), C(id), C(lock) (the text), C(wheels) (every requirement, uv too).
  returned: success
  type: dict
files:
  description: The files to send, with C(requirement), C(name), C(path) and C(sha256).
  returned: with O(wheelhouse_source)
  type: list
  elements: dict
finding:
  description: What was seen, what was expected and what to do.
  returned: failure
  type: dict
"""
