# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for a server in short calls, and show what its engine is doing in between."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parent.parent
# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(PROJECT / "module_utils"))
from sglang_pve import journal

# So long a call waits before it says how far the server has come; a server that starts warm is ready within the first.
PATIENCE_S = 20
# So often a stage that does not change is shown again.
AGAIN_S = 120


class ActionModule(ActionBase):
    """Arguments: those of the module, less patience, restarts and signatures."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = {**self._task.args, "signatures": read_signatures()}
        timeout, begun, shown = int(args.get("timeout", 1800)), time.monotonic(), ("", 0.0)
        while True:
            passed = time.monotonic() - begun
            args.update(patience=PATIENCE_S, timeout=max(round(timeout - passed), 1))
            result = self._execute_module(module_name="sglang_gate", module_args=args, task_vars=task_vars)
            passed = time.monotonic() - begun
            if not result.get("waiting"):
                if "seconds" in result:
                    result["seconds"] = round(passed, 1)
                return result
            if result["stage"] != shown[0] or passed - shown[1] > AGAIN_S:
                shown = (result["stage"], passed)
                Display().display(
                    f"{task_vars['inventory_hostname']}: {shown[0]} ({passed:.0f} s of at most {timeout})"
                )
            args["restarts"] = result["restarts"]


def read_signatures(directory=PROJECT / "signatures"):
    """Every signature of a failure, as the modules take them."""
    try:
        files = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in directory.glob("*.yml")}
        return journal.load(files)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, journal.SignatureError) as error:
        raise AnsibleActionFail(f"the signatures of failures cannot be used: {' '.join(str(error).split())}") from error
