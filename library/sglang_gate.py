#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a server is ready, and prove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_gate
short_description: Wait until a server is ready, and prove it by an answer and by its pools
description:
  - Passes when the unit runs the wanted release, C(/health) answers, a question with a known answer is answered, and
    the pools that the server reports are those that were planned.
  - Warns when the server's metrics say that drafts are accepted less than 1.2 tokens a step.
  - Gives up at once when the unit failed or restarts, and after O(timeout) otherwise.
options:
  index:
    description: Index of the GPU; the unit is C(sglang@INDEX.service).
    type: int
    required: true
  release:
    description: Release that must run.
    type: str
    required: true
  host:
    description: Address that the server listens on.
    type: str
    required: true
  port:
    description: Port that the server listens on.
    type: int
    required: true
  timeout:
    description: Seconds that stopping the old and starting the new process may take together.
    type: int
    default: 1800
  pools:
    description: Planned C(max_total_num_tokens) and C(max_running_requests).
    type: dict
    default: {}
  model:
    description: Served model name.
    type: str
    required: true
  question:
    description: Chat question to ask.
    type: str
    default: What is 17 + 25? Answer with the number only.
  answer:
    description: What the answer must contain.
    type: str
    default: "42"
attributes:
  check_mode: {support: partial, description: In check mode nothing was started; the module says so and passes.}
  diff_mode: {support: none, description: It changes nothing.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Server of GPU 3 must be ready
  sglang_gate: {index: 3, release: 1f0c2d3e4a5b, host: 127.0.0.1, port: 30003, model: Qwen3.6-27B}
"""

RETURN = r"""
pools:
  description: Pools that the server reports.
  returned: success
  type: dict
seconds:
  description: How long the gate took.
  returned: success
  type: float
journal:
  description: Last lines of the server's journal.
  returned: failure
  type: list
  elements: str
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.warnings import warn
from ansible.module_utils.sglang_pve import drafting, fleet, gate, host, server


class Unit:
    """Says whether there is something to wait for."""

    def __init__(self, item):
        self.item = item
        self.restarts = self.state().get("restarts") or 0

    def state(self):
        return host.unit_states([self.item.unit]).get(self.item.unit, {})

    def gone(self):
        now = self.state()
        ended = f"result {now.get('result')}, exit status {now.get('exit_status')}"
        if now.get("active") in ("failed", "inactive"):
            return f"{self.item.unit} is {now.get('active')} ({ended})"
        if now.get("sub") == "auto-restart" or (now.get("restarts") or 0) > self.restarts:
            return f"{self.item.unit} failed and is restarted by systemd ({ended})"
        return ""


def prove(wanted, item):
    unit = Unit(item)
    base = fleet.base_url({"host": wanted["host"], "port": str(wanted["port"])})

    def not_ready():
        # While the old release drains, its process may still answer.
        running = server.process_environment(int(unit.state().get("main_pid") or 0)).get("SGLANG_PVE_RELEASE")
        if running != wanted["release"]:
            return f"{item.unit} did not run release {wanted['release']} but {running or 'nothing'}"
        return "" if gate.healthy(base) else f"{base}/health was not 200"

    gate.wait_until_ready(not_ready, unit.gone, time.monotonic() + wanted["timeout"])
    gate.ask(base, wanted["question"], wanted["answer"], wanted["model"])
    pools = gate.read_pools(base)
    # The questions above were the warm-up. A server that only drafts in vain serves, so this does not stop it.
    for finding in drafting.judge(drafting.accept_length(base)):
        warn(finding.sentence())
    gate.compare_pools(pools, wanted["pools"])
    gone = unit.gone()
    if gone:
        raise gate.GateError(gone)
    return pools


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "index": {"type": "int", "required": True},
            "release": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "timeout": {"type": "int", "default": 1800},
            "pools": {"type": "dict", "default": {}},
            "model": {"type": "str", "required": True},
            "question": {"type": "str", "default": "What is 17 + 25? Answer with the number only."},
            "answer": {"type": "str", "default": "42"},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="known after the server has started")
    item = server.Server(module.params["index"])
    begun = time.monotonic()
    try:
        pools = prove(module.params, item)
    except gate.GateError as error:
        journal = server.journal_tail(item.unit)
        said = server.evidence(journal)
        module.fail_json(msg=f"{item.name}: {error}" + (f". It said: {said}" if said else ""), journal=journal[-25:])
    module.exit_json(changed=False, pools=pools, seconds=round(time.monotonic() - begun, 1))


if __name__ == "__main__":
    main()
