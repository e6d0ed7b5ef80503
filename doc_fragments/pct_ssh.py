# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of ansible.builtin.ssh, taken from the installed plugin: a copy would age with every release."""

from __future__ import annotations

import yaml
from ansible.plugins.connection import ssh


class ModuleDocFragment:
    DOCUMENTATION = yaml.safe_dump({"options": yaml.safe_load(ssh.DOCUMENTATION)["options"]})
