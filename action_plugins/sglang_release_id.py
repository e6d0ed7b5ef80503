# SPDX-License-Identifier: GPL-3.0-or-later
"""Put a release together on the controller and name it by its content."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_pve import release


class ActionModule(ActionBase):
    """Arguments: stack, model, plan, files. Returns the release as sglang_release takes it."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = self._task.args
        manifest = release.manifest(args["stack"], args["model"], args["plan"])
        files = {name: str(text) for name, text in args["files"].items()}
        name = release.release_id(manifest, files)
        return {"changed": False, "release": {"id": name, "manifest": manifest, "files": files}}
