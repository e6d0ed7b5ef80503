# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the servers of every container as one table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import report

display = Display()


class ActionModule(ActionBase):
    """Arguments: containers, the variables of each container's leader; unreachable, leaders of the others; json, a file
    to write, or - to print JSON in place of the table."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        rows = [
            row
            for container in self._task.args["containers"]
            for row in report.fleet_rows(container["_preflight_inputs"]["names"], container["_status"]["state"])
        ]
        colour = sys.stdout.isatty()
        word, sentences = report.verdict(rows)
        unreachable = self._task.args.get("unreachable", [])
        sentences += [f"{leader}: its container could not be read" for leader in unreachable]
        if unreachable and word == "ready":
            word = "degraded"
        answer = {"verdict": word, "said": sentences, "servers": rows}
        if self._task.args.get("json") == "-":
            display.display(json.dumps(answer, indent=1))
        else:
            display.display(report.fleet_table(rows, colour))
            display.display(f"{report.paint(word, word, colour)}: " + "; ".join(sentences))
        if self._task.args.get("json", "-") not in ("", "-"):
            Path(self._task.args["json"]).write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
        return {"changed": False, **answer}
