"""Run a command with a time limit that holds even where the command cannot be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

# A process that the kernel holds (a driver that hangs) ignores SIGKILL; so long it may take to die before it is left.
KILL_WAIT_S = 1.0


@dataclass(frozen=True)
class Output:
    """What a command left: its exit code and its two streams as text."""

    rc: int
    out: str
    err: str


class MissingCommandError(Exception):
    """The program is not there, or may not be executed."""


class HungCommandError(Exception):
    """The program did not end within its time; it was killed, or left behind where it cannot be killed."""


Runner = Callable[[Sequence[str], float], Output]


def run(argv: Sequence[str], timeout_s: float) -> Output:
    """Run ``argv`` without input, in the C locale and UTC, for ``timeout_s`` seconds at most.

    Raises MissingCommandError and HungCommandError. A non-zero exit code is a result, no error.
    """
    env = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError) as exc:
        raise MissingCommandError(f"{argv[0]}: {exc.strerror}") from exc
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as exc:
        # Its children hold the pipes too, so the whole session goes, and the wait after it has an end of its own:
        # subprocess.run() would wait for ever here.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_WAIT_S)
        raise HungCommandError(f"{' '.join(argv)}: no answer within {timeout_s:g} s") from exc
    return Output(process.returncode, out, err)
