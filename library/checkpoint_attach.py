#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give a checkpoint the MTP head that it lost, or take it away again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_attach
short_description: Give a checkpoint the MTP head that it lost
description:
  - Many quantized variants of a model lost their C(mtp.*) tensors, and the engine then drafts with random weights.
  - Makes the directory O(path) with links to the checkpoint's files, the C(mtp.*) tensors of O(source) in a file of
    their own, and an index that names both. The checkpoint itself is not touched.
  - Names, shapes and types of the head are compared with config.json before anything is written.
  - O(source) is needed once. When it is gone afterwards, what was made of it is kept.
  - For a quantized checkpoint the head is put on the quantizer's ignore list, in a config.json of its own.
options:
  path:
    description: The directory to make or to take away, beside the checkpoint.
    type: path
    required: true
  state:
    description: V(absent) takes away what was made and nothing else.
    type: str
    choices: [present, absent]
    default: present
  checkpoint:
    description: The checkpoint without a head. Required for O(state=present).
    type: path
  source:
    description:
      - Where the head is, a safetensors file or several, such as two official shards, or the directory of a whole
        model, of which only the files that its index names for C(mtp.*) have to be there.
      - Required for O(state=present).
    type: list
    elements: path
  extract:
    description: Take the C(mtp.*) tensors also out of single files that hold others. Directories need no such leave.
    type: bool
    default: false
  user:
    description: Also report files of the checkpoint that this user cannot read, as M(checkpoint_info) does.
    type: str
attributes:
  check_mode: {support: full, description: Returns the report about what it would make.}
  diff_mode: {support: full, description: Shows the files of the directory and the changes in config.json.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Attach the head out of two official shards
  checkpoint_attach:
    checkpoint: /models/Qwen3.6-27B-AWQ
    source: [/models/qwen/model-00013-of-00015.safetensors, /models/qwen/model-00015-of-00015.safetensors]
    extract: true
    path: /models/Qwen3.6-27B-AWQ-mtp

- name: Take it away again
  checkpoint_attach:
    path: /models/Qwen3.6-27B-AWQ-mtp
    state: absent
"""

RETURN = r"""
checkpoint:
  description: The report about O(path), as M(checkpoint_info) gives it; in check mode about what would be made.
  returned: for O(state=present)
  type: dict
left:
  description: Files that stay, since they are not what was made.
  returned: for O(state=absent)
  type: list
  elements: str
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import account, attach, checkpoint
from ansible.module_utils.sglang_pve.hold import RefusedError


def diffs(wanted: attach.Attached, path: Path) -> list[dict[str, str]]:
    """The directory as it is and will be, and each small file beside that of the checkpoint."""
    names = sorted([*wanted.links, *wanted.texts, attach.HEAD])
    after = "".join(f"{name} -> {wanted.links[name]}\n" if name in wanted.links else f"{name}\n" for name in names)
    before = "".join(
        f"{entry.name} -> {entry.readlink()}\n" if entry.is_symlink() else f"{entry.name}\n"
        for entry in (sorted(path.iterdir()) if path.is_dir() else [])
        if entry.name != attach.MARKER
    )
    found = [(str(path), before, after)]
    for name in wanted.texts.keys() - {checkpoint.INDEX}:
        old = json.loads((wanted.base / name).read_bytes())
        found.append((str(path / name), attach.as_text(old), wanted.texts[name]))
    return [{"before_header": name, "after_header": name, "before": old, "after": new} for name, old, new in found]


def present(module: AnsibleModule) -> dict[str, Any]:
    base, path = Path(module.params["checkpoint"]), Path(module.params["path"])
    sources = [Path(source) for source in module.params["source"]]
    uid, gids = account.identity(module.params["user"])
    if attach.outlives(base, sources, path):
        module.warn(f"{path}: its head is kept; where it came from is gone: {', '.join(map(str, sources))}")
        return {"changed": False, "checkpoint": checkpoint.inspect(str(path), uid, gids)}
    wanted = attach.plan(base, sources, module.params["extract"])
    for warning in wanted.warnings:
        module.warn(f"{path}: {warning}")
    attach.check_place(wanted, path)
    if attach.is_current(wanted, path):
        return {"changed": False, "checkpoint": checkpoint.inspect(str(path), uid, gids)}
    report, diff = attach.preview(wanted, path, uid, gids), diffs(wanted, path)
    if not module.check_mode:
        attach.attach(wanted, path, lambda line: None)
    return {"changed": True, "checkpoint": report, "diff": diff}


def absent(module: AnsibleModule) -> dict[str, Any]:
    gone, left = attach.detach(Path(module.params["path"]), lambda line: None, module.check_mode)
    return {"changed": bool(gone), "left": left}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "checkpoint": {"type": "path"},
            "source": {"type": "list", "elements": "path"},
            "extract": {"type": "bool", "default": False},
            "user": {"type": "str"},
        },
        required_if=[("state", "present", ("checkpoint", "source"))],
        supports_check_mode=True,
    )
    try:
        result = present(module) if module.params["state"] == "present" else absent(module)
    except (RefusedError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
