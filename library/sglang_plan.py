#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of sglang_plan; its action plugin does all the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_plan
short_description: Resolve a profile into a plan for one card type and one checkpoint
description:
  - Computes exact command line, environment and memory pools of an SGLang server from a profile, the checkpoint's
    configuration, the card's memory and the work it shall do. Runs on the controller and needs no connection.
  - Fails with every error at once when there is no such plan. Warnings are shown and do not fail.
options:
  profile:
    description: Name of a profile, a file of O(profiles_dir) without C(.yml).
    type: str
    required: true
  profiles_dir:
    description: Directory of the profiles. The project's own C(profiles/) when not given.
    type: path
  flags_dir:
    description: Directory of the engines' flag tables, C(sglang-VERSION.tsv). The project's own when not given.
    type: path
  stack:
    description: Metadata of the stack; C(engine) names the SGLang version, whose formulas and flags are used.
    type: dict
    required: true
  checkpoint:
    description:
      - Report of the checkpoint; C(config) (its config.json), C(bytes) (of all tensors) and C(mtp) (C(bytes),
        C(complete), C(missing)) are used.
    type: dict
    required: true
  gpu:
    description: The card type; C(card) (its name in the plan), C(memory_total_mib) and C(name) (of nvidia-smi, for
      the estimate) are used.
    type: dict
    required: true
  workload:
    description: What the server shall do. Everything is sized for this.
    type: dict
    required: true
    suboptions:
      mean_input_tokens:
        description: Mean length of a prompt.
        type: int
        required: true
      mean_output_tokens:
        description: Mean length of an answer.
        type: int
        required: true
      max_input_tokens:
        description: Longest prompt.
        type: int
        required: true
      max_output_tokens:
        description: Longest answer. With the longest prompt it gives the context length.
        type: int
        required: true
      concurrency:
        description: Most requests that are sent at the same time.
        type: int
        required: true
      shared_prefix_tokens:
        description: Tokens at the start of every prompt that are the same. A radix cache keeps them once.
        type: int
        default: 0
  model_path:
    description: The checkpoint's directory in the container.
    type: str
    required: true
  served_model_name:
    description: The model's name for clients, without a colon.
    type: str
    required: true
  allow_reduced_state:
    description: Allow a bfloat16 state where the model's own is float32. Twice as many requests fit.
    type: bool
    default: false
  mtp:
    description:
      - Speculative decoding with the checkpoint's own head. V(true) fails when the head is not complete.
      - The profile decides when not given.
    type: bool
  flags:
    description:
      - Flags of the engine that win over the profile; V(null) removes one. Pools are computed with them.
      - Flags that the units own (ports, cards), parallel sizes above one and keys are refused.
    type: dict
    default: {}
  env:
    description: Environment variables added to the plan's; V(null) removes one.
    type: dict
    default: {}
  tuned:
    description:
      - What was measured in this container, as M(fleet_state) returned it (C(history.tuned)). The ladder begins with
        the plan that was the fastest for this card, checkpoint, stack and workload, as long as it is in it.
    type: list
    elements: dict
    default: []
  report:
    description: Return error findings in RV(plan) instead of failing, so that those of several servers are shown once.
    type: bool
    default: false
attributes:
  check_mode:
    description: Nothing is ever changed.
    support: full
author: The sglang-pve project
"""

EXAMPLES = r"""
- name: Plan batch work
  sglang_plan:
    profile: batch
    stack: {engine: 0.5.11}
    checkpoint: "{{ checkpoint_report }}"
    gpu: {card: rtx-pro-6000, memory_total_mib: 97887}
    workload:
      mean_input_tokens: 512
      mean_output_tokens: 256
      max_input_tokens: 2048
      max_output_tokens: 1024
      concurrency: 256
    model_path: /models/Qwen3.6-27B
    served_model_name: qwen3.6-27b
    flags:
      reasoning-parser: qwen3
  register: planned
"""

RETURN = r"""
plan:
  description: The plan. Its C(argv) is empty when a finding is an error.
  returned: always
  type: dict
  contains:
    profile: {type: str, description: The profile's name.}
    card: {type: str, description: The card type.}
    engine: {type: str, description: The SGLang version.}
    argv: {type: list, elements: str, description: "Arguments of the server, sorted."}
    env: {type: dict, description: Environment of the server.}
    pools:
      description:
        - What the server must report, C(max_total_num_tokens), C(max_running_requests), C(max_mamba_cache_size).
      type: dict
    memory: {type: dict, description: "Where the card's memory goes, in GiB."}
    reasons: {type: list, elements: str, description: "Why the plan is as it is, one sentence each."}
    findings: {type: list, elements: dict, description: "What was found, worst first."}
ladder:
  description:
    - The plan and those that a canary falls back to, in order. Each has all of RV(plan), C(id) (C(batch/2)),
      C(differs), C(hash) (of what it starts) and C(estimate) (C(requests) that really run, C(retracted), how
      many more the limit lets in and the pools put back, C(tokens_per_s), null for an unknown card, and C(basis), a
      sentence).
  returned: when the profile exists
  type: list
  elements: dict
tune_key:
  description: What a measurement of these plans is good for, as the history keeps it.
  returned: when the profile exists
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    AnsibleModule(argument_spec={}, bypass_checks=True).fail_json(
        msg="sglang_plan runs on the controller: action_plugins is not on Ansible's path; run from the project's root."
    )


if __name__ == "__main__":
    main()
