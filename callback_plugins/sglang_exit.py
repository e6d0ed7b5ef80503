# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets a playbook choose its exit status: a fleet that is degraded is neither well nor an error of Ansible."""

from __future__ import annotations

DOCUMENTATION = r"""
name: sglang_exit
type: aggregate
short_description: Exit status of a playbook that reports
description:
  - A run without failures ends with the number that C(set_stats) put into C(sglang_exit_status).
  - playbooks/status.yml uses it: 0 well, 1 degraded, 2 down.
author: [sglang-pve]
"""

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "sglang_exit"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_stats(self, stats):
        status = int(stats.custom.get("_run", {}).get("sglang_exit_status", 0))
        if status and not (stats.failures or stats.dark):
            # Ansible hides every Exception of a callback; this is none, and runs its clean-up.
            raise SystemExit(status)
