# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a server's journal since a time, and go on printing it while follow is set."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import threading
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
        threading.Thread(target=self._end_with_the_run, daemon=True).start()
        query = ["--since", str(args["since"])]
        if args.get("lines"):
            query += ["--lines", str(args["lines"])]
        shown = 0
        while True:
            lines, query = self._read(args["unit"], query)
            for line in lines:
                display.display(f"{args['name']}  {line}")
            shown += len(lines)
            if not args.get("follow"):
                break
            time.sleep(POLL_S)
        if not shown:
            display.display(f"{args['name']} has said nothing since {args['since']}", stderr=True)
        return {"changed": False, "lines": shown}

    @staticmethod
    def _end_with_the_run():
        """End this worker when its run is gone: killed, or its terminal closed. Nobody reads what it writes then, so it
        may wait for ever in a write, and for that this is a thread."""
        run = multiprocessing.parent_process().pid
        while os.getppid() == run:
            time.sleep(1)
        os._exit(1)

    def _read(self, unit, query):
        """The journal's lines, and the query that goes on behind them."""
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
        done = self._low_level_execute_command("date +@%s; " + " ".join(shlex.quote(word) for word in words))
        now, *lines = done["stdout"].splitlines()
        # Without a line to show, journalctl ends with 1 as well.
        if done["rc"] and (lines or done["stderr"].strip()):
            raise AnsibleActionFail(f"journalctl failed ({done['rc']}): {done['stderr'].strip()}")
        if lines and lines[-1].startswith(CURSOR):
            return lines[:-1], ["--after-cursor", lines[-1][len(CURSOR) :]]
        # Nothing until now: a relative time would leave out what comes while nobody looks.
        return lines, query if "--after-cursor" in query else ["--since", now]
