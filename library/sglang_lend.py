#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lend a server's GPU to somebody else, and take it back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_lend
short_description: Lend a server's GPU, and take it back
description:
  - With O(state=lent) the server lets its running requests finish within its unit's C(TimeoutStopSec), stops, and stays
    stopped over reboots and deployments. The card must be free afterwards, else whoever holds its memory is named.
  - With O(state=returned) the loan is over. The server is not started; a deployment or a start does that.
  - A second request of the same person may give another O(reason); that of somebody else is refused.
  - Both are kept in the history. Ends no process but through the server's own unit.
options:
  index:
    description: Index of the GPU.
    type: int
    required: true
  state:
    description: Whether the card is lent.
    type: str
    choices: [lent, returned]
    required: true
  who:
    description: Who asked.
    type: str
    default: ""
  reason:
    description: Why.
    type: str
    default: ""
  history:
    description: The history.
    type: path
    default: /var/lib/sglang/history.jsonl
  free_mib:
    description: MiB of GPU memory that may be in use on a card that counts as free.
    type: int
    default: 1024
  timeout:
    description: Seconds to wait for the card's memory after the server has stopped.
    type: int
    default: 30
attributes:
  check_mode: {support: full, description: Says whether it would lend or take back.}
  diff_mode: {support: none, description: A loan is made or it is not.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: A training run wants GPU 3
  sglang_lend: {index: 3, state: lent, who: ada, reason: fine-tuning until Friday}
"""

RETURN = r"""
loan:
  description: Who has the card, since when and why; empty when nobody has.
  returned: success
  type: dict
gpu_used_mib:
  description: GPU memory in use after the server stopped.
  returned: when lent outside check mode
  type: int
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import gpus, history, host, server


def card_of(item):
    uuid = server.observe(item, {}, {})["parameters"].get("gpu_uuid")
    seen = gpus.query()
    found = [gpu for gpu in seen["gpus"] if gpu["uuid"] == uuid or (not uuid and gpu["index"] == item.index)]
    return (found[0] if found else None), seen["processes"] or []


def wished(module, item, loan):
    """The loan as it is to be. Fails for a server that is not deployed, and for a card that somebody else has."""
    who, reason = module.params["who"], module.params["reason"]
    if loan is None:
        unit = host.unit_states([item.unit])[item.unit]
        seen = server.observe(item, unit, {})
        if seen["release"] is None and server.is_stopped(seen):
            module.fail_json(
                msg=f"{item.name} is not deployed on this container, so nothing of ours is on its card; "
                "to keep that so, leave it out of the inventory"
            )
        return {"who": who, "since": history.timestamp(), "reason": reason}
    if who != loan["who"]:
        module.fail_json(
            msg=f"{item.name} is lent to {loan['who'] or 'somebody'} since {loan['since']} "
            f"({loan['reason'] or 'no reason given'}), and {who or 'somebody else'} asks for it. Agree with them, or "
            "give it back with playbooks/undrain.yml first"
        )
    return {**loan, "reason": reason or loan["reason"]}


def wait_until_free(module, item):
    """GPU memory in use, in MiB, once it is at most free_mib. Fails with who holds it when it does not come to that."""
    deadline = time.monotonic() + module.params["timeout"]
    while True:
        card, processes = card_of(item)
        if card is None:
            module.fail_json(msg=f"{item.name}: nvidia-smi does not show its card; see playbooks/preflight.yml")
        used = card["memory_used_mib"] or 0
        if used <= module.params["free_mib"]:
            return used
        if time.monotonic() > deadline:
            holders = [f"pid {one['pid']} ({one['name']})" for one in processes if one["uuid"] == card["uuid"]]
            module.fail_json(
                msg=f"{item.name} has stopped, but {used} MiB of its card are in use by "
                f"{', '.join(holders) or 'no process that this container sees'}; expected at most "
                f"{module.params['free_mib']} MiB. End that process yourself; nothing here ends what it did not start"
            )
        time.sleep(1)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "index": {"type": "int", "required": True},
            "state": {"type": "str", "choices": ["lent", "returned"], "required": True},
            "who": {"type": "str", "default": ""},
            "reason": {"type": "str", "default": ""},
            "history": {"type": "path", "default": "/var/lib/sglang/history.jsonl"},
            "free_mib": {"type": "int", "default": 1024},
            "timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    item = server.Server(wanted["index"])
    loan = server.read_loan(item)
    try:
        if wanted["state"] == "returned":
            if loan is not None and not module.check_mode:
                server.loan_note(item).unlink(missing_ok=True)
                history.append(Path(wanted["history"]), [{"event": "returned", "server": item.name}])
            module.exit_json(changed=loan is not None, loan={})
        wish = wished(module, item, loan)
        if module.check_mode:
            module.exit_json(changed=wish != loan, loan=wish)
        if wish != loan:
            server.write_atomic(server.loan_note(item), server.loan_text(wish))
            history.append(Path(wanted["history"]), [{"event": "lent", "server": item.name, **wish}])
        if server.stop(item):
            module.warn(f"{item.name}: requests that outlasted its stop timeout were ended")
    except (server.ServerError, OSError) as error:
        module.fail_json(msg=f"{item.name}: {error}")
    module.exit_json(changed=wish != loan, loan=wish, gpu_used_mib=wait_until_free(module, item))


if __name__ == "__main__":
    main()
