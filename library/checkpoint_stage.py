#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage checkpoints."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_stage
short_description: Copy checkpoints from durable storage into memory
description:
  - Copies each checkpoint in one pass that hashes as it copies, and marks it whole at the end; a copy that was killed
    is taken up where it stopped, one that is whole is left alone.
  - Refuses with the sum, before anything is copied, when it cannot fit.
options:
  models:
    description: C(source) and C(target) of each checkpoint, absolute directories.
    type: list
    elements: dict
    required: true
    suboptions:
      source: {description: The durable directory., type: path, required: true}
      target: {description: The copy., type: path, required: true}
attributes:
  check_mode: {support: full, description: Says which checkpoints would be copied.}
  diff_mode: {support: none, description: A copy is whole or it is made.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Stage the checkpoint
  checkpoint_stage:
    models: [{source: /models/Qwen3.6-27B, target: /dev/shm/sglang/Qwen3.6-27B-1f0c2d3e}]
"""

RETURN = r"""
staged:
  description: Targets that were, or in check mode would be, copied.
  returned: always
  type: list
  elements: str
log:
  description: Progress, as it was said.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve.staged import StagingError
from ansible.module_utils.sglang_pve.staging import Model, stage, verify


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "models": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "source": {"type": "path", "required": True},
                    "target": {"type": "path", "required": True},
                },
            }
        },
        supports_check_mode=True,
    )
    models = [Model(Path(item["source"]), Path(item["target"])) for item in module.params["models"]]
    log = []
    try:
        if module.check_mode:
            changed = [model for model in models if verify(model.target, model.source)]
        else:
            changed = stage(models, log.append)
    except (StagingError, OSError) as error:
        module.fail_json(msg=str(error), log=log)
    module.exit_json(changed=bool(changed), staged=[str(model.target) for model in changed], log=log)


if __name__ == "__main__":
    main()
