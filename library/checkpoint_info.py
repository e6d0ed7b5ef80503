#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what model directories really hold."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_info
short_description: Says what model directories really hold
description:
  - Reads config.json, the index and every shard's header of each checkpoint, never the weights.
  - Reports architecture, tensors, bytes by type, shards, the MTP head, quantization, and findings with a cure each.
  - A checkpoint that is missing or broken is reported, it does not fail the task.
options:
  paths:
    description: The checkpoints' directories on the target.
    type: list
    elements: path
    required: true
  user:
    description:
      - Also report files that this user cannot read. A user that does not exist yet is judged as one who owns nothing
        and is in no group.
      - Without it, only files that the module itself cannot read are reported.
    type: str
author:
  - sglang-pve contributors
attributes:
  check_mode:
    description: It only reads.
    support: full
"""

EXAMPLES = r"""
- name: Look at the checkpoint
  checkpoint_info:
    paths: ["{{ sglang_model_path }}"]
    user: sglang
  register: look

- name: Stop on a broken one
  ansible.builtin.assert:
    that: look.checkpoints[sglang_model_path].findings | selectattr('level', 'eq', 'error') | list | length == 0
"""

RETURN = r"""
checkpoints:
  description: One report for each path, under that path.
  returned: always
  type: dict
  sample:
    /models/Qwen3.6-27B:
      exists: true
      architecture: Qwen3_5ForConditionalGeneration
      bytes: 55562000000
      max_context: 262144
      mtp: {declared: true, tensors: 15, bytes: 849000000, complete: true, missing: []}
      shards: {named: [], present: [], missing: [], extra: []}
      findings: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import account, checkpoint


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "required": True},
            "user": {"type": "str"},
        },
        supports_check_mode=True,
    )
    uid, gids = account.identity(module.params["user"])
    module.exit_json(
        changed=False,
        checkpoints={path: checkpoint.inspect(path, uid, gids) for path in module.params["paths"]},
    )


if __name__ == "__main__":
    main()
