#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove an installed stack before a release is made of it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_proof
short_description: Prove an installed stack, as the service user and in a server's environment
description:
  - Checks exact versions, C(pip check), imports, the planned words with the engine's own parser, programs, headers, the
    GPU targets of the kernel libraries, and that one kernel of flashinfer and one of the engine compile for the card.
    On a machine with a driver the engine's kernel is launched on each card as well.
  - What the machine cannot show for want of a driver is a warning, never a pass.
  - What was found is kept in C(proof.json) beside the stack, for each plan under its toolkit, driver, cards, words and
    environment. A proven plan is not proven again until one of them changes.
  - Makes the service account and the directory of the caches where they are missing, because the proof needs both.
  - In check mode nothing is run as the service user; it says whether a proof of these words is kept.
options:
  stack:
    description: The stack as M(sglang_stack_info) returns it.
    type: dict
    required: true
  plans:
    description: What to prove, once for each card type and command line.
    type: list
    elements: dict
    required: true
    suboptions:
      card: {description: The card type., type: str, required: true}
      sm: {description: "Its compute capability, such as 12.0.", type: str, required: true}
      argv: {description: The planned words., type: list, elements: str, required: true}
      environment: {description: The shell text that sets what servers get., type: str, required: true}
      gpus: {description: UUIDs of the container's cards of this type., type: list, elements: str, default: []}
  driver:
    description: The driver's version.
    type: str
    default: ""
  user:
    description: The account that runs the servers.
    type: str
    required: true
  home:
    description: The home directory of the account, if it is made.
    type: path
    default: /var/lib/sglang
  caches:
    description: The directory of compiled kernels, which belongs to O(user).
    type: path
    default: /var/cache/sglang
  root:
    description: Where stacks are.
    type: path
    default: /opt/sglang/stacks
attributes:
  check_mode: {support: full, description: Says whether a proof of the same words is kept.}
  diff_mode: {support: none, description: A proof is made as a whole.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Prove the stack for what is planned
  stack_proof:
    stack: "{{ _preflight_stack.stack }}"
    user: sglang
    driver: 580.65.06
    plans:
      - card: rtx-pro-6000-blackwell-workstation-edition-96gb-sm120
        sm: "12.0"
        argv: [--model-path, /models/qwen3.6-27b]
        environment: |
          export PATH=/opt/sglang/stacks/2b082dc7372b/venv/bin:/usr/bin:/bin CUDA_HOME=/usr/local/cuda
          cache=/var/cache/sglang/2b082dc7372b/sm120
"""

RETURN = r"""
proofs:
  description: For each plan C(card), C(new) and C(checks) (C(check), C(result), C(seconds) and C(detail)).
  returned: success
  type: list
  elements: dict
findings:
  description: What was seen, expected and is to be done, for each check that failed or could not be made.
  returned: always
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_pve.findings import errors, merged
from ansible.module_utils.sglang_pve.proof import kept, prove
from ansible.module_utils.sglang_pve.proof_checks import Plan, Subject
from ansible.module_utils.sglang_pve.service import ServiceError, ensure_account, ensure_directory
from ansible.module_utils.sglang_pve.wheelhouse import parse_wheel

RULES = ("imports", "proof", "compilers", "nvcc_min", "arch_list_below")


def main() -> None:
    plan = {
        "card": {"type": "str", "required": True},
        "sm": {"type": "str", "required": True},
        "argv": {"type": "list", "elements": "str", "required": True},
        "environment": {"type": "str", "required": True},
        "gpus": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(
        argument_spec={
            "stack": {"type": "dict", "required": True},
            "plans": {"type": "list", "elements": "dict", "required": True, "options": plan},
            "driver": {"type": "str", "default": ""},
            "user": {"type": "str", "required": True},
            "home": {"type": "path", "default": "/var/lib/sglang"},
            "caches": {"type": "path", "default": "/var/cache/sglang"},
            "root": {"type": "path", "default": "/opt/sglang/stacks"},
        },
        supports_check_mode=True,
    )
    p = module.params
    subject, plans = subject_of(p), [Plan(**plan) for plan in p["plans"]]
    if module.check_mode:
        known = [kept(subject, plan) for plan in plans]
        module.exit_json(changed=not all(known), proofs=[], findings=[])
    try:
        done = [ensure_account(p["user"], p["home"], False)]
        done.append(ensure_directory(Path(p["caches"]), p["user"], 0o755, False))
    except (ServiceError, OSError) as error:
        module.fail_json(msg=str(error))
    proofs = [(plan, prove(subject, plan)) for plan in plans]
    findings = merged(finding for _, proof in proofs for finding in proof.findings)
    found = [finding.as_dict() for finding in findings]
    wrong = errors(findings)
    if wrong:
        heading = f"stack {p['stack']['name']} is not proven; nothing that serves was touched:"
        module.fail_json(msg="\n".join([heading, *(finding.sentence() for finding in wrong)]), findings=found)
    for finding in findings:
        module.warn(finding.sentence())
    shown = [{"card": plan.card, "new": proof.new, "checks": proof.checks} for plan, proof in proofs]
    module.exit_json(changed=any(done) or any(proof.new for _, proof in proofs), proofs=shown, findings=found)


def subject_of(p: dict) -> Subject:
    stack, root = p["stack"], Path(p["root"])
    wheel = parse_wheel(stack["uv"]["wheel"])
    rules = {name: stack[name] for name in RULES if name in stack}
    uv = root.parent / f"tools/uv-{wheel.version}/uv"
    return Subject(root / stack["id"], stack["lock"], uv, rules, p["user"], p["driver"])


if __name__ == "__main__":
    main()
