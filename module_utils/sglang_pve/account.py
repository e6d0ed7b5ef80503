"""The account that runs the servers, and what systemd-logind does to its files in memory."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .findings import Finding

# Debian and Ubuntu: accounts up to this are system accounts, whose files in /dev/shm logind leaves alone.
SYSTEM_UID_MAX = 999
# Where systemd looks, the first wins.
_PLACES = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")


def read(root: Path = Path("/")) -> dict[str, Any]:
    """``{"uids": {name: uid}, "remove_ipc": bool}``; the second says what logind does when a user logs out."""
    return {"uids": {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}, "remove_ipc": remove_ipc(root)}


def identity(user: str | None) -> tuple[int | None, list[int]]:
    """User and group ids; ids that nothing belongs to for a user that is not there yet, none without a user."""
    if not user:
        return None, []
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return -1, []
    return entry.pw_uid, os.getgrouplist(user, entry.pw_gid)


def remove_ipc(root: Path) -> bool:
    """The setting RemoveIPC of logind.conf and its drop-ins below ``root``; it is on by default (logind.conf(5))."""
    main = [root / place / "logind.conf" for place in _PLACES]
    drop_ins: dict[str, Path] = {}
    for place in reversed(_PLACES):
        drop_ins |= {path.name: path for path in (root / place / "logind.conf.d").glob("*.conf")}
    files = [path for path in main if path.is_file()][:1] + [drop_ins[name] for name in sorted(drop_ins)]
    value = "yes"
    for line in (line for path in files for line in path.read_text(errors="replace").splitlines()):
        key, equals, text = (part.strip() for part in line.partition("="))
        if key == "RemoveIPC" and equals:
            value = text or "yes"
    return value.lower() not in ("no", "false", "off", "0")


def judge(name: str, accounts: Mapping[str, Any]) -> Finding | None:
    """Why account ``name`` may not run servers; None when it may or is still to be made. ``accounts`` is from read."""
    uid = accounts["uids"].get(name)
    if uid is None or 0 < uid <= SYSTEM_UID_MAX:
        return None
    expected = f"a system account (uid 1 to {SYSTEM_UID_MAX})"
    if uid == 0:
        seen, cure = "uid 0", "name another with sglang_user: servers never run as root"
    elif accounts["remove_ipc"]:
        seen = f"uid {uid}, and RemoveIPC is on: when this user logs out, systemd-logind removes their shared memory"
        cure = "name another with sglang_user, or set RemoveIPC=no in the container's /etc/systemd/logind.conf"
    else:
        return None
    return Finding("service-account", "error", f"account {name} has {seen}", expected, cure, where=name)
