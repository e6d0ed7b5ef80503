# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the ladders of plans, one for each card type and everything else that plans depend on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.color import ANSIBLE_COLOR

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_controller import publish
from sglang_pve.findings import Finding, errors
from sglang_pve.plan_report import ladder_text
from sglang_pve.verdict import fold


class ActionModule(ActionBase):
    """Arguments: plans, a list of {server, ladder}; json, a file to write, or - to print JSON in their place."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        groups: dict[str, dict] = {}
        for one in self._task.args["plans"]:
            key = json.dumps(one["ladder"], sort_keys=True)
            groups.setdefault(key, {"servers": [], "ladder": one["ladder"]})["servers"].append(one["server"])
        answer = {"ladders": [{"card": one["ladder"][0]["card"], **one} for one in groups.values()]}
        texts = [
            ladder_text(f"{one['card']}: {fold(one['servers'])}", one["ladder"], ANSIBLE_COLOR) + "\n"
            for one in answer["ladders"]
        ]
        publish(answer, texts, self._task.args.get("json"))
        found = [Finding(**item) for one in answer["ladders"] for item in one["ladder"][0]["findings"]]
        return {"changed": False, **answer, "failed": bool(errors(found)), "msg": "a card has no plan; see above"}
