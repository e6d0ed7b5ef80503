# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose on the controller what every selected server of a container goes back to, or say why none can."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import history


class ActionModule(ActionBase):
    """Arguments: state (of fleet_state), servers (names of those selected), to (a release id, or empty)."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = self._task.args
        state = args["state"]
        try:
            target = self._target(state, args["servers"], args.get("to") or "")
            usable = {server: self._usable(state, server, name) for server, name in target.items()}
        except history.HistoryError as error:
            return {"failed": True, "msg": f"Nothing was touched. {error}"}
        models = {model["path"]: model for model in (manifest["model"] for manifest in usable.values())}
        copies = [
            {"source": model["source"], "target": path} for path, model in models.items() if path != model["source"]
        ]
        return {"changed": False, "target": usable, "copies": copies}

    @staticmethod
    def _target(state, servers, wanted):
        present = {name: state["servers"][name]["release"] for name in servers if name in state["servers"]}
        if not present:
            raise history.HistoryError("no selected server is deployed; deploy with playbooks/site.yml")
        going = state["history"].get("going_back") or {}
        going = {name: release for name, release in going.items() if name in present}
        if not wanted and going.keys() == present.keys() and going != present:
            # An earlier rollback was stopped: this one goes on to where that went.
            return going
        if not wanted:
            return history.line_target(state["history"]["line"], present)
        if wanted not in state["history"]["verified"]:
            known = ", ".join(state["history"]["verified"]) or "none"
            raise history.HistoryError(f"release {wanted} was never verified here; verified releases: {known}")
        return dict.fromkeys(present, wanted)

    @staticmethod
    def _usable(state, server, name):
        entry = state["releases"].get(name)
        if entry is None:
            raise history.HistoryError(f"release {name} is not on the container any more; choose another one")
        if entry["error"]:
            raise history.HistoryError(entry["error"])
        manifest = entry["manifest"]
        if manifest["stack"]["id"] not in state["stacks"]:
            stack = f"{manifest['stack']['name']}, {manifest['stack']['id']}"
            raise history.HistoryError(
                f"the stack of release {name} is gone ({stack}); "
                "choose another release, or deploy it again with playbooks/site.yml"
            )
        if state["stacks"][manifest["stack"]["id"]]["error"]:
            raise history.HistoryError(state["stacks"][manifest["stack"]["id"]]["error"])
        card = state["servers"][server]["parameters"].get("card")
        if manifest["plan"]["card"] != card:
            raise history.HistoryError(f"release {name} is for card {manifest['plan']['card']}, {server} has {card}")
        return manifest
