#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring one server to a release."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_server
short_description: Bring the server of one GPU to a release, or take it away
description:
  - Writes the server's parameters, its unit's drop-in and the link that names its release, and restarts its unit when
    what runs is not what is wanted. Does not wait; M(sglang_gate) does.
  - Before anything is touched it looks whether the server's ports and its card are free. What others hold there is
    named, and nothing is changed. A process that an earlier server of ours left behind is ended.
  - With O(state=stopped) the server lets running requests finish within its unit's C(TimeoutStopSec) and stops; it
    keeps its link, and the next boot starts it again.
  - With O(state=absent) the server is stopped and disabled and its link removed; releases stay.
  - Ends no other process but through the server's own unit.
options:
  index:
    description: Index of the GPU; the unit is C(sglang@INDEX.service).
    type: int
    required: true
  state:
    description: Whether the server is to run.
    type: str
    choices: [present, stopped, absent]
    default: present
  release:
    description: Id of the release. Required when present.
    type: str
  restart:
    description: Stop the server and start it, also when what runs is what is wanted.
    type: bool
    default: false
  parameters:
    description: What is the server's own and not the release's (C(gpu_uuid), C(card), C(host), C(port), ...).
    type: dict
    default: {}
  argv:
    description: Flags of the wanted release, shown in a diff beside those of the present one.
    type: list
    elements: str
    default: []
  root:
    description: Where releases and servers are.
    type: path
    default: /opt/sglang
  record:
    description: Keep in the history that the server was given O(release), when anything changed.
    type: bool
    default: false
  history:
    description: The history, with O(record).
    type: path
    default: /var/lib/sglang/history.jsonl
attributes:
  check_mode: {support: full, description: Says why the server would restart; needs no release on disk.}
  diff_mode: {support: full, description: Shows release, parameters and flags before and after, one a line.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Server of GPU 3 to its release
  sglang_server:
    index: 3
    release: 1f0c2d3e4a5b
    parameters: {gpu_uuid: GPU-8f..., card: c, host: 127.0.0.1, port: 30003, nccl_port: 31003, numa_node: 0}

- name: No server on GPU 7 any more
  sglang_server: {index: 7, state: absent}
"""

RETURN = r"""
reasons:
  description: Why the server was, or in check mode would be, restarted or stopped.
  returned: always
  type: list
  elements: str
ended:
  description: Processes of an earlier server of ours that were ended, or in check mode would be.
  returned: when present
  type: list
  elements: int
previous:
  description: C(release) and C(parameters) of before, to go back to.
  returned: always
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import history, host, occupied, release, server


def _described(name, parameters, argv):
    lines = [f"release {name or 'none'}"]
    lines += [f"{key}={value}" for key, value in sorted(parameters.items())]
    flags = []
    for word in argv:
        if word.startswith("--") or not flags:
            flags.append(word)
        else:
            flags[-1] += f" {word}"
    return "\n".join(lines + flags) + "\n"


def _argv_on_disk(item, name):
    try:
        return release.load(item.release_directory(name))["plan"]["argv"] if name else []
    except release.ReleaseError:
        return []


def make_room(item, wanted, seen, dry_run):
    """End what earlier servers of ours left, and return it. Raises ServerError for what others hold."""
    orphans, others = occupied.clear(item, wanted["parameters"], server.is_running(seen))
    if others:
        raise server.ServerError(
            f"{'; '.join(others)}. Expected its ports and card free for {item.unit}. "
            "End that yourself, or give the server another port; this server was not touched"
        )
    if orphans and not dry_run:
        occupied.end(orphans)
    return orphans


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "index": {"type": "int", "required": True},
            "state": {"type": "str", "choices": ["present", "stopped", "absent"], "default": "present"},
            "release": {"type": "str"},
            "restart": {"type": "bool", "default": False},
            "parameters": {"type": "dict", "default": {}},
            "argv": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/opt/sglang"},
            "record": {"type": "bool", "default": False},
            "history": {"type": "path", "default": "/var/lib/sglang/history.jsonl"},
        },
        required_if=[("state", "present", ("release",))],
        supports_check_mode=True,
    )
    wanted = module.params
    item = server.Server(wanted["index"], Path(wanted["root"]))
    unit = host.unit_states([item.unit]).get(item.unit, {})
    seen = server.observe(item, unit, server.process_environment(int(unit.get("main_pid") or 0)))
    previous = {"release": seen["release"], "parameters": seen["parameters"]}
    before = _described(seen["release"], seen["parameters"], _argv_on_disk(item, seen["release"]))
    ended = []
    try:
        if wanted["state"] == "stopped":
            why = [] if server.is_stopped(seen) else [f"{item.unit} is to be stopped"]
            after = before
            if why and not module.check_mode and server.stop(item):
                module.warn(f"{item.name}: requests that outlasted its stop timeout were ended")
        elif wanted["state"] == "absent":
            present = item.directory.exists() or server.is_running(seen) or unit.get("enabled") == "enabled"
            why = [f"{item.unit} is not wanted any more"] if present else []
            after = ""
            if present and not module.check_mode:
                server.remove(item)
                # A card that is given back for good is not lent any more.
                server.loan_note(item).unlink(missing_ok=True)
        else:
            conf = item.release_directory(wanted["release"]) / "unit.conf"
            drop_in = conf.read_text(encoding="utf-8") if conf.is_file() else None
            why = server.reasons(seen, wanted["release"], wanted["parameters"], drop_in)
            after = _described(wanted["release"], wanted["parameters"], wanted["argv"])
            if wanted["restart"] and not why:
                why = ["a restart was asked for"]
            if why:
                ended = make_room(item, wanted, seen, module.check_mode)
            if ended:
                module.warn(f"{item.name}: what an earlier server of ours left was ended: pid {ended}")
            if why and not module.check_mode:
                if wanted["restart"] and server.stop(item):
                    module.warn(f"{item.name}: requests that outlasted its stop timeout were ended")
                server.point(item, wanted["release"], wanted["parameters"])
                server.start(item)
                if wanted["record"]:
                    entry = {"event": "activated", "server": item.name, "release": wanted["release"]}
                    history.append(Path(wanted["history"]), [entry])
    except (server.ServerError, history.HistoryError, OSError) as error:
        module.fail_json(msg=f"{item.name}: {error}", previous=previous)
    diff = {"before_header": item.name, "after_header": item.name, "before": before, "after": after} if why else {}
    module.exit_json(changed=bool(why), reasons=why, ended=ended, previous=previous, diff=diff)


if __name__ == "__main__":
    main()
