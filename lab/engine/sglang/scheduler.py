"""The parent's side of the scheduler process."""

import json
import os
import subprocess
import sys
import threading


class Scheduler:
    """The child process and the pipe to it."""

    def __init__(self, settings, card, fault, used_mib, seconds):
        env = dict(os.environ, SGLANG_LAB_GPU_MIB=str(used_mib))
        env.setdefault("CUDA_VISIBLE_DEVICES", card.uuid)
        self._lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang.sglang_lab_scheduler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        order = {
            "parent": os.getpid(),
            "settings": settings,
            "card": vars(card),
            "fault": vars(fault),
            "seconds": seconds,
        }
        self._send(json.dumps(order))

    def _send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait_ready(self):
        """The pools that the child reports once it has loaded. Raises RuntimeError if it died on the way."""
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise RuntimeError(
                f"Rank 0 scheduler died during initialization (exit code: {code}). If exit code is -9 (SIGKILL), a"
                " common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
            )
        return json.loads(line)

    def forward(self, word="forward"):
        """One pass through the child; blocks as long as it does not answer."""
        with self._lock:
            self._send(word)
            if not self.process.stdout.readline():
                raise BrokenPipeError("the scheduler is gone")

    def alive(self, timeout):
        """Whether the child answers within so many seconds."""
        answered = threading.Event()

        def ask():
            try:
                self.forward()
            except OSError:
                return
            answered.set()

        threading.Thread(target=ask, daemon=True).start()
        return answered.wait(timeout)
