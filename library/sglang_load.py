#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a server under load."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_load
short_description: Measure how many tokens a second a server gives under a workload
description:
  - Keeps as many requests running as the workload says, all of its mean lengths and of random tokens, and measures
    after a warm-up. Runs in the container, beside the server. Takes at most twice O(seconds).
  - Fails when a request failed, or none was answered.
options:
  host:
    description: Address that the server listens on.
    type: str
    required: true
  port:
    description: Port that the server listens on.
    type: int
    required: true
  workload:
    description: C(mean_input_tokens), C(mean_output_tokens), C(concurrency), and C(shared_prefix_tokens) if any.
    type: dict
    required: true
  seconds:
    description: How long to measure.
    type: float
    default: 120
attributes:
  check_mode: {support: full, description: It asks the server nothing.}
  diff_mode: {support: none, description: It changes nothing.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: How fast is the server of GPU 3
  sglang_load:
    host: 127.0.0.1
    port: 30003
    workload: {mean_input_tokens: 512, mean_output_tokens: 256, concurrency: 256}
"""

RETURN = r"""
load:
  description: >-
    C(output_tokens_per_s), C(requests) that were measured, C(seconds) that they took, C(mean_latency_s) of one,
    C(concurrency), how many C(failed), and the first C(errors).
  returned: outside check mode
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import load


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "workload": {"type": "dict", "required": True},
            "seconds": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="known after the server has been loaded")
    wanted = module.params
    work = {name: int(value) for name, value in wanted["workload"].items()}
    try:
        found = load.measure(wanted["host"], wanted["port"], work, wanted["seconds"])
    except load.LoadError as error:
        module.fail_json(msg=str(error))
    if found["failed"]:
        said = "; ".join(found["errors"])
        module.fail_json(msg=f"{found['failed']} requests failed under load, {found['requests']} did not: {said}")
    module.exit_json(changed=False, load=found)


if __name__ == "__main__":
    main()
