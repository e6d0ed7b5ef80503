"""Run site.yml twice and count what the second run costs. usage: converge.py INVENTORY

Remote calls are the lines that the lab's node logged, so nothing on the controller can hide one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path


def converge(inventory: str) -> tuple[int, float]:
    """Return the number of changes and the seconds of one run."""
    begun = time.monotonic()
    done = subprocess.run(
        ["ansible-playbook", "-i", inventory, "playbooks/site.yml"],
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"site.yml failed:\n{done.stdout[-3000:]}")
    recap = done.stdout[done.stdout.rindex("PLAY RECAP") :]
    return sum(map(int, re.findall(r"changed=(\d+)", recap))), time.monotonic() - begun


def log_of(inventory: str) -> Path:
    shown = subprocess.run(
        ["ansible", "-i", inventory, "lab", "-m", "debug", "-a", "var=lab_dir"],
        env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return Path(json.loads(shown[shown.index("{") :])["lab_dir"]) / "node" / "remote-commands.log"


def main() -> None:
    inventory = sys.argv[1]
    converge(inventory)
    log = log_of(inventory)
    before = len(log.read_text(encoding="utf-8").splitlines())
    changed, seconds = converge(inventory)
    calls = len(log.read_text(encoding="utf-8").splitlines()) - before
    print(f"second_run_remote_calls={calls} second_run_changed={changed} second_run_seconds={seconds:.1f}")
    if calls > 60 or changed:
        sys.exit(1)


if __name__ == "__main__":
    main()
