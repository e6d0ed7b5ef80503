"""Start the engine case by case on this machine's GPU, gate it, load it, and keep what it said. Runs as root.

usage: machine.py OUTDIR SITE SECONDS CASE...
SITE: the unpacked site-packages of the stack (without torch: this Python's own is used). SECONDS: when to end.
Needs cases.json, releases/ and model/ beside it, as prepare.py writes them. Without torch no memory is held or read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import load
from sglang_pve import gate

try:
    import torch
except ImportError:
    torch = None

HERE = Path(__file__).resolve().parent
BASE = "http://127.0.0.1:30000"
START_S, LOAD_S, STOP_S = 300, 200, 40
GIB = 2**30


def free_gib() -> float | None:
    return torch.cuda.mem_get_info()[0] / GIB if torch else None


class LeastFree(threading.Thread):
    """Reads the card's free memory every 20 ms; the least counts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.least, self.ended = free_gib(), threading.Event()

    def run(self) -> None:
        while self.least is not None and not self.ended.wait(0.02):
            self.least = min(self.least, free_gib() or 0)

    def stop(self) -> float | None:
        self.ended.set()
        self.join()
        return None if self.least is None else round(self.least, 2)


def hold_all_but(leave_gib: float) -> Any:
    """Allocate what makes this card look like a smaller one; freed when this process ends."""
    if torch is None:
        return None
    torch.cuda.init()
    ballast = torch.empty(max(int(torch.cuda.mem_get_info()[0] - leave_gib * GIB), 0), dtype=torch.uint8, device="cuda")
    print(f"{free_gib():.2f} GiB left free of {torch.cuda.get_device_properties(0).name}", flush=True)
    return ballast


TOOLKIT = ("bin", "include", "lib64", "nvvm", "targets")


def install(data: dict[str, Any], site: Path) -> None:
    """What a deployed container has at the paths that a start script names."""
    root = Path("/opt/sglang")
    binaries = root / "stacks" / data["stack_id"] / "venv/bin"
    server = root / "servers/gpu0"
    for folder in (binaries, server, Path("/run/sglang/gpu0"), Path(data["model_path"]).parent):
        folder.mkdir(parents=True, exist_ok=True)
    paths = f"{site}:{site}/nvidia_cutlass_dsl/python_packages"
    (binaries / "python").write_text(f'#!/bin/sh\nexport PYTHONPATH={paths}\nexec {sys.executable} "$@"\n')
    (binaries / "python").chmod(0o755)
    ninja = shutil.which("ninja", path=f"{os.environ['PATH']}:{site}/bin")
    if ninja and not (binaries / "ninja").exists():
        (binaries / "ninja").symlink_to(ninja)
    # The machine's own toolkit and compiler, where a start script looks for the stack's.
    home = binaries.parents[1] / "cuda"
    (home / "host").mkdir(parents=True, exist_ok=True)
    tools = {f"host/{name}": shutil.which(name) for name in ("cc", "gcc", "c++", "g++")}
    for path, target in {**tools, **{name: f"/usr/local/cuda/{name}" for name in TOOLKIT}}.items():
        if target and not (home / path).is_symlink():
            (home / path).symlink_to(target)
    ask = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    uuid = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()[0] if torch else "0"
    values = {"GPU_UUID": uuid, "HOST": "127.0.0.1", "PORT": "30000", "NCCL_PORT": "31000", "NUMA_NODE": ""}
    (server / "server.env").write_text("".join(f"SGLANG_PVE_{name}={value}\n" for name, value in values.items()))
    shutil.copytree(HERE / "model", data["model_path"], dirs_exist_ok=True)


def tried(result: dict[str, Any], name: str, action: Callable[[], Any]) -> Any:
    """The action's result, or None, with what went wrong kept under ``name``."""
    try:
        return action()
    # One failure must not cost the other loads and cases their measurement.
    except Exception as error:
        result.setdefault("problems", {})[name] = f"{type(error).__name__}: {error}"[:600]
        return None


def metrics(pattern: str) -> dict[str, float]:
    """Samples of /metrics whose name matches, summed over their labels."""
    found: dict[str, float] = {}
    for line in str(gate.fetch(f"{BASE}/metrics")[1]).splitlines():
        match = re.match(rf"({pattern})(?:\{{.*\}})? (\S+)$", line)
        if match:
            found[match[1]] = found.get(match[1], 0) + float(match[2])
    return found


