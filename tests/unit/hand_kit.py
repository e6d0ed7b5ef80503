"""An engine that somebody runs by hand: a real process with the names, child and port of SGLang, and no more."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sglang_pve import lock

# It leaves only when its time is over, as the engine waits for its requests; its child has the scheduler's name.
ENGINE = """
import os, signal, socket, subprocess, sys, time
child = subprocess.Popen(["sglang::scheduler", "600"], executable="/bin/sleep")
listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
def leave(number, frame):
    time.sleep(float(os.environ.get("DRAIN_SECONDS", "0")))
    child.kill()
    child.wait()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", listener.getsockname()[1], child.pid, os.getcwd(), os.environ.get("HF_TOKEN"), flush=True)
while True:
    signal.pause()
"""


@dataclass
class Hand:
    """A running one: its process, its child, the port that it listens on, and its output."""

    pid: int
    child: int
    port: int
    log: Path

    @property
    def started(self) -> str:
        return lock.process_started(self.pid)


def words_of(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sglang.launch_server", "--model-path", "/m", "--port", "0", *arguments]


@contextlib.contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator[Hand]:
    """Start one with these flags and variables, wait until it listens, and leave nothing of it at the end."""
    package = folder / "engine/sglang"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(ENGINE)
    log = folder / "hand.log"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent), **environment}
    with log.open("ab") as out:
        process = subprocess.Popen(words_of(*arguments), cwd=folder, env=env, stdout=out, stderr=out)
    child = 0
    try:
        said = up(log, process.pid)
        child = int(said[2])
        yield Hand(process.pid, child, int(said[1]), log)
    finally:
        for pid in filter(None, (process.pid, child)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def up(log: Path, pid: int, count: int = 1) -> list[str]:
    """The words that the engine said when it was up for the ``count``-th time in this log."""
    while True:
        lines = [line for line in log.read_text().splitlines() if line.startswith("up ")]
        if len(lines) >= count:
            return lines[count - 1].split()
        assert ") Z " not in Path(f"/proc/{pid}/stat").read_text(), log.read_text()
        time.sleep(0.02)
