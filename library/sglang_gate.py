#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a server is ready, and prove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_gate
short_description: Wait until a server is ready, and prove it by an answer and by its pools
description:
  - Passes when the unit runs the wanted release, C(/health) answers, a question with a known answer is answered, a
    longer answer neither repeats itself without end nor has a log probability that is no number, a tool is called where
    O(tools) says so, the pools that the server reports are those that were planned, and port and card are the server's.
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
  gpu_uuid:
    description: Card that the server must be on, alone. Not looked at when not given.
    type: str
  timeout:
    description: Seconds that stopping the old and starting the new process may take together.
    type: int
    default: 1800
  patience:
    description: Seconds after which to return what the server is doing, with C(waiting); 0 waits for the end.
    type: int
    default: 0
  restarts:
    description: How often the unit had been restarted when the wait began, as an earlier call returned it.
    type: int
  pools:
    description: Planned C(max_total_num_tokens) and C(max_running_requests).
    type: dict
    default: {}
  model:
    description: Served model name.
    type: str
    required: true
  tools:
    description: Whether the server has a parser of tool calls, which is then tried.
    type: bool
    default: false
  question:
    description: Chat question to ask.
    type: str
    default: What is 17 + 25? Answer with the number only.
  answer:
    description: What the answer must contain.
    type: str
    default: "42"
attributes:
  action: {support: full, description: It shows what the engine is doing while it waits.}
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
waiting:
  description: Whether the server is still on its way; its action plugin then asks again.
  returned: success
  type: bool
stage:
  description: What it is doing, from the engine's own lines.
  returned: when waiting
  type: str
diagnosis:
  description: >-
    Why it failed, of the signatures that the action plugin knows: C(id), C(cause), C(evidence) (a line of its journal),
    C(cure), C(stage), C(cured_by) (C(plan), C(operator) or C(none)); absent where none matches.
  returned: failure
  type: dict
journal:
  description: Last lines of the server's journal.
  returned: failure
  type: list
  elements: str
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.warnings import warn
from ansible.module_utils.sglang_pve import drafting, fits, fleet, gate, host, occupied, server

# A server that ends this soon after its first answer was never ready.
STEADY_S = 1.0


class Unit:
    """Says whether there is something to wait for."""

    def __init__(self, item, restarts):
        self.item = item
        self.restarts = self.state().get("restarts") or 0 if restarts is None else restarts

    def state(self):
        return host.unit_states([self.item.unit]).get(self.item.unit, {})

    def gone(self):
        said = gate.gone(self.state(), self.restarts)
        return f"{self.item.unit} {said}" if said else ""


def lines_since_start(item):
    """The journal of the unit's present run."""
    run = server.systemctl("show", "--property", "InvocationID", "--value", item.unit).strip()
    return server.journal_tail(item.unit, 400, f"_SYSTEMD_INVOCATION_ID={run}") if run else []


def prove(wanted, item, unit):
    """What the server reports, or None when it is still on its way after ``patience`` seconds."""
    base = fleet.base_url({"host": wanted["host"], "port": str(wanted["port"])})
    deadline = time.monotonic() + wanted["timeout"]

    def left():
        # A server that works through a long queue answers late, and is no worse for that.
        return max(deadline - time.monotonic(), 120)

    def not_ready():
        # While the old release drains, its process may still answer.
        running = server.process_environment(int(unit.state().get("main_pid") or 0)).get("SGLANG_PVE_RELEASE")
        if running != wanted["release"]:
            return f"{item.unit} did not run release {wanted['release']} but {running or 'nothing'}"
        return "" if gate.healthy(base) else f"{base}/health was not 200"

    until = time.monotonic() + wanted["patience"] if wanted["patience"] else float("inf")
    if not gate.wait_until_ready(not_ready, unit.gone, deadline, until=until):
        return None
    ready = time.monotonic()
    gate.ask(base, wanted["question"], wanted["answer"], wanted["model"], left())
    gate.coherent(base, wanted["model"], left())
    if wanted["tools"]:
        gate.call_tool(base, wanted["model"], left())
    pools = gate.read_pools(base)
    # The questions above were the warm-up. A server that only drafts in vain serves, so this does not stop it.
    for finding in drafting.judge(drafting.accept_length(base)):
        warn(finding.sentence())
    gate.compare_pools(pools, wanted["pools"])
    wrong = occupied.misplaced(item, wanted["port"], wanted["gpu_uuid"]) if wanted["gpu_uuid"] else ""
    time.sleep(max(ready + STEADY_S - time.monotonic(), 0))
    gone = unit.gone() or wrong
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
            "gpu_uuid": {"type": "str"},
            "timeout": {"type": "int", "default": 1800},
            "patience": {"type": "int", "default": 0},
            "restarts": {"type": "int"},
            "pools": {"type": "dict", "default": {}},
            "model": {"type": "str", "required": True},
            "tools": {"type": "bool", "default": False},
            "question": {"type": "str", "default": "What is 17 + 25? Answer with the number only."},
            "answer": {"type": "str", "default": "42"},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="known after the server has started")
    item = server.Server(module.params["index"])
    begun = time.monotonic()
    unit = Unit(item, module.params["restarts"])
    try:
        pools = prove(module.params, item, unit)
    except gate.GateError as error:
        journal = server.journal_tail(item.unit)
        said = server.evidence(journal)
        now = unit.state()
        # The runs of this wait only: an earlier failure is not this one's.
        runs = server.unit_runs(item.unit, most=1 + max((now.get("restarts") or 0) - unit.restarts, 0))
        ended = now.get("active") != "active" and (now.get("active") != "activating" or now["sub"] == "auto-restart")
        module.fail_json(
            msg=f"{item.name}: {error}" + (f". It said: {said}" if said else ""),
            why=f"{item.name}: {error}",
            journal=journal[-25:],
            runs=runs,
            unit=now if ended else {},
            kernel=server.kernel_tail() if ended else [],
            fits=fits.of_release(
                item.release_directory(module.params["release"]), [line for run in runs for line in run]
            ),
        )
    seconds = round(time.monotonic() - begun, 1)
    if pools is None:
        stage = gate.stage(lines_since_start(item))
        module.exit_json(changed=False, waiting=True, stage=stage, restarts=unit.restarts, seconds=seconds)
    module.exit_json(changed=False, waiting=False, pools=pools, seconds=seconds)


if __name__ == "__main__":
    main()
