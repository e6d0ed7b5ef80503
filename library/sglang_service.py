#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Account, directories, units and small files of a container that runs SGLang servers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service
short_description: Service account, directories, units and small files of the servers
description:
  - Makes the system account, directories and files that the servers of a container need, in one call.
  - Writes the sandbox drop-in only where a transient unit with the same settings starts, since many unprivileged
    containers forbid the mounts that it needs.
  - Reloads systemd when a file below C(/etc/systemd) changed, and enables the units named.
  - Never starts, stops or restarts a server.
options:
  user:
    description: Name of the system account that runs the servers.
    type: str
    required: true
  home:
    description: Home directory named in the account.
    type: path
    required: true
  directories:
    description: Directories to make, with owner (account and group of that name) and octal mode.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Where it is., type: path, required: true}
      owner: {description: Account and group that own it., type: str, default: root}
      mode: {description: Octal mode., type: str, default: "0755"}
  files:
    description: Files to write when their content or mode differs.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Where it is., type: path, required: true}
      content: {description: The whole text., type: str, required: true}
      mode: {description: Octal mode., type: str, default: "0644"}
  sandbox:
    description: Drop-in with settings that need mounts.
    type: dict
    required: true
    options:
      path: {description: Where it is written., type: path, required: true}
      content: {description: The whole text., type: str, required: true}
  enable:
    description: Units to enable (not to start).
    type: list
    elements: str
    default: []
  restart_on_change:
    description: Services to restart when the file of that path changed.
    type: dict
    default: {}
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows every file below /etc before and after.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Account, directories and units
  sglang_service:
    user: sglang
    home: /var/lib/sglang
    directories: [{path: /var/cache/sglang, owner: sglang, mode: "0755"}]
    files:
      - path: /etc/systemd/system/sglang@.service
        content: "{{ lookup('template', 'sglang@.service.j2') }}"
    sandbox: {path: /etc/systemd/system/sglang@.service.d/10-sandbox.conf, content: "[Service]\nProtectSystem=full\n"}
    enable: [sglang.target]
"""

RETURN = r"""
changes:
  description: What was, or in check mode would be, changed, one phrase each.
  returned: always
  type: list
  elements: str
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve.server import ServerError, systemctl
from ansible.module_utils.sglang_pve.service import ServiceError, ensure


def _enabled(unit: str) -> bool:
    return subprocess.run(["systemctl", "is-enabled", "--quiet", unit], check=False).returncode == 0


def main() -> None:
    path_mode = {"path": {"type": "path", "required": True}, "mode": {"type": "str"}}
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "home": {"type": "path", "required": True},
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **path_mode,
                    "owner": {"type": "str", "default": "root"},
                    "mode": {"type": "str", "default": "0755"},
                },
            },
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **path_mode,
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
            "sandbox": {
                "type": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True},
                },
            },
            "enable": {"type": "list", "elements": "str", "default": []},
            "restart_on_change": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    arguments, dry_run = module.params, module.check_mode
    try:
        changes, diffs = ensure(arguments, dry_run)
        changed_paths = {diff["after_header"] for diff in diffs}
        if any(path.startswith("/etc/systemd/") for path in changed_paths) and not dry_run:
            systemctl("daemon-reload")
        for unit in arguments["enable"]:
            if not _enabled(unit):
                changes.append(f"enable {unit}")
                if not dry_run:
                    systemctl("enable", "--quiet", unit)
        for path, service in arguments["restart_on_change"].items():
            if path in changed_paths:
                changes.append(f"restart {service}")
                if not dry_run:
                    systemctl("restart", service)
    except (ServiceError, ServerError, OSError) as error:
        module.fail_json(msg=str(error))
    # Settings are what a person wants to read; the programs beside them would bury those.
    shown = [diff for diff in diffs if diff["after_header"].startswith("/etc/")]
    module.exit_json(changed=bool(changes), changes=changes, diff=shown)


if __name__ == "__main__":
    main()
