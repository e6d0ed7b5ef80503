# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the servers of every container as one table."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.color import ANSIBLE_COLOR

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_controller import publish
from sglang_pve import report


class ActionModule(ActionBase):
    """Arguments: leaders, one of each container, which have read it into _status or have tried; json, a file to write,
    or - to print JSON in place of the table."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        containers = [self._container(task_vars["hostvars"][leader]) for leader in self._task.args["leaders"]]
        rows = [row for container in containers for row in container.pop("rows")]
        word, said = report.verdict(rows, [one["unreachable"] for one in containers if one["unreachable"]])
        for container in containers:
            name = f"container {container['vmid']} on {container['node']}"
            said += [f"{name}: {note}" for note in (container["lock"], *container["notes"]) if note]
        answer = {"verdict": word, "said": said, "servers": rows, "containers": containers}
        verdict = f"{report.paint(word, word, ANSIBLE_COLOR)}: " + "\n  ".join(said)
        publish(answer, [report.fleet_table(rows, ANSIBLE_COLOR), verdict], self._task.args.get("json"))
        return {"changed": False, **answer}

    @staticmethod
    def _container(leader):
        """What a leader has read of its container, and the rows of those of its servers that the run selected."""
        inputs, status = leader["_preflight_inputs"], leader["_status"]
        peers, names, state = inputs["peers"], inputs["names"], status.get("state")
        selected = [name for name, host in names.items() if host in peers]
        found = {
            "node": leader["sglang_node"],
            "vmid": int(leader["sglang_vmid"]),
            "unreachable": "" if state else str(status.get("msg", "")) or "it could not be read",
            "lock": state["lock"] if state else "",
            "notes": state["newer"] + state["history"]["notes"] if state else [],
            "history": state["history"]["tail"] if state else [],
        }
        if state is None:
            return {**found, "rows": report.unreachable_rows(names, selected)}
        everything = len(selected) == len(names)
        return {**found, "rows": report.fleet_rows(names, state, None if everything else selected)}
