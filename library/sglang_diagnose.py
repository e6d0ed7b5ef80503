#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what a diagnosis of a container's servers needs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_diagnose
short_description: Read journals, units and releases of a container's servers
description:
  - Reads the last runs of each server from its journal, how its unit stands, its release's manifest and unit files, and
    the kernel's log where that is readable. Keys, tokens and lines about requests are taken out on the container.
  - The action plugin M(sglang_diagnose_report) says what it means. Changes nothing and needs no lock.
options: {}
attributes:
  check_mode: {support: full, description: It only reads.}
  diff_mode: {support: none, description: It only reads.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Read it
  sglang_diagnose:
  register: _diagnose
"""

RETURN = r"""
servers:
  description: >-
    By name (gpu0): C(unit) (as systemd says), C(healthy), C(runs) (lines of the newest runs, newest first), C(release),
    C(fits) (running requests that would have fitted), C(argv), C(files) (unit files, by path).
  returned: always
  type: dict
kernel:
  description: Last lines of the kernel's log; empty where it may not be read.
  returned: always
  type: list
  elements: str
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import fits, fleet, gate, host, redact, server


def read(item):
    unit = host.unit_states([item.unit]).get(item.unit, {})
    seen = server.observe(item, unit, {})
    manifest = item.release_directory(seen["release"] or "none") / "manifest.json"
    try:
        argv = json.loads(manifest.read_text(encoding="utf-8"))["plan"]["argv"]
    except (OSError, ValueError, KeyError, TypeError):
        argv = []
    files = [item.systemd / "sglang@.service", item.drop_in, item.directory / "server.env"]
    running = unit.get("active") == "active"
    runs = server.unit_runs(item.unit)
    return {
        "unit": unit,
        "fits": fits.of_release(manifest.parent, [line for run in runs for line in run]),
        "healthy": running and bool(seen["parameters"]) and gate.healthy(fleet.base_url(seen["parameters"]), 5),
        "lent": server.read_loan(item),
        "release": seen["release"],
        "argv": [redact.line(word) for word in argv],
        "runs": [[redact.line(line) for line in run] for run in runs],
        "files": {str(path): redact.text(path.read_text(errors="replace")) for path in files if path.is_file()},
    }


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    root, systemd = Path("/opt/sglang"), Path("/etc/systemd/system")
    servers = {f"gpu{index}": read(server.Server(index, root, systemd)) for index in fleet.discover(root, systemd)}
    module.exit_json(changed=False, servers=servers, kernel=[redact.line(line) for line in server.kernel_tail()])


if __name__ == "__main__":
    main()
