# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the servers of every container as one table."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import report

display = Display()


class ActionModule(ActionBase):
    """Arguments: containers, a list of {hosts: {gpu3: ct200-gpu3}, state: of fleet_state}."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        rows = [
            row
            for container in self._task.args["containers"]
            for row in report.fleet_rows(container["hosts"], container["state"])
        ]
        display.display(report.table(report.FLEET_HEADER, rows, colour=sys.stdout.isatty()))
        return {"changed": False, "rows": [dict(zip(report.FLEET_HEADER, row)) for row in rows]}
