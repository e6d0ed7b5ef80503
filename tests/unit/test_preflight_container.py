"""A preflight in the lab: what it says, and that container and node are afterwards what they were."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab_fixture import PROJECT, Lab
from tests.unchanged import differences, state

pytestmark = pytest.mark.container


def run(lab: Lab, playbook: str = "preflight", **extra: object) -> subprocess.CompletedProcess[str]:
    tool = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [tool, "-i", str(lab.inventory), f"playbooks/{playbook}.yml", "-e", json.dumps(extra)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def test_a_preflight_changes_nothing_and_its_facts_give_the_same_verdict_without_the_machine(lab: Lab, tmp_path: Path):
    before = state(lab)
    saved, answers = tmp_path / "facts.yml", [tmp_path / "live.json", tmp_path / "again.json"]
    live = run(lab, sglang_facts_save=str(saved), sglang_preflight_json=str(answers[0]))
    assert live.returncode == 0, live.stdout + live.stderr
    assert "verdict: go (0 errors" in live.stdout
    assert differences(before, state(lab)) == {}
    assert saved.stat().st_mode & 0o777 == 0o600
    again = run(lab, sglang_facts_file=str(saved), sglang_preflight_json=str(answers[1]))
    assert again.returncode == 0, again.stdout + again.stderr
    first, second = (json.loads(answer.read_text())["findings"] for answer in answers)
    assert first == second != []


@pytest.mark.parametrize("playbook", ["preflight", "site"])
def test_an_error_ends_with_2_before_anything_is_touched(lab: Lab, tmp_path: Path, playbook: str):
    before, answer = state(lab), tmp_path / "answer.json"
    wrong = {"sglang_flags": {"mm-attention-backend": "fa3", "no-such-option": 1}, "sglang_disk_free_min_gib": 1e6}
    done = run(lab, playbook, sglang_preflight_json=str(answer), **wrong)
    assert done.returncode == 2, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "ERROR disk-full" in said and "1000000" in said
    assert "ERROR flag-unknown" in said and "Nothing was touched." in said
    assert "changed=0" in said and "TASK [stack" not in said
    assert {item["id"] for item in json.loads(answer.read_text())["findings"] if item["level"] == "error"} >= {
        "disk-full",
        "flag-unknown",
    }
    assert differences(before, state(lab)) == {}
