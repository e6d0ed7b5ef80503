# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a server's journal since a time, and go on printing it while follow is set."""

from __future__ import annotations

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
        args = self._task.args
        query = ["--since", str(args["since"])]
        shown = 0
        while True:
            lines, cursor = self._read(args["unit"], query)
            if not shown and args.get("lines"):
                lines = lines[-int(args["lines"]) :]
            for line in lines:
                display.display(f"{args['name']}  {line}")
            shown += len(lines)
            if not args.get("follow"):
                return {"changed": False, "lines": shown}
            if cursor:
                query = ["--after-cursor", cursor]
            time.sleep(POLL_S)

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
