#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Free what no server, no rollback and no kept release needs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_retention
short_description: Free old releases, stacks and compiled kernels
description:
  - Keeps the releases of the present verified state of the fleet, of the one that a rollback goes to, and of O(keep)
    more; whatever a server's link or a running process names; and the stacks of all these.
  - Everything else that carries an id of ours goes, with the compiled kernels of a removed stack and stacks whose
    install was abandoned. A directory of another name is not looked at. What was freed is kept in the history.
  - Run it while the container's lock is held, since an install that is going on looks abandoned.
options:
  keep:
    description: How many verified states before the two that are always kept.
    type: int
    default: 3
  keep_stacks:
    description: Ids of stacks that stay besides.
    type: list
    elements: str
    default: []
  root:
    description: Where stacks, releases and servers are.
    type: path
    default: /opt/sglang
  cache:
    description: Where the compiled kernels of each stack are.
    type: path
    default: /var/cache/sglang
  history:
    description: The history.
    type: path
    default: /var/lib/sglang/history.jsonl
attributes:
  check_mode: {support: full, description: Says what would go.}
  diff_mode: {support: full, description: Lists what goes, with its GiB.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Free what is not needed any more
  sglang_retention:
    keep: 3
"""

RETURN = r"""
removed:
  description: What went, or in check mode would go, as C(kind), C(path) and C(bytes).
  returned: always
  type: list
  elements: dict
freed_gib:
  description: Their size together.
  returned: always
  type: float
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import history, retention


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "keep": {"type": "int", "default": 3},
            "keep_stacks": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/opt/sglang"},
            "cache": {"type": "path", "default": "/var/cache/sglang"},
            "history": {"type": "path", "default": "/var/lib/sglang/history.jsonl"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    if wanted["keep"] < 0:
        module.fail_json(msg=f"keep is {wanted['keep']}; 0 or more was expected (correct sglang_keep_releases)")
    root, cache, log = (Path(wanted[name]) for name in ("root", "cache", "history"))
    try:
        entries, _broken = history.read(log)
        items, doubts = retention.choose(root, cache, entries, wanted["keep"], wanted["keep_stacks"])
        freed = sum(item.bytes for item in items)
        if items and not module.check_mode:
            retention.remove(items)
            history.append(log, [{"event": "freed", "bytes": freed, "paths": [str(item.path) for item in items]}])
    except history.HistoryError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"old releases could not be freed: {error}; the next deployment tries again")
    for doubt in doubts:
        module.warn(doubt)
    lines = "".join(f"{item.kind} {item.path} ({item.bytes / 2**30:.2f} GiB)\n" for item in items)
    module.exit_json(
        changed=bool(items),
        removed=[item.as_dict() for item in items],
        freed_gib=round(freed / 2**30, 2),
        diff={"before_header": "kept", "after_header": "kept", "before": lines, "after": ""} if items else {},
    )


if __name__ == "__main__":
    main()
