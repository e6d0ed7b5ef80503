"""A stand-in engine as a process of its own, for the tests beside this file."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time

UUID = "GPU-0000000{}-aaaa-bbbb-cccc-dddddddddddd"
MTP = "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1"
MTP = f"{MTP} --speculative-num-draft-tokens 4".split()
NO_RADIX = ["--disable-radix-cache", "--mem-fraction-static", "0.9"]


def cards(path, capability, memory=97887):
    lines = [f"{at}, {UUID.format(at)}, {memory}, {capability}" for at in range(8)]
    path.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(lines) + "\nEND\n")
    path.chmod(0o755)
    return path


class Run:
    """One engine process. `log()` is what it wrote so far."""

    def __init__(self, lab, folder, *flags, model="model", **env):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.path = folder / f"log-{self.port}"
        self.env = {
            **os.environ,
            "PYTHONPATH": str(lab / "site"),
            "CUDA_VISIBLE_DEVICES": UUID.format(3),
            "SGLANG_LAB_NVIDIA_SMI": str(lab / "nvidia-smi"),
            "SGLANG_LAB_FAULTS": str(folder / "faults"),
            "SGLANG_LAB_START_SECONDS": "0",
            **env,
        }
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(lab / model)]
        command += ["--port", str(self.port), "--attention-backend", "flashinfer", *flags]
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.env, cwd=folder)

    def log(self):
        return self.path.read_text()

    def wait_for(self, text, what=None):
        """Wait until a line shows up; fails with the whole log if the process ends first or never writes it."""
        end = time.monotonic() + 30
        while text not in (what or self.log)():
            assert self.process.poll() is None, f"ended with {self.process.poll()} before {text!r}:\n{self.log()}"
            assert time.monotonic() < end, f"no {text!r} in:\n{self.log()}"
            time.sleep(0.02)
        return self

    def ready(self):
        return self.wait_for("The server is fired up and ready to roll!")

    def ends(self):
        """Exit status; a negative one is the signal."""
        return self.process.wait(timeout=30)

    def ask(self, path, body=None, key=None, method=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        data = None if body is None else json.dumps(body)
        connection.request(method or ("POST" if body is not None else "GET"), path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def get(self, path, body=None):
        status, text = self.ask(path, body)
        assert status == 200, text
        return json.loads(text)

    def child(self):
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], stdout=subprocess.PIPE)
        return int(listed.stdout.split()[0])
