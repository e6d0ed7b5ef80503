"""Run a command with a time limit that holds even where the command cannot be killed."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

# A process that the kernel holds (a driver that hangs) ignores SIGKILL; so long it may take to die before it is left.
KILL_WAIT_S = 1.0
# systemd.exec(5): PATH of a system service.
SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
    return _run(argv, timeout_s, {**os.environ, "LC_ALL": "C", "TZ": "UTC"}, {})


def run_as(user: str, argv: Sequence[str], timeout_s: float) -> Output:
    """Run ``argv`` as systemd runs a service of ``user``: its ids, groups and variables, and nothing of the caller's.

    Raises KeyError where there is no such user, and what ``run`` raises.
    """
    entry = pwd.getpwnam(user)
    env = {"PATH": SERVICE_PATH, "LANG": "C.UTF-8", "HOME": entry.pw_dir, "SHELL": entry.pw_shell}
    ids: dict[str, Any] = {"umask": 0o027, "cwd": "/"}
    if entry.pw_uid != os.geteuid():
        ids.update(user=entry.pw_uid, group=entry.pw_gid, extra_groups=os.getgrouplist(user, entry.pw_gid))
    return _run(argv, timeout_s, {**env, "USER": user, "LOGNAME": user}, ids)


def _run(argv: Sequence[str], timeout_s: float, env: Mapping[str, str], ids: Mapping[str, Any]) -> Output:
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
            **ids,
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
