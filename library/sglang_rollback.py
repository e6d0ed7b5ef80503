#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin that runs on the controller: action_plugins/sglang_rollback.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_rollback
short_description: Choose what the servers of a container go back to
description:
  - The verified state of the fleet below the present one, or a release that was verified here.
  - Refuses in words when there is none.
options:
  state:
    description: State of the container, as M(fleet_state) returned it.
    type: dict
    required: true
  servers:
    description: Names (gpu3) of the servers that go back.
    type: list
    elements: str
    required: true
  to:
    description: A release of choice.
    type: str
attributes:
  check_mode: {support: full, description: It only reads and judges.}
  diff_mode: {support: none, description: It changes nothing.}
  action: {support: full, description: It runs on the controller.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Choose what to go back to
  sglang_rollback:
    state: "{{ _preflight_state.state }}"
    servers: [gpu0, gpu1]
"""

RETURN = r"""
target:
  description: Server to the manifest of the release that it goes back to.
  returned: success
  type: dict
copies:
  description: Checkpoints that those releases serve from a copy, as M(checkpoint_stage) takes them.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.sglang_action import needs_its_action_plugin

if __name__ == "__main__":
    needs_its_action_plugin("sglang_rollback")
