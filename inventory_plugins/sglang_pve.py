# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory plugin: containers of Proxmox VE that have a tag, as groups with one host for each GPU."""

from __future__ import annotations

DOCUMENTATION = """
name: sglang_pve
short_description: Containers with a tag as groups, their GPUs as hosts
description:
  - Asks Proxmox VE's API which containers have a tag and which C(/dev/nvidiaN) are passed to them.
  - Makes a group C(ctVMID) in the group C(sglang) for each, with a host C(ctVMID-gpuN) for each card, and a host in the
    group C(nodes) for each node that they are on.
  - A container that cannot be read has one host, so that a run says that it is out of reach and ends non-zero.
  - The file's name must end with C(sglang_pve.yml) or C(sglang_pve.yaml).
author: sglang-pve
requirements: [proxmoxer, requests]
options:
  plugin:
    description: C(sglang_pve).
    required: true
    choices: [sglang_pve]
  api_url:
    description: The API of any node of the cluster, such as C(https://pve1:8006).
    type: string
    required: true
    env: [{name: PROXMOX_URL}]
  api_token_id:
    description: A token's name, such as C(sglang@pve!read), with the role PVEAuditor.
    type: string
    required: true
    env: [{name: PROXMOX_TOKEN_ID}]
  api_token_secret:
    description: The token's secret. Better in the environment than in the file.
    type: string
    required: true
    env: [{name: PROXMOX_TOKEN_SECRET}]
  api_ca_path:
    description: Certificate of the authority that signed the API's, a copy of the node's C(/etc/pve/pve-root-ca.pem).
    type: path
  tag:
    description: Containers that have it are taken.
    type: string
    default: sglang
"""

EXAMPLES = """
# inventory/sglang_pve.yml
plugin: sglang_pve
api_url: https://pve1:8006
api_token_id: sglang@pve!read
api_ca_path: /etc/ssl/pve-root-ca.pem
"""

import sys
from pathlib import Path

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

try:
    # proxmoxer without it ends the process.
    import requests  # noqa: F401
    from proxmoxer import ProxmoxAPI
except ImportError:
    ProxmoxAPI = None

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import pve_api, pve_inventory


class InventoryModule(BaseInventoryPlugin):
    NAME = "sglang_pve"

    def verify_file(self, path):
        return super().verify_file(path) and path.endswith(("sglang_pve.yml", "sglang_pve.yaml"))

    def parse(self, inventory, loader, path, cache=True):
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        how = [self.get_option(name) for name in ("api_url", "api_token_id", "api_token_secret")]
        if ProxmoxAPI is None:
            raise AnsibleParserError(
                f"{path}: this inventory needs proxmoxer and requests; install both beside Ansible"
            )
        try:
            api = pve_api.connect(ProxmoxAPI, *how, self.get_option("api_ca_path"))
            containers, notes = pve_inventory.read(api, self.get_option("tag"))
        except pve_api.ApiError as error:
            raise AnsibleParserError(f"{path}: {error}") from error
        for note in notes:
            self.display.warning(note)
        self._add(pve_inventory.groups(containers))

    def _add(self, found):
        for group in ("nodes", "sglang"):
            self.inventory.add_group(group)
        for name, variables in found["nodes"].items():
            self._add_host(name, "nodes", variables)
        for group, container in found["containers"].items():
            self.inventory.add_group(group)
            self.inventory.add_child("sglang", group)
            for name, value in container["vars"].items():
                self.inventory.set_variable(group, name, value)
            for name, variables in container["hosts"].items():
                self._add_host(name, group, variables)

    def _add_host(self, name, group, variables):
        self.inventory.add_host(name, group=group)
        for key, value in variables.items():
            self.inventory.set_variable(name, key, value)
