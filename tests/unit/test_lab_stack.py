"""The lab's wheelhouse and stack: what stack.yml and lock.txt say is what lies in the wheelhouse."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sglang_pve.stack import check_meta

PROJECT = Path(__file__).resolve().parents[2]
UV = "uv-0.0-py3-none-manylinux_2_17_x86_64.whl"


def make(lab: Path, cache: Path) -> list[str]:
    command = [sys.executable, str(PROJECT / "lab/make_stack.py"), str(lab), str(cache)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that already holds a uv wheel of the project's version, so that nothing is downloaded."""
    version = re.search(r"(?m)^uv==(\S+)", (PROJECT / "requirements/dev.txt").read_text())
    assert version
    folder = tmp_path / "cache" / f"uv-{version[1]}"
    folder.mkdir(parents=True)
    (folder / UV).write_bytes(b"not a real wheel")
    return folder.parent


def test_stack_names_the_hashes_of_the_wheelhouse(tmp_path: Path, cache: Path) -> None:
    make(tmp_path / "lab", cache)
    wheels = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "lab/wheelhouse").iterdir()
    }
    stack = tmp_path / "lab/stacks/sglang-0.5.11-lab"
    meta = check_meta(yaml.safe_load((stack / "stack.yml").read_text()), "stack.yml")
    assert meta["uv"] == {"wheel": UV, "sha256": wheels[UV]}
    lock = (stack / "lock.txt").read_text()
    assert lock == f"sglang==0.5.11 --hash=sha256:{wheels['sglang-0.5.11-py3-none-any.whl']}\n"


def test_second_run_writes_nothing_and_repairs_what_differs(tmp_path: Path, cache: Path) -> None:
    lab = tmp_path / "lab"
    assert len(make(lab, cache)) == 4
    assert make(lab, cache) == []
    lock = lab / "stacks/sglang-0.5.11-lab/lock.txt"
    good = lock.read_bytes()
    lock.write_text("sglang==0.5.11\n")
    assert make(lab, cache) == [str(lock)]
    assert lock.read_bytes() == good
