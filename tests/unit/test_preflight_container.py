"""A preflight in the lab: what it says, and that container and node are afterwards what they were."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab_fixture import PROJECT, Lab
from tests.unchanged import differences, state
from tests.unit import pve_api_kit

pytestmark = pytest.mark.container


def run(lab: Lab, playbook: str = "preflight", *options: str, **extra: object) -> subprocess.CompletedProcess[str]:
    tool = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [tool, "-i", str(lab.inventory), *options, f"playbooks/{playbook}.yml", "-e", json.dumps(extra)]
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


def test_the_api_tells_in_place_of_the_node_also_where_the_inventory_lists_localhost(lab: Lab, tmp_path: Path):
    """This machine's own Python, which Ansible takes for a listed localhost, has no proxmoxer."""
    (tmp_path / "hosts").write_text("localhost ansible_python_interpreter=/usr/bin/python3\n")
    base, answer = f"/nodes/pve1/lxc/{lab.vmid}", tmp_path / "answer.json"
    own = lab.ssh(f"pvesh get /nodes/localhost/lxc/{lab.vmid}/config --current 1 --output-format json")
    answers = {
        f"{base}/config?current=1": {**json.loads(own.stdout), "lock": "backup"},
        f"{base}/snapshot": [{"name": "current"}],
        f"{base}/pending": [{"key": "memory", "value": 1 << 20}],
        f"{base}/status/current": {"status": "running"},
        "/nodes/pve1/status": {"pveversion": "pve-manager/8.4.1/2a5fa54a8503f96d"},
    }
    with pve_api_kit.served(answers) as url:
        how = {"url": url, "node": "pve1", "token_id": pve_api_kit.TOKEN[0], "token_secret": pve_api_kit.TOKEN[1]}
        how["ca_path"] = str(pve_api_kit.certificate())
        extra = {f"sglang_api_{name}": value for name, value in how.items()}
        done = run(lab, "preflight", "-i", str(tmp_path), sglang_preflight_json=str(answer), **extra)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"container {lab.vmid} has the lock backup" in " ".join(done.stdout.split())
    assert pve_api_kit.TOKEN[1] not in done.stdout + done.stderr + answer.read_text()
