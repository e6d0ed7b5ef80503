# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person sees of a run: of a playbook that reports, its report; of any other, what Ansible shows."""

from __future__ import annotations

DOCUMENTATION = r"""
name: sglang_screen
type: stdout
short_description: Ansible's own output, without its frame around a report
description:
  - Of playbooks that report (REPORTS) only the report and failures are printed, so that it can be read, and
    piped to a program. With C(-v) everything is.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
author: [sglang-pve]
"""

from pathlib import Path

from ansible.plugins.callback.default import CallbackModule as Default

REPORTS = ("status.yml", "logs.yml", "verify_model.yml", "plan.yml", "diagnose.yml")


class CallbackModule(Default):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "sglang_screen"

    _bare = False

    def v2_playbook_on_start(self, playbook):
        self._bare = Path(playbook._file_name).name in REPORTS and not self._display.verbosity
        super().v2_playbook_on_start(playbook)

    def v2_playbook_on_play_start(self, play):
        if not self._bare:
            super().v2_playbook_on_play_start(play)
        self._play = play

    def v2_playbook_on_task_start(self, task, is_conditional):
        if not self._bare:
            super().v2_playbook_on_task_start(task, is_conditional)

    def v2_runner_on_ok(self, result):
        if not self._bare:
            super().v2_runner_on_ok(result)
        else:
            self._handle_warnings_and_exception(result)

    def v2_runner_item_on_ok(self, result):
        if not self._bare:
            super().v2_runner_item_on_ok(result)
        else:
            self._handle_warnings_and_exception(result)

    def v2_runner_item_on_skipped(self, result):
        if not self._bare:
            super().v2_runner_item_on_skipped(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not (self._bare and ignore_errors):
            super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_on_unreachable(self, result):
        if not (self._bare and result.task.ignore_unreachable):
            super().v2_runner_on_unreachable(result)

    def v2_playbook_on_stats(self, stats):
        if not self._bare:
            super().v2_playbook_on_stats(stats)
