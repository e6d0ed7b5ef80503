# SPDX-License-Identifier: GPL-3.0-or-later
"""For modules that are the documentation of an action plugin: all of their work is done on the controller."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule


def needs_its_action_plugin(name: str) -> None:
    """Fail, as whoever gets here ran the module without the project's plugins."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.fail_json(msg=f"{name} needs its action plugin: run from the project's root, with its ansible.cfg")
