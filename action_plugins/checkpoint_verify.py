# SPDX-License-Identifier: GPL-3.0-or-later
"""Verify a checkpoint in slices of a few seconds, and show between them how far it is."""

from __future__ import annotations

import time

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A slice ends with the file that it is in, so this is its least length.
SLICE_S = 5


class ActionModule(ActionBase):
    """Arguments are those of the module. In check mode it is one call, since nothing is kept to go on from."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments, begun, new = dict(self._task.args), time.monotonic(), []
        if self._task.check_mode or arguments.get("seconds"):
            return {**result, **self._execute_module(module_args=arguments, task_vars=task_vars)}
        found = {}
        while True:
            answer = self._execute_module(module_args={**arguments, "seconds": SLICE_S}, task_vars=task_vars)
            if answer.get("failed"):
                return {**result, **answer}
            reading = answer["reading"]
            new += reading["new"]
            found.update({finding["where"]: finding for finding in reading["findings"]})
            if not reading["left"]:
                break
            done, total = reading["bytes_done"] / 2**30, reading["bytes_total"] / 2**30
            speed = done / (time.monotonic() - begun)
            display.display(
                f"{task_vars['inventory_hostname']}: {done:.1f} of {total:.1f} GiB read, {speed:.1f} GiB/s", stderr=True
            )
            # What is not as it should be is not kept, so the next slice would read it again.
            arguments.update(since=answer["since"], skip=sorted(found))
        reading.update(new=sorted(set(new)), left=[], findings=list(found.values()))
        return {**result, **answer, "changed": bool(new), "reading": reading}
