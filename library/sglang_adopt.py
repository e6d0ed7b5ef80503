#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take over a server that somebody runs by hand, or give it back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_adopt
short_description: Take over an SGLang server that somebody runs by hand, or give it back
description:
  - With O(state=taken) the server that was shown is stopped, so that ours can have its GPU. Its unit is stopped and
    disabled, and its file stays; a process without a unit gets SIGTERM, after proof by its start time that it is the
    same one. How it was started is noted first, for root alone, in C(/run/sglang-pve/adopt).
  - With O(state=kept) ours has passed its gate; the note is removed and the history has it.
  - With O(state=returned) ours has not passed. The unit is enabled as it was and started; a process is started again
    with its own words, directory, environment, user and output where that makes the same server, and what to run is
    said where it does not.
options:
  index:
    description: Index of the GPU.
    type: int
    required: true
  state:
    description: What is to become of the old server.
    type: str
    choices: [taken, kept, returned]
    required: true
  shown:
    description: C(pid) and C(started) of the process that was shown; empty to go on where an earlier run stopped.
    type: dict
    default: {}
  timeout:
    description: Seconds that it may take to stop, or to answer again.
    type: int
    default: 120
  kill:
    description: End with SIGKILL what has not stopped in time.
    type: bool
    default: false
  history:
    description: The history to append to.
    type: path
    default: /var/lib/sglang/history.jsonl
attributes:
  check_mode: {support: full, description: It stops and starts nothing.}
  diff_mode: {support: none, description: What is stopped is no configuration.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Take over what runs on GPU 3
  sglang_adopt:
    index: 3
    state: taken
    shown: {pid: 412, started: "18231"}
"""

RETURN = r"""
was:
  description: The old server; C(pid), C(user), C(unit), C(how), C(port), C(argv) without secrets. Empty without one.
  returned: success
  type: dict
serves:
  description: Whether the old server answers again.
  returned: when returned
  type: bool
said:
  description: What was done, in words.
  returned: when returned
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import adopt, history, server


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "index": {"type": "int", "required": True},
            "state": {"type": "str", "choices": ["taken", "kept", "returned"], "required": True},
            "shown": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 120},
            "kill": {"type": "bool", "default": False},
            "history": {"type": "path", "default": "/var/lib/sglang/history.jsonl"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    index, name, past = wanted["index"], f"gpu{wanted['index']}", Path(wanted["history"])
    note = adopt.read_note(name)
    if module.check_mode:
        module.exit_json(changed=bool(wanted["shown"] or note), was=note["was"] if note else {})
    try:
        if wanted["state"] == "taken":
            note = adopt.take(index, wanted["shown"], wanted["timeout"], wanted["kill"])
            module.exit_json(changed=bool(wanted["shown"]), was=note["was"])
        if note is None:
            module.exit_json(changed=False, was={}, serves=False, said="Nothing was taken over.")
        if wanted["state"] == "kept":
            adopt.expect_none(index)
            history.append(past, [{"event": "adopted", "server": name, "was": note["was"]}])
            adopt.forget(name)
            module.exit_json(changed=True, was=note["was"])
        serves, said = adopt.give_back(note, wanted["timeout"])
        history.append(past, [{"event": "given_back", "server": name, "was": note["was"], "serves": serves}])
        if serves:
            adopt.forget(name)
    except (adopt.AdoptError, server.ServerError, OSError) as error:
        module.fail_json(msg=f"{name}: {error}")
    module.exit_json(changed=True, was=note["was"], serves=serves, said=said)


if __name__ == "__main__":
    main()
