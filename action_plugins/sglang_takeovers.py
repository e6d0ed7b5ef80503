# SPDX-License-Identifier: GPL-3.0-or-later
"""Show on the controller which servers of others are taken over, and by what."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import preflight_foreign, report

display = Display()


class ActionModule(ActionBase):
    """Arguments: state (of fleet_state), servers, rollouts (what each is to run), confirmed."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = self._task.args
        rollouts = {server["name"]: item for server, item in zip(args["servers"], args["rollouts"])}
        found = preflight_foreign.takeovers(args["state"], args["servers"])
        rows = [
            {"server": server, "was": found[server["name"]], "to": rollouts[server["name"]]}
            for server in args["servers"]
            if server["name"] in found
        ]
        display.display(report.takeovers_text(rows, args["confirmed"]))
        shown = {
            row["server"]["name"]: {key: row["was"][key] for key in ("pid", "started") if not row["was"]["stopped"]}
            for row in rows
        }
        return {"changed": False, "names": list(shown), "shown": shown}
