"""Run status.yml five times on a deployed fleet and print what it costs. usage: status.py INVENTORY

Remote calls are the lines that the lab's node logged. Fails above 5 s, the budget for eight servers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from converge import log_of

BUDGET_S = 5.0


def status(inventory: str) -> tuple[float, int]:
    """Seconds of one run, and how many servers it showed."""
    command = ["ansible-playbook", "-i", inventory, "playbooks/status.yml", "-e", "sglang_status_json=-"]
    begun = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return time.monotonic() - begun, len(json.loads(done.stdout)["servers"])


def main() -> None:
    inventory = sys.argv[1]
    log = log_of(inventory)
    before = len(log.read_text(encoding="utf-8").splitlines())
    runs = [status(inventory) for _ in range(5)]
    calls = len(log.read_text(encoding="utf-8").splitlines()) - before
    seconds = statistics.median(run[0] for run in runs)
    print(f"status_seconds={seconds:.1f} status_servers={runs[0][1]} status_remote_calls={calls / len(runs):g}")
    if seconds > BUDGET_S:
        sys.exit(1)


if __name__ == "__main__":
    main()
