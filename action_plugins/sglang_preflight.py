# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the state of a container on the controller, and gather the facts that its rules are judged by."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import facts, findings, preflight, preflight_foreign


class ActionModule(ActionBase):
    """Arguments as library/sglang_preflight.py documents them. Prints and fails for nothing: sglang_rules does."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = self._task.args
        state = args["state"]
        found = [findings.Finding(**item) for item in args.get("findings", [])]
        found += preflight.judge(state, args["servers"], args["needs"]["stack_id"])
        found += preflight_foreign.judge(state, args["servers"], args.get("adopting", False))
        found += [self._unread(note) for note in args.get("pve_notes") or []]
        base = facts.of_container(
            state, args["stack"], args["needs"], args.get("pve") or {}, args["cuda_home"], args["staged"]
        )
        return {
            "changed": False,
            "findings": [item.as_dict() for item in found],
            "facts": base,
            "cards": {server["host"]: self._card(state, server) for server in args["servers"]},
            "waive": args.get("waive") or {},
            "plannable": state["gpus"]["status"] == "ok" and not findings.errors(found),
        }

    @staticmethod
    def _unread(note):
        expected = "what the node knows of its driver and of the container"
        cure = "Reach the node as root (ansible_user or ansible_become there), or set sglang_api_url (docs/proxmox.md)."
        return findings.Finding("node-unread", "not checked", note, expected, cure)

    @staticmethod
    def _card(state, server):
        """The server's card, unless it is not there, or lent: whoever uses it then is meant to."""
        if (state["servers"].get(server["name"]) or {}).get("lent"):
            return None
        return next((card for card in state["gpus"]["gpus"] if card["index"] == server["index"]), None)