class Case:
    """One server, from its start to its end."""

    def __init__(self, data: dict[str, Any], case: dict[str, Any], out: Path, deadline: float) -> None:
        self.data, self.case, self.out, self.deadline = data, case, out, deadline
        self.result: dict[str, Any] = {"case": case["name"], "plan": case["plan"], "loads": []}
        self.began = time.monotonic()

    def save(self) -> None:
        (self.out / f"{self.case['name']}.json").write_text(json.dumps(self.result, indent=1) + "\n")

    def left(self, limit_s: float) -> float:
        return min(limit_s, self.deadline - time.monotonic())

    def run(self) -> None:
        script = HERE / "releases" / self.case["name"] / "run"
        with (self.out / f"{self.case['name']}.log").open("w") as log:
            server = subprocess.Popen(["sh", script, "0"], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            if self.wait(server):
                self.gate()
                for one in self.case["loads"]:
                    if self.left(LOAD_S) > 15 and server.poll() is None:
                        tried(self.result, f"load {one['name']}", lambda one=one: self.load(one))
                        self.save()
        finally:
            self.stop(server)
            self.save()

    def wait(self, server: subprocess.Popen[bytes]) -> bool:
        end = time.monotonic() + self.left(START_S)
        gone = lambda: "" if server.poll() is None else f"it exited with {server.returncode}"  # noqa: E731
        not_ready = lambda: "" if gate.healthy(BASE) else "/health did not answer 200"  # noqa: E731
        tried(self.result, "start", lambda: gate.wait_until_ready(not_ready, gone, end, pause_s=0.5))
        self.result["start_s"] = round(time.monotonic() - self.began, 1)
        self.result["free_when_ready_gib"] = free_gib()
        self.save()
        print(self.case["name"], "ready after", self.result["start_s"], self.result.get("problems", ""), flush=True)
        return "start" not in self.result.get("problems", {})

    def gate(self) -> None:
        """As the rollout gates a server, but for the answer, which random weights cannot know."""
        tried(self.result, "answer", lambda: gate.ask(BASE, "What is 17 + 25?", "", self.data["model_name"]))
        reported = tried(self.result, "pools read", lambda: gate.read_pools(BASE)) or {}
        tried(self.result, "pools", lambda: gate.compare_pools(reported, self.case["plan"]["pools"]))
        info = tried(self.result, "server_info", lambda: gate.fetch(f"{BASE}/server_info")[1])
        (self.out / f"{self.case['name']}.server_info.json").write_text(json.dumps(info, indent=1))
        inner = (info.get("internal_states") or [{}])[0] if isinstance(info, dict) else {}
        self.result["pools"] = {**reported, "max_mamba_cache_size": inner.get("max_mamba_cache_size")}
        self.save()

    def load(self, one: dict[str, Any]) -> None:
        memory = LeastFree()
        memory.start()
        found: dict[str, Any] = {}
        try:
            running = int(self.result["pools"]["max_running_requests"])
            found = load.run(BASE, one, running, self.left(LOAD_S) - 5)
        finally:
            found["least_free_gib"] = memory.stop()
            found["metrics"] = tried(self.result, "metrics", lambda: metrics(r"\S*(?:retract|accept)[^{\s]*"))
            self.result["loads"].append(found)
            print(self.case["name"], json.dumps(found), flush=True)
        (self.out / f"{self.case['name']}.metrics").write_text(str(gate.fetch(f"{BASE}/metrics")[1]))

    def stop(self, server: subprocess.Popen[bytes]) -> None:
        """End the server's own process group; the engine's children are in it."""
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        server.wait(STOP_S)
        for _ in range(STOP_S * 10):
            free = free_gib()
            if free is None or free > self.data["leave_gib"] - 0.5:
                break
            time.sleep(0.1)


def machine() -> dict[str, Any]:
    """What measured."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "date": time.strftime("%Y-%m-%d", time.gmtime())}
    if torch:
        properties = torch.cuda.get_device_properties(0)
        found.update(gpu=properties.name, gpu_gib=round(properties.total_memory / GIB, 1), torch=torch.__version__)
        ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()[0]
    return found


def main() -> None:
    if len(sys.argv) < 5:
        sys.exit((__doc__ or "").strip())
    out, site, deadline = Path(sys.argv[1]), Path(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    data = json.loads((HERE / "cases.json").read_text())
    install(data, site)
    ballast = hold_all_but(data["leave_gib"])
    about = {key: value for key, value in data.items() if key != "cases"}
    (out / "machine.json").write_text(json.dumps({**machine(), **about}, indent=1))
    known = {case["name"]: case for case in data["cases"]}
    for name in sys.argv[4:]:
        if deadline - time.monotonic() < 90:
            print("no time for", name, flush=True)
            continue
        Case(data, known[name], out, deadline).run()
    del ballast


if __name__ == "__main__":
    main()
