#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_release_id.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release_id
short_description: Put a release together and name it by its content
description:
  - The id follows from the manifest and the text of every file.
options:
  stack:
    description: The stack, as M(sglang_stack_info) returned it.
    type: dict
    required: true
  model:
    description: C(path), C(source), C(digest) and C(name) of the checkpoint.
    type: dict
    required: true
  plan:
    description: The plan, as M(sglang_plan) returned it.
    type: dict
    required: true
  files:
    description: File name to text.
    type: dict
    required: true
attributes:
  check_mode: {support: full, description: It only reads and judges.}
  diff_mode: {support: none, description: It changes nothing.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Name the release by its content
  sglang_release_id:
    stack: "{{ stack }}"
    model: "{{ model }}"
    plan: "{{ plan }}"
    files: {run: "{{ lookup('template', 'run.j2') }}"}
"""

RETURN = r"""
release:
  description: C(id), C(manifest) and C(files), as M(sglang_release) takes them.
  returned: success
  type: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_release_id")
