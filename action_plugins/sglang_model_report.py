# SPDX-License-Identifier: GPL-3.0-or-later
"""Print what checkpoints hold and what is wrong with them."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.color import ANSIBLE_COLOR

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_controller import publish
from sglang_pve import checkpoint_report

ORDER = ("good", "doubtful", "broken")


class ActionModule(ActionBase):
    """Arguments: models, a list of {container, report, reading}; json, a file to write, or - to print JSON."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        answers, texts = [], []
        for model in self._task.args["models"]:
            report, reading = model["report"], model.get("reading")
            found = checkpoint_report.findings(report, reading)
            answers.append(
                {
                    "container": model["container"],
                    "verdict": checkpoint_report.verdict(found),
                    "report": {key: value for key, value in report.items() if key != "findings"},
                    "reading": reading and {key: value for key, value in reading.items() if key != "findings"},
                    "findings": [finding.as_dict() for finding in found],
                }
            )
            texts.append(f"{model['container']}\n{checkpoint_report.text(report, reading, ANSIBLE_COLOR)}\n")
        worst = max((answer["verdict"] for answer in answers), key=ORDER.index, default="good")
        answer = {"verdict": worst, "models": answers}
        publish(answer, texts, self._task.args.get("json"))
        return {"changed": False, **answer}
