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
    description: The stack's name, a directory in O(stacks_dir); V(auto) chooses among those of O(engine) by O(place).
    type: str
    required: true
  engine:
    description: The version of SGLang, for O(name=auto).
    type: str
  lane:
    description: The lane, for O(name=auto); V(auto) takes the first that fits. A named stack must be of this lane.
    type: str
    choices: [auto, cu130, cu12]
    default: auto
  place:
    description:
      - What M(fleet_state) read of the container. The stack is judged against it, and RV(reason) is shown.
      - With it, O(wheelhouse_source) only tells which wheels are at hand; RV(files) is not returned.
    type: dict
    suboptions:
      driver: {description: Version of the driver; empty where it is not known., type: str}
      nvcc: {description: Version of the toolkit's compiler; empty where there is none., type: str}
      glibc: {description: Version of the C library; empty where it is not known., type: str}
      os: {description: C(id) and C(version) of the distribution; empty where they are not known., type: dict}
      compilers: {description: C(found), C(headers) and C(offers); without it no host compiler is judged., type: dict}
      wheels: {description: File names in the container's wheelhouse., type: list, elements: str, default: []}
      stacks: {description: Ids of the stacks that are installed., type: list, elements: str, default: []}
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
- name: Choose a stack for the container
  sglang_stack_info:
    name: auto
    engine: 0.5.11
    stacks_dir: "{{ playbook_dir }}/../stacks"
    python: 3.12.3
    place: {driver: 580.65.06, glibc: "2.39", stacks: "{{ _fleet.state.stacks | list }}"}
  register: _info

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
  description: What C(stack.yml) says, and C(name), C(id), C(lock) (the text), C(wheels) (every requirement, uv
    too). Its C(compilers) hold C(package) too, what gives the distribution of O(place) a good one.
  returned: success
  type: dict
reason:
  description: One line that says which stack it is and why.
  returned: success
  type: str
findings:
  description: What makes the stack impossible in O(place); nothing where it fits.
  returned: success
  type: list
  elements: dict
files:
  description: The files to send, with C(requirement), C(name), C(path) and C(sha256).
  returned: with O(wheelhouse_source) and without O(place)
  type: list
  elements: dict
finding:
  description: What was seen, what was expected and what to do.
  returned: failure
  type: dict
"""
