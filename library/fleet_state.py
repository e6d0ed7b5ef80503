#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the state of a container."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_state
short_description: Read everything about the servers of a container in one call
description:
  - Reads host facts, GPUs, stacks, releases, every server (unit, process, release, parameters, health, pools) and the
    history. Changes nothing and needs no lock.
options:
  root:
    description: Where stacks, releases and servers are.
    type: path
    default: /opt/sglang
  history:
    description: The history.
    type: path
    default: /var/lib/sglang/history.jsonl
  paths:
    description: Paths whose free space is wanted.
    type: list
    elements: path
    default: [/opt/sglang, /var/lib/sglang, /var/cache/sglang, /dev/shm, /tmp]
  cuda_home:
    description: A CUDA toolkit; it, the host compilers and apt are asked for versions. Nothing is asked by default.
    type: path
  wheelhouse:
    description: A directory whose wheels are listed; none is by default.
    type: path
attributes:
  check_mode: {support: full, description: It only reads.}
  diff_mode: {support: none, description: It only reads.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: What is there
  fleet_state:
  register: _fleet
"""

RETURN = r"""
state:
  description: >-
    C(host), C(nvcc) (version), C(compilers) (found, and offered by apt), C(wheels) (file names), C(gpus), C(foreign)
    (SGLang servers and unit files of others, and take-overs that were not finished), C(stacks), C(releases),
    C(servers) by name (C(gpu0)), C(lock) with a sentence about who holds it, and C(history) with the line of verified
    states, where a rollback that was stopped went (C(going_back)), all verified releases, servers that are being tuned
    and what they served (C(tuning)), the newest measurement of each kind (C(tuned)), the last entries, how many lines
    could not be read, and notes on it.
  returned: always
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import fleet, history


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/sglang"},
            "history": {"type": "path", "default": "/var/lib/sglang/history.jsonl"},
            "paths": {
                "type": "list",
                "elements": "path",
                "default": ["/opt/sglang", "/var/lib/sglang", "/var/cache/sglang", "/dev/shm", "/tmp"],
            },
            "cuda_home": {"type": "path"},
            "wheelhouse": {"type": "path"},
        },
        supports_check_mode=True,
    )
    p = module.params
    places = (Path(p[name]) if p[name] else None for name in ("cuda_home", "wheelhouse"))
    try:
        state = fleet.read(Path(p["root"]), Path("/etc/systemd/system"), Path(p["history"]), p["paths"], *places)
    except history.HistoryError as error:
        module.fail_json(msg=str(error))
    except (OSError, RuntimeError) as error:
        module.fail_json(msg=f"the state of the container cannot be read: {error}")
    module.exit_json(changed=False, state=state)


if __name__ == "__main__":
    main()
