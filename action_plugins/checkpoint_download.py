# SPDX-License-Identifier: GPL-3.0-or-later
"""Download a checkpoint in slices of a few files, and show between them how far it is."""

from __future__ import annotations

import time

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A slice ends with the files that it is in, so this is its least length.
SLICE_S = 20


class ActionModule(ActionBase):
    """Arguments are those of the module. In check mode it is one call."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments, begun, loaded = dict(self._task.args), time.monotonic(), []
        if self._task.check_mode or arguments.get("seconds"):
            return {**result, **self._execute_module(module_args=arguments, task_vars=task_vars)}
        while True:
            answer = self._execute_module(module_args={**arguments, "seconds": SLICE_S}, task_vars=task_vars)
            if answer.get("failed"):
                return {**result, **answer}
            loaded += answer["loaded"]
            if not answer["left"]:
                return {**result, **answer, "loaded": sorted(loaded), "changed": bool(loaded)}
            # The branch may move while files are loaded; all are to be of one commit.
            arguments["revision"] = answer["commit"]
            done, total = answer["bytes_done"] / 2**30, answer["bytes_total"] / 2**30
            minutes = (time.monotonic() - begun) / 60
            display.display(
                f"{task_vars['inventory_hostname']}: {done:.1f} of {total:.1f} GiB after {minutes:.0f} min", stderr=True
            )
