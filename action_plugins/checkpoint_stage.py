# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage checkpoints and show how far the copy is; where nothing is to be copied it is one call of the module."""

from __future__ import annotations

import itertools
import shlex
import time
import uuid

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A small copy is not waited for longer than it takes.
POLLS_S = (0.5, 1.0, 2.0)
POLL_S = 5.0
# A copy that takes longer than a day is stuck.
LIMIT_S = 24 * 3600


class ActionModule(ActionBase):
    """Arguments are those of the module."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        look_only = self._task.check_mode
        self._task.check_mode = True
        look = self._execute_module(task_vars=task_vars)
        self._task.check_mode = look_only
        if look_only or look.get("failed") or not look["changed"]:
            return {**result, **look}
        if not look["staged"]:
            return {**result, **self._execute_module(task_vars=task_vars)}
        return {**result, **self._copy(task_vars)}

    def _copy(self, task_vars):
        """Let Ansible's own machinery for long tasks run the module, so that a broken connection does not end it."""
        progress = f"/run/sglang-staging-{uuid.uuid4().hex}"
        # Below the home directory it would be on a disk that may be full, and HOME need not be that of the account.
        self._connection._shell.set_option("async_dir", "/run/sglang-jobs")
        self._task.async_val = LIMIT_S
        job = self._execute_module(
            module_args={**self._task.args, "progress": progress}, task_vars=task_vars, wrap_async=True
        )
        self._task.async_val = 0
        if "ansible_job_id" not in job:
            return job
        host, shown = task_vars["inventory_hostname"], 0
        for pause in itertools.chain(POLLS_S, itertools.repeat(POLL_S)):
            time.sleep(pause)
            status = self._status(job["ansible_job_id"], "status", task_vars)
            lines = status.get("log", []) if status["finished"] else self._read(progress)
            for line in lines[shown:]:
                display.display(f"{host}: {line}")
            shown = max(shown, len(lines))
            if status["finished"]:
                break
        self._status(job["ansible_job_id"], "cleanup", task_vars)
        return {key: value for key, value in status.items() if key not in ("started", "finished", "results_file")}

    def _read(self, progress):
        # The file goes when the copy ends, which may be just now.
        done = self._low_level_execute_command(f"cat {shlex.quote(progress)} 2>/dev/null || true")
        return done["stdout"].splitlines()

    def _status(self, job, mode, task_vars):
        task = self._task.copy()
        task.args = {"jid": job, "mode": mode}
        action = self._shared_loader_obj.action_loader.get(
            "ansible.legacy.async_status",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        status = action.run(task_vars=task_vars)
        if "finished" not in status:
            raise AnsibleActionFail(f"the copy's state cannot be read: {status.get('msg')}; run again, it is taken up")
        return status
