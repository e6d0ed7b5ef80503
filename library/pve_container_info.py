#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what a Proxmox VE node knows of a container and of its GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_container_info
short_description: Read a node's driver, cards and one container's configuration
description:
  - Runs on the Proxmox VE node, over the login that is there anyway (C(delegate_to)). Or anywhere, with O(api_url)
    and a token.
  - The API tells Proxmox VE's version, kernel, memory and the container's configuration, and nothing of the driver.
  - Changes nothing and ends no process. What cannot be read is absent, and RV(notes) says why.
requirements: [proxmoxer and requests where O(api_url) is given]
options:
  vmid:
    description: Number of the container.
    type: int
    required: true
  root:
    description: Directory that stands for the node's root directory.
    type: path
    default: /
  api_url:
    description: The API, such as C(https://pve1:8006). Empty reads on the node itself.
    type: str
    default: ""
  api_node:
    description: The node's name in its cluster; needed with O(api_url).
    type: str
    default: ""
  api_token_id:
    description: A token's name, such as C(sglang@pve!read); needs VM.Audit on the container, Sys.Audit on the node.
    type: str
    default: ""
  api_token_secret:
    description: The token's secret.
    type: str
    default: ""
  api_ca_path:
    description: Certificate of the authority that signed the API's, such as a copy of C(/etc/pve/pve-root-ca.pem).
    type: path
attributes:
  check_mode: {support: full, description: It only reads.}
  diff_mode: {support: none, description: It only reads.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: What the node says of container 200
  pve_container_info:
    vmid: 200
  delegate_to: pve1

- name: The same from the API
  pve_container_info:
    vmid: 200
    api_url: https://pve1:8006
    api_node: pve1
    api_token_id: sglang@pve!read
    api_token_secret: "{{ lookup('env', 'PROXMOX_TOKEN_SECRET') }}"
  delegate_to: localhost
"""

RETURN = r"""
pve:
  description: C(node) and C(container), as a facts document has them (docs/facts.md).
  returned: always
  type: dict
notes:
  description: What could not be read, and why.
  returned: always
  type: list
"""

import traceback
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.sglang_pve import pve_api, pve_config, pve_node

try:
    # proxmoxer without it ends the process.
    import requests  # noqa: F401
    from proxmoxer import ProxmoxAPI

    MISSING = None
except ImportError:
    MISSING = traceback.format_exc()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "vmid": {"type": "int", "required": True},
            "root": {"type": "path", "default": "/"},
            "api_url": {"type": "str", "default": ""},
            "api_node": {"type": "str", "default": ""},
            "api_token_id": {"type": "str", "default": ""},
            "api_token_secret": {"type": "str", "default": "", "no_log": True},
            "api_ca_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    p = module.params
    if not p["api_url"]:
        reader = pve_node.Reader(Path(p["root"]))
        module.exit_json(changed=False, pve=pve_node.read(p["vmid"], reader), notes=reader.notes)
    if MISSING:
        module.fail_json(msg=missing_required_lib("proxmoxer and requests"), exception=MISSING)
    try:
        api = pve_api.connect(ProxmoxAPI, p["api_url"], p["api_token_id"], p["api_token_secret"], p["api_ca_path"])
        module.exit_json(changed=False, pve=pve_api.read(api, p["api_node"], p["vmid"]), notes=[])
    except (pve_api.ApiError, pve_config.ConfigError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
