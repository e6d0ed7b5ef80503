"""A preflight in the lab: what it says, and that container and node are afterwards what they were."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab_fixture import PROJECT, Lab

pytestmark = pytest.mark.container
# What systemd and journald write all the time, and the node's log of calls, which is there to be written.
MOVING = ("var/log/journal", "var/lib/systemd", "remote-commands.log")
UNITS = "systemctl list-units --plain --no-legend --type=service,target --state=active,failed | awk '{print $1}'"


def tree(root: Path) -> dict[str, tuple[int, ...]]:
    """Every file below a directory with owner, mode, size and time of its last change."""
    found = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not (Path(folder) / name).is_mount()]
        for name in [*folders, *files]:
            path = Path(folder) / name
            here = str(path.relative_to(root))
            if not any(part in here for part in MOVING):
                at = path.lstat()
                found[here] = (at.st_uid, at.st_gid, at.st_mode, at.st_size if not path.is_dir() else 0, at.st_mtime_ns)
    return found


def state(lab: Lab) -> dict[str, object]:
    """The container's files, units, memory and temporary files, and the node's files."""
    return {
        "rootfs": tree(lab.rootfs),
        "node": tree(lab.dir / "node"),
        "units": lab.pct("exec", str(lab.vmid), "--", "sh", "-c", UNITS).stdout,
        "shm": lab.pct("exec", str(lab.vmid), "--", "sh", "-c", "ls -lA /dev/shm /tmp /run/sglang 2>&1").stdout,
        "left": lab.pct("exec", str(lab.vmid), "--", "sh", "-c", "ls -A /run/ansible 2>/dev/null").stdout,
    }


def preflight(lab: Lab, **extra: object) -> subprocess.CompletedProcess[str]:
    tool = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [tool, "-i", str(lab.inventory), "playbooks/preflight.yml", "-e", json.dumps(extra)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def test_a_preflight_changes_nothing_and_its_facts_give_the_same_verdict_without_the_machine(lab: Lab, tmp_path: Path):
    before = state(lab)
    saved, answers = tmp_path / "facts.yml", [tmp_path / "live.json", tmp_path / "again.json"]
    live = preflight(lab, sglang_facts_save=str(saved), sglang_preflight_json=str(answers[0]))
    assert live.returncode == 0, live.stdout + live.stderr
    assert "verdict: go (0 errors" in live.stdout
    after = state(lab)
    for part in before:
        assert after[part] == before[part], part
    assert saved.stat().st_mode & 0o777 == 0o600
    again = preflight(lab, sglang_facts_file=str(saved), sglang_preflight_json=str(answers[1]))
    assert again.returncode == 0, again.stdout + again.stderr
    first, second = (json.loads(answer.read_text())["findings"] for answer in answers)
    assert first == second != []


def test_an_error_stops_a_deployment_before_anything_is_touched_and_ends_with_2(lab: Lab):
    before = state(lab)
    done = preflight(
        lab, sglang_flags={"mm-attention-backend": "fa3", "no-such-option": 1}, sglang_disk_free_min_gib=1e6
    )
    assert done.returncode == 2, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "ERROR disk-full" in said and "1000000" in said
    assert "ERROR flag-unknown" in said
    after = state(lab)
    assert after == before
