# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a server's journal since a time, and go on printing it while follow is set."""

from __future__ import annotations

import os
import shlex
import time

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

CURSOR = "-- cursor: "
POLL_S = 2.0


class ActionModule(ActionBase):
    """Arguments: unit, name (printed before each line), since (as journalctl takes it), follow, lines (at most)."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args, run = self._task.args, os.getppid()
        query = ["--since", str(args["since"])]
        if args.get("lines"):
            query += ["--lines", str(args["lines"])]
        shown = 0
        # A run that is killed, or whose terminal is closed, does not end this worker of it.
        while os.getppid() == run:
            lines, cursor = self._read(args["unit"], query)
            for line in lines:
                display.display(f"{args['name']}  {line}")
            shown += len(lines)
            if not args.get("follow"):
                break
            if cursor:
                query = ["--after-cursor", cursor]
            time.sleep(POLL_S)
        return {"changed": False, "lines": shown}

    def _read(self, unit, query):
        """The journal's lines and its cursor, behind which the next reading begins."""
        words = [
            "journalctl",
            "--quiet",
            "--no-pager",
            "--output",
            "short-iso",
            "--show-cursor",
            "--unit",
            unit,
            *query,
        ]
        done = self._low_level_execute_command(" ".join(shlex.quote(word) for word in words))
        if done["rc"]:
            raise AnsibleActionFail(f"journalctl failed ({done['rc']}): {done['stderr'].strip()}")
        lines = done["stdout"].splitlines()
        cursor = lines.pop()[len(CURSOR) :] if lines and lines[-1].startswith(CURSOR) else ""
        return lines, cursor
