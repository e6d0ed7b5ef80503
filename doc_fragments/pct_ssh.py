# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of ansible.builtin.ssh, taken from the installed plugin: a copy would age with every release."""

from __future__ import annotations

# Every task loads this again in its own process, and these two use libyaml: 5 ms instead of 35.
from ansible.module_utils.common.yaml import yaml_dump, yaml_load
from ansible.plugins.connection import ssh


class ModuleDocFragment:
    DOCUMENTATION = yaml_dump({"options": yaml_load(ssh.DOCUMENTATION)["options"]})
