#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write releases."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Write immutable releases, named by their content
description:
  - Writes each release in one step below C(root). One that is there already is proven against its name and left alone.
  - A release that was edited on disk is an error, never overwritten.
options:
  root:
    description: Directory of all releases.
    type: path
    default: /opt/sglang/releases
  releases:
    description: Releases to write, as the action plugin of the plan returned them (C(id), C(manifest), C(files)).
    type: list
    elements: dict
    required: true
attributes:
  check_mode: {support: full, description: Says which releases are new and writes none.}
  diff_mode: {support: none, description: A release is new or it is there.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Write the releases that the plans ask for
  sglang_release:
    releases: "{{ planned | unique }}"
"""

RETURN = r"""
written:
  description: Ids of the releases that are new.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve.release import ReleaseError, release_id, remove_unfinished, write


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/sglang/releases"},
            "releases": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    written = []
    try:
        if not module.check_mode:
            remove_unfinished(root)
        for release in module.params["releases"]:
            name = release_id(release["manifest"], release["files"])
            if name != release["id"]:
                module.fail_json(
                    msg=f"release {release['id']} arrived as {name}: it was changed on its way. Run the playbook again"
                )
            if write(root, release["manifest"], release["files"], dry_run=module.check_mode):
                written.append(name)
    except ReleaseError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(written), written=written)


if __name__ == "__main__":
    main()
