#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install a stack in a container, or say what its wheelhouse lacks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_stack
short_description: Install a locked stack in a container, offline
description:
  - Builds C(ROOT/STACK_ID) with uv from a lock with hashes and a wheelhouse in the container. Uses no network.
  - Every wheel is found and hashed before anything is installed. A stack that is complete is left alone; one whose
    install was killed is removed and built again.
  - In check mode nothing is written. The Python, glibc, free space and the wheelhouse are looked at; a wheelhouse that
    is not there or not full is a warning then, since an earlier task may be the one that fills it.
options:
  state:
    description:
      - V(present) installs the stack.
      - V(wheels) changes nothing and returns which wheels O(wheelhouse) lacks, none where the stack is installed.
    type: str
    choices: [present, wheels]
    default: present
  name:
    description: The stack's name, for messages and its C(stack.json).
    type: str
    required: true
  stack_id:
    description: The stack's id, as M(sglang_stack_info) gives it.
    type: str
    required: true
  lock:
    description: The lock's text.
    type: str
    required: true
  engine:
    description: The version of sglang that must be there after the install.
    type: str
    required: true
  uv:
    description: The installer's own wheel in O(wheelhouse).
    type: dict
    required: true
    suboptions:
      wheel: {description: Its file name., type: str, required: true}
      sha256: {description: Its SHA-256., type: str, required: true}
  wheelhouse:
    description: The directory in the container with the wheels.
    type: path
    required: true
  root:
    description: Where stacks are; uv itself goes to C(tools) beside it.
    type: path
    default: /opt/sglang/stacks
  python:
    description: The interpreter that the stack is built on.
    type: path
    default: /usr/bin/python3
  imports:
    description: Modules that must import in the new stack.
    type: list
    elements: str
    default: []
  python_versions:
    description: The Python versions (major.minor) that the lock holds files for; empty means any.
    type: list
    elements: str
    default: []
  glibc_min:
    description: The least glibc; empty means any.
    type: str
    default: ""
  disk_gib:
    description: GiB that must be free for O(root) before the install.
    type: float
    default: 0
  lane:
    description: The stack's lane; libraries of another CUDA are refused. Empty means that none is looked at.
    type: str
    choices: ["", cu130, cu12]
    default: ""
  cuda_exceptions:
    description: A reason for each pattern of libraries (paths below C(site-packages)) that may need another CUDA.
    type: dict
    default: {}
attributes:
  check_mode: {support: full, description: Says what it would install.}
  diff_mode: {support: none, description: A stack is new as a whole.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Read the stack's data on the controller
  sglang_stack_info:
    name: "{{ sglang_stack }}"
    stacks_dir: "{{ sglang_stacks_dir }}"
    python: "3.11"
  register: _info

- name: See which wheels the container lacks
  sglang_stack:
    state: wheels
    name: "{{ _info.stack.name }}"
    stack_id: "{{ _info.stack.id }}"
    lock: "{{ _info.stack.lock }}"
    engine: "{{ _info.stack.engine }}"
    uv: "{{ _info.stack.uv }}"
    wheelhouse: /opt/sglang/wheelhouse
  register: _wheels

- name: Install the stack
  sglang_stack:
    name: "{{ _info.stack.name }}"
    stack_id: "{{ _info.stack.id }}"
    lock: "{{ _info.stack.lock }}"
    engine: "{{ _info.stack.engine }}"
    uv: "{{ _info.stack.uv }}"
    imports: "{{ _info.stack.imports }}"
    python_versions: "{{ _info.stack.python }}"
    glibc_min: "{{ _info.stack.glibc_min | default('') }}"
    disk_gib: "{{ _info.stack.disk_gib | default(0) }}"
    lane: "{{ _info.stack.lane | default('') }}"
    cuda_exceptions: "{{ _info.stack.cuda_exceptions | default({}) }}"
    wheelhouse: /opt/sglang/wheelhouse
"""

RETURN = r"""
directory:
  description: The stack's directory.
  returned: success
  type: str
installed:
  description: Whether the stack was complete before this task.
  returned: success
  type: bool
lacking:
  description: What the wheelhouse cannot give, with C(requirement), C(reason) and C(file) (empty where there is none).
  returned: with O(state=wheels) and in check mode
  type: list
  elements: dict
finding:
  description: What was seen, what was expected and what to do.
  returned: failure
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve.lockfile import LockError
from ansible.module_utils.sglang_pve.stack import LANES, Stack, StackError, check_disk, check_host, installed, look_in
from ansible.module_utils.sglang_pve.stack_install import install
from ansible.module_utils.sglang_pve.wheelhouse import nothing_found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "wheels"], "default": "present"},
            "name": {"type": "str", "required": True},
            "stack_id": {"type": "str", "required": True},
            "lock": {"type": "str", "required": True},
            "engine": {"type": "str", "required": True},
            "uv": {
                "type": "dict",
                "required": True,
                "options": {
                    "wheel": {"type": "str", "required": True},
                    "sha256": {"type": "str", "required": True},
                },
            },
            "wheelhouse": {"type": "path", "required": True},
            "root": {"type": "path", "default": "/opt/sglang/stacks"},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "imports": {"type": "list", "elements": "str", "default": []},
            "python_versions": {"type": "list", "elements": "str", "default": []},
            "glibc_min": {"type": "str", "default": ""},
            "disk_gib": {"type": "float", "default": 0},
            "lane": {"type": "str", "choices": ["", *LANES], "default": ""},
            "cuda_exceptions": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    p = module.params
    stack = Stack(
        name=p["name"],
        id=p["stack_id"],
        lock=p["lock"],
        engine=p["engine"],
        uv_wheel=p["uv"]["wheel"],
        uv_sha256=p["uv"]["sha256"],
        imports=p["imports"],
        pythons=p["python_versions"],
        glibc_min=p["glibc_min"],
        disk_gib=p["disk_gib"],
        lane=p["lane"],
        cuda_exceptions=p["cuda_exceptions"],
    )
    try:
        if p["state"] == "wheels" or module.check_mode:
            result = look(module, stack)
        else:
            changed = install(stack, Path(p["wheelhouse"]), Path(p["root"]), p["python"])
            result = {"changed": changed, "installed": not changed}
    except StackError as error:
        module.fail_json(msg=str(error), finding=error.finding.as_dict())
    except LockError as error:
        module.fail_json(msg=f"stack {stack.name}: {error}")
    module.exit_json(directory=str(Path(p["root"]) / stack.id), **result)


def look(module: AnsibleModule, stack: Stack) -> dict[str, object]:
    """Say what an install would do and lack, without writing anything."""
    p = module.params
    root, wheelhouse = Path(p["root"]), Path(p["wheelhouse"])
    if installed(stack, root):
        return {"changed": False, "installed": True, "lacking": []}
    version = check_host(stack, p["python"])
    # The room that an unfinished build takes is free again before the next one starts.
    if not (root / stack.id).exists():
        check_disk(stack, root)
    there = wheelhouse.is_dir()
    survey = look_in(stack, wheelhouse, version) if there else nothing_found(stack.wanted)
    lacking = survey.lacking_dicts()
    if p["state"] == "wheels":
        return {"changed": False, "installed": False, "lacking": lacking}
    if lacking:
        what = survey.lacking_text() if there else "it is not there"
        module.warn(f"wheelhouse {wheelhouse} lacks {len(lacking)} wheels of stack {stack.name} now: {what}")
    return {"changed": True, "installed": False, "lacking": lacking}


if __name__ == "__main__":
    main()
