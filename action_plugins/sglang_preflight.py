# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the state of a container on the controller, print the findings, and fail on an error."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.color import ANSIBLE_COLOR
from ansible.utils.display import Display

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import findings, preflight, preflight_foreign, report

display = Display()


class ActionModule(ActionBase):
    """Arguments: findings (made elsewhere), and what to judge: state (of fleet_state), servers, needs, adopting."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = self._task.args
        found = findings.merged(findings.Finding(**item) for item in args.get("findings", []))
        if "state" in args:
            found += preflight.judge(args["state"], args["servers"], args["needs"])
            found += preflight_foreign.judge(args["state"], args["servers"], args.get("adopting", False))
        if found:
            display.display(report.findings_table(found, colour=ANSIBLE_COLOR))
        errors = findings.errors(found)
        if errors:
            return {"failed": True, "msg": "Nothing was touched. " + "\n".join(item.sentence() for item in errors)}
        return {"changed": False, "findings": [item.as_dict() for item in findings.worst_first(found)]}
