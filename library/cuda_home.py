#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the CUDA_HOME of a stack, or take it away."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_home
short_description: Make the directory that a stack's kernels are compiled with
description:
  - Makes C(STACK/cuda), a tree of links to a CUDA toolkit, to headers and libraries of the stack's own packages and to
    a host compiler that builds the engine's kernels. The compiler is installed with apt where the container has none
    that is known good, and Python's headers where they lack. Nothing else in the container is changed, the toolkit
    least of all.
  - C(STACK/cuda/manifest.json) says what was made. What is there and was not made by this module is never replaced.
  - In check mode nothing is written; a stack that is not installed yet counts as changed.
options:
  stack:
    description: The stack's directory.
    type: path
    required: true
  toolkit:
    description: The container's CUDA toolkit; it is taken where the stack has no nvcc of its own.
    type: path
    default: /usr/local/cuda
  compilers:
    description: What is known of host compilers.
    type: dict
    default: {}
    suboptions:
      good: {description: Versions of g++ that build the engine's kernels., type: list, elements: str, default: []}
      bad: {description: Versions of g++ that do not., type: list, elements: str, default: []}
      package: {description: A package of this distribution that brings a good one., type: str, default: ""}
  state:
    description: V(absent) removes exactly what was made.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode: {support: full, description: Says what it would make.}
  diff_mode: {support: full, description: Shows each link before and after.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Make the CUDA_HOME of the stack
  cuda_home:
    stack: /opt/sglang/stacks/2b082dc7372b
    compilers: {good: ["11.3", "13.3"], bad: ["12.2"], package: g++-11}
"""

RETURN = r"""
home:
  description: The directory.
  returned: always
  type: str
manifest:
  description: C(nvcc) and C(cccl) (versions), C(compiler) (C(cc), C(cxx), C(version), C(why)), C(links) and C(files).
  returned: with O(state=present), where the stack is installed and its compiler is there
  type: dict
findings:
  description: What was seen, what was expected and what to do.
  returned: always
  type: list
  elements: dict
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve import cuda_home, cuda_home_files, host_compiler
from ansible.module_utils.sglang_pve.cuda_home_files import CudaHomeError
from ansible.module_utils.sglang_pve.findings import Finding, errors
from ansible.module_utils.sglang_pve.host_compiler import Choice
from ansible.module_utils.sglang_pve.stack import MARKER


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "stack": {"type": "path", "required": True},
            "toolkit": {"type": "path", "default": "/usr/local/cuda"},
            "compilers": {
                "type": "dict",
                "default": {},
                "apply_defaults": True,
                "options": {
                    "good": {"type": "list", "elements": "str", "default": []},
                    "bad": {"type": "list", "elements": "str", "default": []},
                    "package": {"type": "str", "default": ""},
                },
            },
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    home = Path(module.params["stack"]) / "cuda"
    # The service user reads it, whatever the umask of whoever makes it.
    os.umask(0o022)
    try:
        result = absent(module, home) if module.params["state"] == "absent" else present(module, home)
    except CudaHomeError as error:
        fail(module, [error.finding])
    except OSError as error:
        module.fail_json(msg=f"{error.filename or home}: {error.strerror}; expected a directory that can be written")
    module.exit_json(home=str(home), **result)


def fail(module: AnsibleModule, found: list[Finding]) -> None:
    sentences = [finding.sentence() for finding in errors(found)]
    module.fail_json(msg="\n".join(sentences), findings=[finding.as_dict() for finding in found])


def absent(module: AnsibleModule, home: Path) -> dict[str, object]:
    before = cuda_home_files.listing(cuda_home_files.read_manifest(home))
    changed = cuda_home_files.remove(home, module.check_mode)
    return {"changed": changed, "findings": [], "diff": {"before": before, "after": "", "before_header": str(home)}}


def provide(module: AnsibleModule, wanted: list[str], newest: int | None) -> tuple[Choice, bool]:
    """Install what is wanted; the compiler to use then, and whether anything was installed."""
    refusals = {package: host_compiler.install(package) for package in wanted}
    choice = host_compiler.choose(host_compiler.find(), {**module.params["compilers"], "package": ""}, newest)
    if choice.compiler is None or host_compiler.python_headers():
        refused = [f"apt could not install {package}: {why}" for package, why in refusals.items() if why]
        module.fail_json(msg="\n".join([*refused, *(finding.sentence() for finding in choice.findings)]))
    return choice, not all(refusals.values())


def present(module: AnsibleModule, home: Path) -> dict[str, object]:
    packages = next(home.parent.glob("venv/lib/python3*/site-packages"), None)
    if packages is None or not (home.parent / MARKER).is_file():
        if not module.check_mode:
            module.fail_json(msg=f"{home.parent} has no {MARKER}, so no stack is installed there. Install it first.")
        return {"changed": True, "findings": []}
    overlay = cuda_home.design(packages, Path(module.params["toolkit"]))
    newest, changed = cuda_home.newest_gcc(overlay), False
    choice = host_compiler.choose(host_compiler.find(), module.params["compilers"], newest)
    wanted = list(filter(None, [choice.package, host_compiler.python_headers()]))
    if wanted and not errors(overlay.findings):
        if module.check_mode:
            findings = [finding.as_dict() for finding in (*overlay.findings, *choice.findings)]
            return {"changed": True, "findings": findings, "diff": {"prepared": f"install {', '.join(wanted)}\n"}}
        choice, changed = provide(module, wanted, newest)
    found = [*overlay.findings, *choice.findings]
    if errors(found) or choice.compiler is None:
        fail(module, found)
    for finding in found:
        module.warn(finding.sentence())
    before = cuda_home_files.read_manifest(home)
    manifest = cuda_home_files.manifest_of(overlay, choice.compiler, choice.why)
    differs = not cuda_home_files.is_made(home, manifest)
    if differs and not module.check_mode:
        cuda_home_files.write(home, manifest, overlay.target("include/cuda.h"))
    return {
        "changed": changed or differs,
        "manifest": manifest,
        "findings": [finding.as_dict() for finding in found],
        "diff": {
            "before": cuda_home_files.listing(before),
            "after": cuda_home_files.listing(manifest),
            "before_header": str(home),
            "after_header": str(home),
        },
    }


if __name__ == "__main__":
    main()
