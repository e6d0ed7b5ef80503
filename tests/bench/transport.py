"""Time 40 task calls over plain ssh to the node, over `pct`, and over community.proxmox.proxmox_pct_remote.

All three in one run of Ansible, several rounds. In a round they take turns of eight calls, so that a machine which has
other work too is as slow for each of them, and what counts is the median of the rounds' ratios. It makes a lab of its
own. The other plugin is not part of this project: it goes into .cache/bench, with what it needs.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import zipfile
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "module_utils")]
from tests.lab_fixture import own_lab, present  # noqa: E402
from tests.transport_node import Node  # noqa: E402

CACHE = ROOT / ".cache/bench"
COMMUNITY = "ansible==12.3.0"  # has community.proxmox 1.4.0
ROUNDS = 5
TURNS = 5
CALLS = 8  # in a turn
MAX_RATIO_TO_SSH = 1.15
MIN_SPEEDUP_OVER_COMMUNITY = 2.8


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def get_community() -> dict[str, str]:
    """Puts the other plugin into the cache and returns the environment in which Ansible finds it."""
    plugin = CACHE / "collections/ansible_collections/community/proxmox/plugins/connection/proxmox_pct_remote.py"
    if not plugin.exists():
        pip("install", "--target", str(CACHE / "python"), "paramiko")
        pip("download", "--no-deps", "--dest", str(CACHE), COMMUNITY)
        [wheel] = CACHE.glob("ansible-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("ansible_collections/community/proxmox/")]
            archive.extractall(CACHE / "collections", names)
        wheel.unlink()
        # It has the path of a real node's pct, and the lab's pct is elsewhere.
        plugin.write_text(plugin.read_text().replace("'/usr/sbin/pct'", "'pct'"))
    return {"ANSIBLE_COLLECTIONS_PATH": str(CACHE / "collections"), "PYTHONPATH": str(CACHE / "python")}


def write_play(directory: Path, node: Node, vmid: int) -> list[str]:
    """Writes inventory and playbook for ``ansible-playbook`` and returns its arguments."""
    shared = node.variables(vmid)
    plain = {**shared, "ansible_connection": "ssh"}
    community = {
        **shared,
        "ansible_connection": "community.proxmox.proxmox_pct_remote",
        "proxmox_vmid": vmid,
        "ansible_host_key_checking": False,
    }
    hosts = {"ssh": plain, "pct": shared, "community": community}
    plays = [
        {"name": name, "hosts": name, "gather_facts": False, "tasks": [{"ansible.builtin.ping": None}] * CALLS}
        for name in [*hosts] * TURNS * ROUNDS
    ]
    (directory / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (directory / "play.yml").write_text(json.dumps(plays))
    return ["-i", str(directory / "hosts.json"), str(directory / "play.yml")]


def read_times(log: str) -> dict[str, list[float]]:
    """Seconds of each round by the play's name, from the times at which Ansible wrote its headings into its log."""
    headings = re.findall(r"^(\S+ \S+) .*PLAY (\[\w+\]|RECAP) \*", log, re.MULTILINE)
    times = [datetime.strptime(time, "%Y-%m-%d %H:%M:%S,%f") for time, _ in headings]
    turns: dict[str, list[float]] = {}
    for (_, name), start, end in zip(headings, times, times[1:]):
        turns.setdefault(name.strip("[]"), []).append((end - start).total_seconds())
    return {name: [sum(some[i : i + TURNS]) for i in range(0, len(some), TURNS)] for name, some in turns.items()}


def measure() -> dict[str, list[float]]:
    environment = {**os.environ, **get_community()}
    with own_lab() as lab, tempfile.TemporaryDirectory() as name:
        present(lab)
        # Beside the lab's own sshd, which writes a log of all commands: a real node does not.
        node = Node(Path(name), lab.dir / "node/bin")
        node.start()
        log = Path(name) / "log"
        environment["ANSIBLE_LOG_PATH"] = str(log)
        try:
            command = [str(Path(sys.executable).with_name("ansible-playbook")), *write_play(Path(name), node, lab.vmid)]
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        finally:
            node.close_master()
            node.stop()
        if done.returncode:
            sys.exit(f"ansible-playbook failed:\n{done.stdout[-3000:]}")
        return read_times(log.read_text())


def main() -> None:
    seconds = measure()
    for name, rounds in seconds.items():
        print(f"{name:10} median {statistics.median(rounds):6.2f} s of", *(f"{value:.2f}" for value in rounds))
    print("load average of the last 5 minutes:", f"{os.getloadavg()[1]:.1f}", "on", os.cpu_count(), "cores")
    ratio = statistics.median(pct / ssh for pct, ssh in zip(seconds["pct"], seconds["ssh"]))
    speedup = statistics.median(other / pct for other, pct in zip(seconds["community"], seconds["pct"]))
    print(f"ratio_to_ssh={ratio:.2f} speedup_over_community={speedup:.2f}")
    if ratio > MAX_RATIO_TO_SSH or speedup < MIN_SPEEDUP_OVER_COMMUNITY:
        sys.exit(1)


if __name__ == "__main__":
    main()
