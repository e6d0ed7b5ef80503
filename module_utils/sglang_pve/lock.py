"""One lock per container for whatever changes its state: who holds it, since when, and when it runs out.

It lies in /run, so a restart of the container ends it, and its times are seconds since boot, so that a clock that is
set back or forward neither keeps nor breaks it.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMA = 1
PATH = Path("/run/sglang-pve/lock.json")
Owner = Mapping[str, Any]  # OWNER_KEYS
OWNER_KEYS = ("user", "host", "machine", "pid", "started", "doing")  # started: of that pid; doing: a playbook's name


class LockHeldError(Exception):
    """Somebody else holds the lock; ``holder`` is the lock as it stands."""

    def __init__(self, holder: dict[str, Any], left_s: float) -> None:
        super().__init__(f"{sentence(holder)}; its lock runs out in {left_s / 60:.0f} minutes unless it is renewed")
        self.holder = holder


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def sentence(holder: Mapping[str, Any]) -> str:
    """Who has been changing this container since when (by today's clock), and what is being done."""
    owner = holder["owner"]
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time.time() - _now() + holder["taken"]))
    return (
        f"{owner['user']}@{owner['host']} (pid {owner['pid']}) has been changing this container with {owner['doing']} "
        f"since {since}, now at step {holder['step']}"
    )


@contextlib.contextmanager
def _guard(path: Path) -> Iterator[None]:
    guard = path.with_name(f"{path.name}.guard")
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = guard.open("a")
        except FileNotFoundError:
            continue  # given back, and removed with its directory, just now
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # Whoever gave the lock back may have removed the guard; then this one guards nothing.
            if guard.exists() and os.path.samestat(guard.stat(), os.fstat(handle.fileno())):
                yield
                return


def read(path: Path) -> dict[str, Any] | None:
    """The lock as it stands, run out or not; None when there is none or what is there is no lock."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        owner = {**dict.fromkeys(OWNER_KEYS, ""), **found["owner"], "pid": int(found["owner"]["pid"])}
        times = {key: float(found[key]) for key in ("taken", "expires")}
        return {"owner": owner, "step": str(found.get("step", "")), **times} if found["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def held(path: Path = PATH) -> str:
    """A sentence about who holds the lock now; empty when nobody does."""
    found = read(path)
    return sentence(found) if found is not None and found["expires"] > _now() else ""


def take(path: Path, owner: Owner, ttl_s: float, step: str, over: Owner | None = None) -> dict[str, Any] | None:
    """Take or renew the lock for ``ttl_s`` seconds and say which ``step`` begins.

    Returns the lock of another owner that was taken over: one that had run out, or that of ``over``, whom the caller
    knows to be dead. None otherwise. Raises LockHeldError.
    """
    with _guard(path):
        now, found = _now(), read(path)
        mine = found is not None and found["owner"] == dict(owner)
        if found is not None and not mine and found["owner"] != (dict(over) if over else None):
            left = found["expires"] - now
            if left > 0:
                raise LockHeldError(found, left)
        taken = found["taken"] if found is not None and mine else now
        content = {"schema": SCHEMA, "owner": dict(owner), "step": step, "taken": taken, "expires": now + ttl_s}
        unfinished = path.with_name(f".{path.name}.new")
        unfinished.write_text(json.dumps(content), encoding="utf-8")
        unfinished.replace(path)
        return None if mine else found


def release(path: Path, owner: Owner) -> bool:
    """Give the lock back and return whether it was this owner's; that of another is left alone."""
    with _guard(path):
        found = read(path)
        if found is None or found["owner"] != dict(owner):
            return False
        path.unlink()
        # Nothing is left behind, unless others keep something there.
        path.with_name(f"{path.name}.guard").unlink()
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        return True


def process_started(pid: int) -> str:
    """When a process of this machine was started, in clock ticks since boot; empty when there is none.

    A pid alone may have been given to another process since.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def machine() -> str:
    """What tells this machine's processes from those of any other, also of a container or a clone with the same name:
    the boot and the namespace of its process ids. Empty where the kernel does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_dead(owner: Owner) -> bool:
    """True only when ``owner`` is a process of this machine that is gone."""
    if not owner["machine"] or owner["machine"] != machine():
        return False
    started = process_started(owner["pid"])
    return started != owner["started"] if started else not _exists(owner["pid"])


def _exists(pid: int) -> bool:
    # /proc may hide the processes of other users.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def owner_of(pid: int, doing: str) -> dict[str, Any]:
    """The owner that process ``pid`` of this machine is, for what it is ``doing`` (a playbook's name)."""
    return {
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "machine": machine(),
        "pid": pid,
        "started": process_started(pid),
        "doing": doing,
    }
