"""What a call over ssh waits for: its turn to log in to the node, and the start of its command."""

from __future__ import annotations

import contextlib
import fcntl
import select
import subprocess
import time
from pathlib import Path
from typing import BinaryIO, cast


def wait_for_turn(queue: Path, master: Path, seconds: float) -> contextlib.ExitStack:
    """Returns when the caller may log in; it closes what it got when it is in, and then the next one may.

    sshd drops some of many logins at random while ten others are under way (MaxStartups 10:30:100), so all callers with
    the same file ``queue`` log in one after the other. There is no wait where the socket ``master`` exists, since then
    no login is needed, and none longer than ``seconds``: the time-outs of a node that is down must not add up.
    """
    turn = contextlib.ExitStack()
    lock = turn.enter_context(queue.open("w"))
    end = time.monotonic() + seconds
    while not master.exists() and time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.02)
    return turn


def wait_for_start(ssh: subprocess.Popen[bytes], mark: bytes, seconds: float, too_late: bytes) -> bytes:
    """Reads the stderr of ``ssh``, which must not block, until ``mark`` is in it or nothing more comes.

    Returns what was read. After ``seconds`` without the mark it kills ``ssh`` and adds the line ``too_late``.
    """
    heard = b""
    end = time.monotonic() + seconds
    stderr = cast("BinaryIO", ssh.stderr)
    while mark not in heard:
        if select.select([stderr], [], [], 1)[0]:
            chunk = stderr.read()
            if not chunk:
                break
            heard += chunk
        elif ssh.poll() is not None:
            break  # with -v, a master in the background keeps stderr open
        elif time.monotonic() > end:
            ssh.kill()
            return heard + b"\n" + too_late + b"\n"
    return heard
