# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for a server in short calls, show what its engine is doing in between, and say why it failed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_controller import signatures
from sglang_pve import journal

# So long a call waits before it says how far the server has come; a server that starts warm is ready within the first.
PATIENCE_S = 20
# So often a stage that does not change is shown again.
AGAIN_S = 120


class ActionModule(ActionBase):
    """Arguments: those of the module, less patience and restarts."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        timeout, begun, shown = int(args.get("timeout", 1800)), time.monotonic(), ("", 0.0)
        while True:
            passed = time.monotonic() - begun
            args.update(patience=PATIENCE_S, timeout=max(round(timeout - passed), 1))
            result = self._execute_module(module_name="sglang_gate", module_args=args, task_vars=task_vars)
            passed = time.monotonic() - begun
            if not result.get("waiting"):
                if "seconds" in result:
                    result["seconds"] = round(passed, 1)
                return diagnosed(result)
            if result["stage"] != shown[0] or passed - shown[1] > AGAIN_S:
                shown = (result["stage"], passed)
                Display().display(
                    f"{task_vars['inventory_hostname']}: {shown[0]} ({passed:.0f} s of at most {timeout})"
                )
            args["restarts"] = result["restarts"]


def diagnosed(result):
    """The gate's failure with its diagnosis, of the newest run of the server that says something."""
    runs, kernel, unit, limit = (result.pop(name, None) for name in ("runs", "kernel", "unit", "fits"))
    if not result.get("failed") or not runs:
        return result
    known = signatures()
    found = next(filter(None, (journal.diagnose(run, known, unit, kernel or [], limit) for run in runs)), None)
    if found:
        result.update(diagnosis=found, msg=f"{result['why']}. {journal.sentence(found)}")
    return result
