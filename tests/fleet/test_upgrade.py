"""State on disk outlives a version of this project: deploy with the first one, go on with this one, and go back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fleet_kit import NAMES, PROJECT, Fleet, said

FIRST = "v0.1.0"


@pytest.fixture
def first_version(tmp_path: Path) -> Path:
    """A checkout of the first tagged version."""
    packed = subprocess.run(["git", "archive", FIRST], cwd=PROJECT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this checkout does not hold the tag {FIRST}: git fetch --tags")
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=packed.stdout, check=True)
    return tmp_path


def test_a_fleet_of_the_first_version_is_taken_on_and_can_go_back(fleet: Fleet, first_version: Path) -> None:
    assert fleet.run("uninstall", sglang_uninstall_confirm=True).returncode == 0
    old = subprocess.run(
        fleet.command("site"),
        cwd=first_version,
        env={**os.environ, "ANSIBLE_CONFIG": str(first_version / "ansible.cfg")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert old.returncode == 0, old.stdout
    before = fleet.releases()
    assert sorted(before) == NAMES
    stacks = fleet.inside("ls /opt/sglang/stacks")

    fleet.good_run()
    assert fleet.inside("ls /opt/sglang/stacks") == stacks, "the stack is the same and is not built again"
    after = fleet.releases()
    assert all(fleet.healthy(index) for index in range(len(NAMES)))

    back = fleet.run("rollback")
    if after == before:
        assert back.returncode == 2 and "nothing to go back to" in said(back)
    else:
        assert back.returncode == 0, back.stdout
        assert fleet.releases() == before
    fleet.good_run()
    assert fleet.releases() == after
