#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage checkpoints, and forget those that nothing serves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_stage
short_description: Copy checkpoints from durable storage into memory
description:
  - Copies each checkpoint in one pass that hashes as it copies, and marks it whole at the end; a copy that was killed
    is taken up where it stopped, one that is whole is left alone.
  - Refuses with the sum, before anything is copied, when it cannot fit.
  - Keeps the list of what is staged before a server starts, after a restart of the container too.
  - A copy runs on when the connection breaks; the next run waits for it. How far it is, is shown every five seconds.
options:
  state:
    description:
      - V(present) stages O(models) and adds them to the list.
      - V(served) reduces the list to what the servers' releases name, and removes the other copies from memory.
    type: str
    choices: [present, served]
    default: present
  models:
    description: C(source) and C(target) of each checkpoint, absolute directories.
    type: list
    elements: dict
    default: []
    suboptions:
      source: {description: The durable directory., type: path, required: true}
      target: {description: The copy., type: path, required: true}
  config:
    description: The list that C(sglang-model.service) reads.
    type: path
    default: /etc/sglang/models.json
  root:
    description: Where releases and servers are.
    type: path
    default: /opt/sglang
  progress:
    description: A file that holds how far the copy is, while it lasts. The task sets it to show its progress.
    type: path
attributes:
  check_mode: {support: full, description: Says which checkpoints would be copied or removed, or why they cannot be.}
  diff_mode: {support: full, description: Shows the list before and after.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Stage the checkpoint
  checkpoint_stage:
    models: [{source: /models/Qwen3.6-27B, target: /dev/shm/sglang/Qwen3.6-27B-1f0c2d3e}]

- name: Free the memory of those that nothing serves any more
  checkpoint_stage:
    state: served
"""

RETURN = r"""
staged:
  description: Targets that were, or in check mode would be, copied.
  returned: always
  type: list
  elements: str
removed:
  description: Targets that were, or in check mode would be, removed.
  returned: always
  type: list
  elements: str
log:
  description: Progress, as it was said.
  returned: success
  type: list
  elements: str
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import fleet, staging
from ansible.module_utils.sglang_pve.hold import RefusedError
from ansible.module_utils.sglang_pve.server import write_atomic


@contextlib.contextmanager
def told(log: list[str], progress: str | None) -> Iterator[Callable[[str], None]]:
    """A function that keeps what is said in ``log`` and, while it lasts, in the file ``progress``."""
    if not progress:
        yield log.append
        return
    path = Path(progress)
    with path.open("x") as stream:

        def say(line: str) -> None:
            log.append(line)
            print(line, file=stream, flush=True)

        try:
            yield say
        finally:
            path.unlink()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "served"], "default": "present"},
            "models": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "source": {"type": "path", "required": True},
                    "target": {"type": "path", "required": True},
                },
            },
            "config": {"type": "path", "default": "/etc/sglang/models.json"},
            "root": {"type": "path", "default": "/opt/sglang"},
            "progress": {"type": "path"},
        },
        supports_check_mode=True,
    )
    config, dry_run = Path(module.params["config"]), module.check_mode
    known = fleet.read_models(config)
    wanted, removed = fleet.models_to_stage(module.params["models"], known), []
    if module.params["state"] == "served":
        wanted = fleet.served_models(Path(module.params["root"]), known)
        removed = [item["target"] for item in known if item not in wanted]
    models = [staging.Model(Path(item["source"]), Path(item["target"])) for item in module.params["models"]]
    before, after, log = fleet.models_text(known), fleet.models_text(wanted), []
    differs = before != after or not config.exists()
    try:
        if differs and not dry_run:
            write_atomic(config, after)
        with told(log, None if dry_run else module.params["progress"]) as say:
            changed = staging.stage(models, say, dry_run)
            for target in [] if dry_run else removed:
                log += [f"{Path(target) / name}: not ours, it stays" for name in staging.unstage(Path(target), say)]
    except (RefusedError, OSError) as error:
        module.fail_json(msg=str(error), log=log)
    module.exit_json(
        changed=bool(changed or removed or differs),
        staged=[str(model.target) for model in changed],
        removed=removed,
        log=log,
        diff={"before_header": str(config), "after_header": str(config), "before": before, "after": after}
        if differs
        else {},
    )


if __name__ == "__main__":
    main()
