# SPDX-License-Identifier: GPL-3.0-or-later
"""Name this run as the lock's owner, and take the lock over from a run of this machine that is gone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import lock


class ActionModule(ActionBase):
    """Arguments: state and ttl, as the module documents them. The step is the play."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        # A task runs in a worker; its parent is the ansible-playbook that holds the lock.
        owner = lock.owner_of(os.getppid(), self._doing(task_vars))
        arguments = {**self._task.args, "owner": owner, "step": task_vars["ansible_play_name"]}
        result = self._execute_module("sglang_lock", arguments, task_vars=task_vars)
        holder = result.get("holder")
        if result.get("failed") and holder and lock.is_dead(holder["owner"]):
            arguments["over"] = holder["owner"]
            result = self._execute_module("sglang_lock", arguments, task_vars=task_vars)
        before = result.get("taken_over")
        if before:
            owner = before["owner"]
            result.setdefault("warnings", []).append(
                f"took over the lock of {owner['user']}@{owner['host']} (pid {owner['pid']}, {owner['doing']}, step "
                f"{before['step']}), which ended or ran out of time without giving it back"
            )
        return result

    @staticmethod
    def _doing(task_vars):
        """The playbook's name is not among the variables of a task; the command line of this run has it."""
        words = [Path(word).name for word in sys.argv if word.endswith((".yml", ".yaml"))]
        return words[-1] if words else task_vars.get("ansible_play_name", "ansible")
