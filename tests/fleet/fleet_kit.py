"""A deployed fleet of three servers in a lab of its own, and what the fault tests do to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from tests.lab_fixture import PROJECT, Lab, own_lab, present

GPUS = (0, 1, 2)
NAMES = [f"gpu{index}" for index in GPUS]
# Short times, so that what is given up on is given up on soon; a start takes about three seconds.
SETTINGS = {
    "sglang_start_limit_burst": 2,
    "sglang_start_timeout": 25,
    "sglang_stop_timeout": 6,
    "sglang_restart_delay": 1,
}
FAULTS = "/etc/sglang-lab/faults"
MISSING_VMID = 899
# Waits in the container until so many have a file open whose path ends so, and sends a signal to them.
SIGNAL_HOLDERS = """
import os, signal, sys, time
end = time.monotonic() + 60
holders = []
while len(holders) < int(sys.argv[3]) and time.monotonic() < end:
    holders = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any(link.endswith(sys.argv[1]) for link in links):
            holders.append(int(pid))
    time.sleep(0.01)
for pid in holders:
    os.kill(pid, getattr(signal, sys.argv[2]))
print(*holders)
"""


def said(run: subprocess.CompletedProcess[str]) -> str:
    """All that a run said, with its line breaks and blanks made one blank each."""
    return " ".join(run.stdout.split())


def changes(run: subprocess.CompletedProcess[str]) -> int:
    """How many changes a run reports."""
    return sum(map(int, re.findall(r"changed=(\d+)", run.stdout)))


def host(index: int, vmid: int) -> str:
    return f"ct{vmid}-gpu{index}"


class Fleet:
    """Servers gpu0 to gpu2 of a lab's container. `folder` is for what a user has on the controller."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.inventory = self.write_inventory("base")

    def host(self, index: int) -> str:
        """The inventory's name of a server."""
        return host(index, self.lab.vmid)

    def write_inventory(
        self,
        name: str,
        servers: dict[int, dict[str, Any]] | None = None,
        missing_container: bool = False,
        **variables: Any,
    ) -> Path:
        """An inventory of this container: `servers` with variables of their own, and `variables` of all of them.

        With `missing_container` there are two servers more, in a container that the node does not have.
        """
        lab = yaml.safe_load((self.lab.inventory / "hosts.yml").read_text())
        group_vars = self.folder / name / "group_vars"
        group_vars.mkdir(parents=True)
        for file in (self.lab.inventory / "group_vars").iterdir():
            (group_vars / file.name).symlink_to(file)
        containers = {self.lab.vmid: servers or {index: {} for index in GPUS}}
        settings = {self.lab.vmid: {**SETTINGS, **variables}}
        if missing_container:
            containers[MISSING_VMID] = {0: {}, 1: {}}
            settings[MISSING_VMID] = {"sglang_vmid": MISSING_VMID}
        lab["all"]["children"]["sglang"]["children"] = {
            f"ct{vmid}": {"hosts": {host(index, vmid): given for index, given in members.items()}}
            for vmid, members in containers.items()
        }
        for vmid, values in settings.items():
            (group_vars / f"ct{vmid}.yml").write_text(yaml.safe_dump(values))
        (self.folder / name / "hosts.yml").write_text(yaml.safe_dump(lab))
        return self.folder / name

    def command(self, playbook: str, *options: str, inventory: Path | None = None, **extra: Any) -> list[str]:
        tool = str(Path(sys.executable).with_name("ansible-playbook"))
        place = str(inventory or self.inventory)
        return [tool, "-i", place, f"playbooks/{playbook}.yml", "-e", json.dumps(extra), *options]

    def run(
        self, playbook: str = "site", *options: str, inventory: Path | None = None, **extra: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a playbook as a person does; `extra` are variables for -e. stderr is in stdout."""
        command = self.command(playbook, *options, inventory=inventory, **extra)
        return subprocess.run(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )

    def good_run(self, *options: str, **extra: Any) -> subprocess.CompletedProcess[str]:
        """Run site.yml, which must succeed."""
        done = self.run("site", *options, **extra)
        assert done.returncode == 0, done.stdout
        return done

    @contextlib.contextmanager
    def started(self, *options: str, playbook: str = "site", **extra: Any) -> Iterator[Running]:
        """A playbook, running; at the end nothing of it is left on the controller."""
        log = Path(tempfile.mkdtemp(dir=self.folder)) / "running.log"
        with log.open("w") as out:
            command = self.command(playbook, *options, **extra)
            tool = subprocess.Popen(command, cwd=PROJECT, stdout=out, stderr=out, start_new_session=True)
        try:
            yield Running(tool, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tool.pid, signal.SIGKILL)
            tool.wait()

    def refused(
        self, *words: str, code: int = 2, playbook: str = "site", limit: str = "all", fatal: int = 1, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it: it must say no in one message that holds all `words`, change nothing, and touch no server.

        `fatal` is for what a playbook says of each of its servers.
        """
        before = self.pids()
        done = self.run(playbook, "--limit", limit, **how)
        assert done.returncode == code, done.stdout
        assert len(re.findall(r"^fatal: ", done.stdout, re.MULTILINE)) == fatal, done.stdout
        for text in words:
            assert text in said(done), done.stdout
        assert changes(done) == 0
        assert self.pids() == before
        return done

    def status(self, code: int, **how: Any) -> dict[str, Any]:
        """What status.yml prints as JSON; it must end with this exit status."""
        done = self.run("status", sglang_status_json="-", **how)
        assert done.returncode == code, done.stdout
        return json.loads(done.stdout)

    def attempt(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the container."""
        return self.lab.pct("exec", str(self.lab.vmid), "--", "sh", "-c", command)

    def inside(self, command: str) -> str:
        """What a shell command in the container prints; it must succeed."""
        done = self.attempt(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def signal_holders(self, path: str, name: str, count: int = 1) -> None:
        """Wait until so many processes in the container have a file open whose path ends so; send them a signal."""
        words = ["python3", "-c", SIGNAL_HOLDERS, path, name, str(count)]
        done = self.lab.pct("exec", str(self.lab.vmid), "--", *words)
        assert len(done.stdout.split()) >= count, f"who has {path} open: {done.stdout or 'nobody'} {done.stderr}"

    def unit(self, index: int) -> dict[str, str]:
        """What systemd says of a server's unit."""
        names = "ActiveState,Result,MainPID,NRestarts,ControlGroup"
        lines = self.inside(f"systemctl show sglang@{index} --property {names}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def pids(self) -> dict[str, str]:
        """Server to the process id of its main process; 0 for one that is down."""
        return {f"gpu{index}": self.unit(index)["MainPID"] for index in GPUS}

    def state(self) -> dict[str, Any]:
        """What the module fleet_state reads."""
        tool = str(Path(sys.executable).with_name("ansible"))
        done = subprocess.run(
            [tool, "-i", str(self.inventory), self.host(0), "-m", "fleet_state"],
            env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout[done.stdout.index("{") :])["state"]

    def releases(self) -> dict[str, str]:
        """Server to the release that its process runs; a server that is down is left out."""
        lines = self.inside(
            "for i in 0 1 2; do pid=$(systemctl show sglang@$i --property MainPID --value);"
            " tr '\\0' '\\n' </proc/$pid/environ | sed -n s/^SGLANG_PVE_RELEASE=/gpu$i=/p; done 2>/dev/null"
        )
        return dict(line.split("=", 1) for line in lines.splitlines())

    def url(self, index: int, path: str) -> str:
        return f"http://10.77.{self.lab.vmid % 256}.2:{30000 + index}{path}"

    def healthy(self, index: int) -> bool:
        try:
            with urllib.request.urlopen(self.url(index, "/health"), timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False

    def complete(self, index: int, tokens: int) -> dict[str, Any]:
        """Ask for a completion of exactly so many tokens (about a thousand a second). Raises OSError."""
        body = {"model": "qwen3.6-lab", "prompt": "Go on.", "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            self.url(index, "/v1/completions"), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def ask(self, pool: ThreadPoolExecutor, index: int, tokens: int) -> Future[dict[str, Any]]:
        """A completion that is being answered."""
        asked = pool.submit(self.complete, index, tokens)

        def running() -> bool:
            with urllib.request.urlopen(self.url(index, "/metrics"), timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            return any(line.startswith("sglang:num_running_reqs") and line.endswith(" 1.0") for line in lines)

        wait(running, "the server answers the request")
        return asked

    @contextlib.contextmanager
    def fault(self, server: str, **fault: Any) -> Iterator[None]:
        """Let the engine of a server (gpu1) fail at its next start, see lab/engine/README.md."""
        self.inside(f"mkdir -p {FAULTS} && echo '{json.dumps(fault)}' >{FAULTS}/{server}")
        try:
            yield
        finally:
            self.inside(f"rm {FAULTS}/{server}")

    @contextlib.contextmanager
    def without_node(self) -> Iterator[None]:
        """The node's sshd is gone, and every connection to it."""
        config = self.lab.dir / "node/sshd_config"
        listener = (self.lab.dir / "node/sshd.pid").read_text().strip()
        subprocess.run(["pkill", "--parent", listener], check=True)
        os.kill(int(listener), signal.SIGTERM)
        wait(lambda: not Path(f"/proc/{listener}").exists(), "sshd ends")
        try:
            yield
        finally:
            subprocess.run(["/usr/sbin/sshd", "-f", str(config)], check=True)
            wait(lambda: self.lab.ssh("true").returncode == 0, "the node answers")


@contextlib.contextmanager
def in_own_lab(first_vmid: int, folder: Path) -> Iterator[Fleet]:
    """A fleet in a lab of its own, in which nothing is deployed yet."""
    with own_lab(first_vmid=first_vmid) as lab:
        present(lab)
        yield Fleet(lab, folder)


class Running:
    """ansible-playbook while it works."""

    def __init__(self, tool: subprocess.Popen[bytes], log: Path) -> None:
        self.tool, self.log = tool, log

    def wait_for(self, text: str) -> None:
        """Wait until it has said so."""
        wait(lambda: text in self.log.read_text() or self.tool.poll() is not None, f"it says {text!r}", 120)
        assert self.tool.poll() is None, self.log.read_text()

    def pause(self) -> None:
        """Stop it where it is, with all that it holds, until it is killed."""
        self.tool.send_signal(signal.SIGSTOP)

    def end(self) -> tuple[int, str]:
        """Its exit status and all that it said, when it has come to its end by itself."""
        return self.tool.wait(timeout=300), self.log.read_text()

    def workers(self) -> list[Path]:
        """The processes under /proc that it works with."""
        children = Path(f"/proc/{self.tool.pid}/task/{self.tool.pid}/children").read_text()
        return [Path("/proc") / pid for pid in children.split()]

    def kill(self, everything: bool = False) -> None:
        """kill -9 it, or it and all that it started here."""
        (os.killpg if everything else os.kill)(self.tool.pid, signal.SIGKILL)
        assert self.tool.wait() == -signal.SIGKILL


def wait(until: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)
