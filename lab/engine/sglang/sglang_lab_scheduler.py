"""The scheduler process: the child that "loads" the model and that every request goes through.

It reads its order as one JSON line, walks through the start, answers with one JSON line, and then echoes one
"ok" for each line it gets. It ends when its parent goes away.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback

from .card import Card
from .checkpoint import Model
from .faults import Fault
from .journal import raw, say
from .startup import Startup

_WRONG = 0.9


def main():
    """Do what the parent's order says; a failure is reported and told to the parent as the real one does."""
    order = json.loads(sys.stdin.buffer.readline())
    fault = Fault(**order["fault"])
    try:
        _start(order, fault)
        _serve(fault)
    except Exception:
        say("Scheduler hit an exception: " + traceback.format_exc())
        if os.getppid() == order["parent"]:
            os.kill(order["parent"], signal.SIGQUIT)


def _hold(card):
    """Keep the card's device open, as every process with GPU memory does; a machine without cards has none."""
    with contextlib.suppress(OSError):
        os.open(f"/dev/nvidia{card['index']}", os.O_RDWR)


def _start(order, fault):
    settings = order["settings"]
    _hold(order["card"])
    scale = _WRONG if fault.kind == "wrong-pools" else 1.0
    startup = Startup(settings, Card(**order["card"]), Model(settings["model_path"]), scale)
    for step in startup.steps:
        fault.reach(step.stage, settings["model_path"])
        time.sleep(step.share * order["seconds"])
        for line in step.lines:
            # The progress bar writes past the logger.
            (raw if line.startswith("Capturing batches") else say)(line)
    if startup.error:
        raise startup.error
    _reply({"slots": startup.pools.slots, "tokens": startup.pools.tokens, "running": startup.pools.running})


def _reply(message):
    os.write(1, (json.dumps(message) + "\n").encode())


def _serve(fault):
    """Echo one "ok" for each line. After the line "ready" a fault may be due."""
    due = None
    while True:
        wait = None if due is None else max(0.0, due - time.monotonic())
        if not select.select([0], [], [], wait)[0]:
            fault.fail()
        data = os.read(0, 65536)
        if not data:
            return
        if b"ready" in data and fault.stage in ("ready", "serving") and fault.kind not in ("slow", "garbage"):
            due = time.monotonic() + fault.seconds
        for _ in range(data.count(b"\n")):
            if fault.kind == "slow" and fault.stage == "serving":
                time.sleep(fault.seconds)
            _reply("ok")


if __name__ == "__main__":
    main()
