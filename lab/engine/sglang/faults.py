"""Failing on demand: one JSON object in a file tells this server where and how to fail.

Files: `<folder>/<UUID of the card>`, `<folder>/gpu<index>`, `<folder>/all`; the first that exists is taken.
Keys: `stage` (see failures.STAGES; each kind has its own default), `kind`, `seconds` (wait before it happens),
`release` (only for the server whose SGLANG_PVE_RELEASE is this), `argument` (only where this word is one of its
arguments).
Kinds: `exit`, `die-after` (an exit while serving), `hang`, `slow`, `garbage`, `wrong-pools`, `oom-killed`,
and every name in failures.FAILURES.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from .card import visible_card
from .failures import AT_STAGE, FAILURES, STAGES

FOLDER = "/etc/sglang-lab/faults"
_DEFAULT_STAGE = {
    "exit": "ready",
    "die-after": "serving",
    "hang": "serving",
    "slow": "serving",
    "garbage": "serving",
    "wrong-pools": "pools",
    "oom-killed": "weights",
}


class Fault:
    """What this server is told to do wrong; a healthy one has kind None."""

    def __init__(self, stage=None, kind=None, seconds=0.0, release=None, argument=None):
        self.stage = stage
        self.kind = kind
        self.seconds = seconds
        self.release = release
        self.argument = argument

    def reach(self, stage, path=""):
        """Called on reaching a stage: returns if nothing is to happen there, else waits, and fails as asked."""
        if stage != self.stage or self.kind in ("garbage", "wrong-pools"):
            return
        time.sleep(self.seconds)
        if self.kind != "slow":
            self.fail(path)

    def fail(self, path=""):
        """Fail now, in this process."""
        if self.kind == "hang":
            while True:
                time.sleep(3600)
        if self.kind == "oom-killed":
            os.kill(os.getpid(), signal.SIGKILL)
        name = AT_STAGE[self.stage] if self.kind in ("exit", "die-after") else self.kind
        _, error, text = FAILURES[name]
        raise error(text.replace("{path}", path))


def read():
    """The fault meant for this server. Raises ValueError, naming the file, if the file makes no sense."""
    folder = Path(os.environ.get("SGLANG_LAB_FAULTS", FOLDER))
    if not folder.is_dir() or not any(folder.iterdir()):
        return Fault()
    card = visible_card()
    names = [card.uuid, f"gpu{card.index}", "all"] if card else ["all"]
    for file in (folder / name for name in names):
        if file.is_file():
            fault = _parse(file)
            ours = fault.release in (None, os.environ.get("SGLANG_PVE_RELEASE"))
            if ours and (fault.argument is None or fault.argument in sys.argv):
                return fault
    return Fault()


def _parse(file):
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        kind = found["kind"]
        stage = found.get("stage") or _DEFAULT_STAGE.get(kind) or FAILURES[kind][0]
        fault = Fault(stage, kind, float(found.get("seconds", 0)), found.get("release"), found.get("argument"))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f'{file}: expected an object such as {{"stage": "weights", "kind": "exit"}}: {error!r}'
        ) from error
    if fault.stage not in STAGES:
        raise ValueError(f"{file}: stage {fault.stage!r} is none of {', '.join(STAGES)}")
    return fault
