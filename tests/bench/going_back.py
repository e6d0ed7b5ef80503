"""Time a rollback, or a release of changed flags, on eight deployed servers.

usage: going_back.py rollback|rollout INVENTORY

A server is down from its last completion until its next one: each is asked for one token ten times a second, from
outside the container. The rollback is rollback.yml as it is; FAST=1 measures it with sglang_rollback_fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request


def bases(place: str) -> list[str]:
    """The base URL of every server."""
    status = subprocess.run(
        ["ansible-playbook", "-i", place, "playbooks/status.yml", "-e", "sglang_status_json=-"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [f"http://{row['listen']}:{row['port']}" for row in json.loads(status.stdout)["servers"]]


class Client(threading.Thread):
    """Asks one server until it is told to stop; `down_s` is the longest time without an answer."""

    def __init__(self, base: str) -> None:
        super().__init__(daemon=True)
        self.base, self.down_s, self.over = base, 0.0, threading.Event()

    def run(self) -> None:
        last = time.monotonic()
        while not self.over.is_set():
            if self.answers():
                now = time.monotonic()
                self.down_s, last = max(self.down_s, now - last), now
            time.sleep(0.1)
        self.down_s = max(self.down_s, time.monotonic() - last)

    def answers(self) -> bool:
        body = json.dumps({"model": "m", "prompt": "Go on.", "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{self.base}/v1/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


def play(place: str, playbook: str, **extra: object) -> float:
    """Run a playbook, which must succeed; its seconds."""
    begun = time.monotonic()
    command = ["ansible-playbook", "-i", place, f"playbooks/{playbook}.yml", "-e", json.dumps(extra)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{playbook}.yml failed:\n{done.stdout[-3000:]}")
    return time.monotonic() - begun


def main() -> None:
    what, place = sys.argv[1:]
    changed = {"sglang_flags": {"max-running-requests": 128}}
    play(place, "site")
    if what == "rollback":
        play(place, "site", **changed)
    clients = [Client(base) for base in bases(place)]
    for client in clients:
        client.start()
    if what == "rollback":
        seconds = play(place, "rollback", sglang_rollback_fast=os.environ.get("FAST", "") == "1")
    else:
        seconds = play(place, "site", **changed)
    for client in clients:
        client.over.set()
    for client in clients:
        client.join()
    down = max(client.down_s for client in clients)
    print(f"{what}_s={seconds:.1f} servers={len(clients)} downtime_max_s={down:.1f}")


if __name__ == "__main__":
    main()
