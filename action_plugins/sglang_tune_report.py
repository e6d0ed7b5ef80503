# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the plans that are measured, or what was measured, and choose the fastest."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_controller import publish
from sglang_pve import tuning


class ActionModule(ActionBase):
    """Arguments: server; trials, as tuning.text takes them; json, a file to write."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = self._task.args
        trials = args["trials"]
        best = tuning.winner(trials)
        answer = {"server": args["server"], "trials": trials, "winner": dict(best) if best else {}}
        publish(answer, [tuning.text(args["server"], trials) + "\n"], args.get("json"))
        return {"changed": False, **answer}
