"""Start a process again as it was: the same words, program, directory, environment, user and output."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import foreign, host


class RelaunchError(Exception):
    """A process cannot be started again as it was; the message says why."""


def describe(pid: int) -> dict[str, Any]:
    """What it takes to start a process again as it is: argv, program, cwd, environ, user, umask and output.

    ``why_not`` says why it would not be the same, "" when it would.
    """
    process = Path(f"/proc/{pid}")
    status = dict(re.findall(r"^(\w+):[ \t]*(.*)$", (process / "status").read_text(), re.MULTILINE))
    words, pairs = (
        [os.fsdecode(part) for part in (process / name).read_bytes().split(b"\0")[:-1]]
        for name in ("cmdline", "environ")
    )
    cwd, environ = str((process / "cwd").readlink()), dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    name = words[0] if words else ""
    program = str(Path(cwd, name)) if "/" in name else shutil.which(name, path=environ.get("PATH", os.defpath))
    found: dict[str, Any] = {
        "argv": words,
        "program": program or "",
        "cwd": cwd,
        "environ": environ,
        "uid": int(status["Uid"].split()[1]),
        "gid": int(status["Gid"].split()[1]),
        "groups": [int(group) for group in status["Groups"].split()],
        "umask": int(status["Umask"], 8),
        "ignores_hangup": bool(int(status["SigIgn"], 16) & foreign.SIGHUP_BIT),
        "output": {stream: _file(process / "fd" / stream) for stream in ("1", "2")},
    }
    return {**found, "why_not": _why_not(pid, found)}


def _file(stream: Path) -> dict[str, Any]:
    """A stream of a process: its path, and which file that is (device and inode; None for what is no regular file)."""
    try:
        target, about = os.readlink(stream), stream.stat()  # noqa: PTH115
    except OSError:
        return {"path": "", "file": None}
    return {"path": target, "file": [about.st_dev, about.st_ino] if stat.S_ISREG(about.st_mode) else None}


def _why_not(pid: int, found: Mapping[str, Any]) -> str:
    table = foreign.processes()
    parent = table.get(table[pid].parent) if pid in table else None
    for stream in found["output"].values():
        if stream["path"].startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
            return "it ran in a terminal"
        if stream["path"] != os.devnull and (stream["file"] is None or stream["path"].endswith(" (deleted)")):
            return f"its output went to {stream['path'] or 'a place that cannot be read'}"
    if not found["program"] or os.path.realpath(found["program"]) != os.path.realpath(f"/proc/{pid}/exe"):
        return "its program is not at its old place any more"
    if found["cwd"].endswith(" (deleted)") or not found["environ"]:
        return "its directory or its environment cannot be read any more"
    alone = parent is None or parent.pid == 1 or parent.program == "systemd"
    if not alone and parent is not None and not (parent.program in foreign.SHELLS and len(parent.words) == 1):
        return f"it was started by pid {parent.pid} ({host.command_line(parent.pid)})"
    return ""


def start_again(process: Mapping[str, Any]) -> int:
    """Start a process as ``describe`` found it, detached, and return its pid. Raises RelaunchError."""
    opened = []
    try:
        opened.append(_open(process["output"]["1"]))
        opened.append(_open(process["output"]["2"]))
        started = subprocess.Popen(
            process["argv"],
            executable=process["program"],
            cwd=process["cwd"],
            env=process["environ"],
            user=process["uid"],
            group=process["gid"],
            extra_groups=process["groups"],
            umask=process["umask"],
            stdin=subprocess.DEVNULL,
            stdout=opened[0],
            stderr=opened[1],
            start_new_session=True,
            preexec_fn=_ignore_hangup if process["ignores_hangup"] else None,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RelaunchError(f"it could not be started again: {error}") from error
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return started.pid


def _ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _open(stream: Mapping[str, Any]) -> int:
    """The file that a stream went to, to go on at its end; proven to be that file, since its path may be a trap."""
    if stream["file"] is None:
        return os.open(os.devnull, os.O_WRONLY)
    descriptor = os.open(stream["path"], os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(descriptor)
    if [about.st_dev, about.st_ino] != stream["file"]:
        os.close(descriptor)
        raise OSError(f"{stream['path']}, where its output went, is another file now")
    return descriptor
