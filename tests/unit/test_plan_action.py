"""The action plugin as a play sees it: real ansible-playbook runs, without a connection."""

import json
import subprocess
import sys

import pytest

from action_plugins.sglang_plan import ARGUMENTS
from tests.unit.planning import ROOT, WORKLOAD, checkpoint

PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - sglang_plan:
        profile: {profile}
        stack: {{engine: 0.5.11}}
        checkpoint: {checkpoint}
        gpu: {{card: rtx, memory_total_mib: 97887}}
        workload: {workload}
        model_path: /models/m
        served_model_name: m
        flags: {flags}
      register: planned
    - debug: msg="running {{{{ planned.plan.pools.max_running_requests }}}} changed {{{{ planned.changed }}}}"
"""


def play(tmp_path, profile, flags, *options):
    content = PLAYBOOK.format(
        profile=profile,
        checkpoint=json.dumps(checkpoint()),
        workload=json.dumps(WORKLOAD),
        flags=json.dumps(flags),
    )
    (tmp_path / "play.yml").write_text(content)
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(tmp_path / "play.yml"), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_action_plans_on_the_controller_in_check_mode_too(tmp_path):
    code, output = play(tmp_path, "batch", {"max_running_requests": 64, "enable-metrics": None}, "--check")
    assert code == 0 and "running 64 changed False" in output


@pytest.mark.parametrize(
    ("profile", "flags", "words"),
    [
        ("fastest", {}, ["no profile 'fastest'", "one of batch, interactive, prefix, safe"]),
        ("batch", {"port": 1, "tp-size": 8}, ["flag-owned --port", "flag-parallel --tensor-parallel-size"]),
    ],
)
def test_the_action_fails_with_every_error_in_words(tmp_path, profile, flags, words):
    code, output = play(tmp_path, profile, flags)
    assert code != 0 and all(word in output for word in words)


def test_documentation_and_action_take_the_same_arguments():
    shown = subprocess.run(
        [sys.executable, "-m", "ansible", "doc", "-t", "module", "-j", "sglang_plan"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    documented = json.loads(shown.stdout)["sglang_plan"]["doc"]["options"]

    def plain(options):
        return {
            name: (
                option["type"],
                bool(option.get("required")),
                option.get("default"),
                plain(option.get("suboptions") or option.get("options") or {}),
            )
            for name, option in options.items()
        }

    assert plain(documented) == plain(ARGUMENTS)
