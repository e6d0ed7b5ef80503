#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a checkpoint's bytes with what was published, or with the first look."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_verify
short_description: Compare the SHA-256 of a checkpoint's files with what was published or first seen
description:
  - Reads every file with all cores. Digests that huggingface_hub left beside a download are compared with; for other
    files the first reading counts and later ones are compared with it.
  - Digests are kept outside of the checkpoint. Where a file's size, time of change and inode are those of its last
    reading, it is not read again with O(full=false); an interrupted reading goes on where it was.
  - In a play it shows how far it is.
options:
  path:
    description: The checkpoint's directory.
    type: path
    required: true
  full:
    description: Read every file, also one that looks unchanged.
    type: bool
    default: true
  accept:
    description: >-
      Take what is there now as right where it differs from an earlier reading. What was published still counts.
    type: bool
    default: false
  seconds:
    description: Begin no further file after so many seconds; 0 for no limit.
    type: float
    default: 0
  since:
    description: With O(full), do not read files again that were read after this time (seconds since the epoch).
    type: float
    default: 0
  skip:
    description: Names of files that are not to be read.
    type: list
    elements: str
    default: []
  manifests:
    description: Where digests are kept.
    type: path
    default: /var/lib/sglang/checkpoints
attributes:
  check_mode: {support: full, description: Reads and compares; keeps nothing.}
  diff_mode: {support: none, description: Files are named in the answer.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Read every byte once more
  checkpoint_verify:
    path: /models/Qwen3.6-27B

- name: Only what changed
  checkpoint_verify:
    path: /models/Qwen3.6-27B
    full: false
"""

RETURN = r"""
reading:
  description: >-
    C(files) that are as they should be, C(new) ones whose first reading this was, C(left) for want of time,
    C(bytes_done) of C(bytes_total), and C(findings).
  returned: always
  type: dict
since:
  description: What O(since) has to be to go on with this reading.
  returned: always
  type: float
"""

import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import integrity


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "full": {"type": "bool", "default": True},
            "accept": {"type": "bool", "default": False},
            "seconds": {"type": "float", "default": 0},
            "since": {"type": "float", "default": 0},
            "skip": {"type": "list", "elements": "str", "default": []},
            "manifests": {"type": "path", "default": "/var/lib/sglang/checkpoints"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    path = Path(wanted["path"])
    since = (wanted["since"] or time.time()) if wanted["full"] else 0
    manifest = integrity.manifest_of(path, Path(wanted["manifests"]))
    limit = wanted["seconds"] or float("inf")
    try:
        before = manifest.read_bytes() if manifest.exists() else b""
        with tempfile.TemporaryDirectory() as scratch:
            target = manifest
            if module.check_mode:
                target = Path(scratch) / manifest.name
                if before:
                    target.write_bytes(before)
            reading = integrity.verify(path, target, since, limit, accept=wanted["accept"], skip=wanted["skip"])
    except (integrity.IntegrityError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(reading.new), reading=reading.as_dict(), since=since)


if __name__ == "__main__":
    main()
