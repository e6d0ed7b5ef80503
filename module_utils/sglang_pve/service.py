"""What a container needs around its servers: the service account, directories, unit files and other small files."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import account
from .server import write_atomic


class ServiceError(Exception):
    """The account or a file cannot be made as asked; the message says what is there instead."""


def ensure_account(name: str, home: str, dry_run: bool) -> str:
    """Make the system account, and return what was done ("" when it is there)."""
    accounts = account.read()
    refusal = account.judge(name, accounts)
    if refusal:
        raise ServiceError(refusal.sentence())
    if name in accounts["uids"]:
        return ""
    if not dry_run:
        command = ["useradd", "--system", "--user-group", "--no-create-home"]
        command += ["--home-dir", home, "--shell", "/usr/sbin/nologin", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceError(f"useradd {name} failed: {done.stderr.strip()}")
    return f"account {name}"


def _identity(name: str) -> tuple[int, int] | None:
    try:
        return pwd.getpwnam(name).pw_uid, grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def ensure_directory(path: Path, owner: str, mode: int, dry_run: bool) -> str:
    """Make a directory with this owner and mode, and return what was done ("" when it is so)."""
    wanted = _identity(owner)
    if path.is_dir():
        now = path.stat()
        if (now.st_uid, now.st_gid) == wanted and now.st_mode & 0o7777 == mode:
            return ""
    if not dry_run:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        if wanted is not None:
            os.chown(path, *wanted)
    return f"directory {path}"


def ensure_file(path: Path, content: str, mode: int, dry_run: bool) -> dict[str, str]:
    """Write a file when its content or mode differs. Return Ansible's diff of it, empty when nothing differs."""
    try:
        before = path.read_text(encoding="utf-8")
        same_mode = path.stat().st_mode & 0o7777 == mode
    except FileNotFoundError:
        before, same_mode = "", False
    if before == content and same_mode:
        return {}
    if not dry_run:
        write_atomic(path, content, mode)
    return {"before_header": str(path), "after_header": str(path), "before": before, "after": content}


def sandbox_works(properties: Iterable[str]) -> bool:
    """True when a transient unit with these properties starts here: unprivileged containers may forbid the mounts."""
    command = ["systemd-run", "--quiet", "--wait", "--collect", "--pipe"]
    command += [f"--property={item}" for item in properties]
    try:
        done = subprocess.run([*command, "/bin/true"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def properties_of(drop_in: str) -> list[str]:
    """The ``Key=value`` lines of a drop-in's [Service] section, as systemd-run takes them."""
    lines = (line.strip() for line in drop_in.splitlines())
    return [line for line in lines if "=" in line and not line.startswith(("#", ";"))]


def ensure(wanted: Mapping[str, Any], dry_run: bool) -> tuple[list[str], list[dict[str, str]]]:
    """Bring account, directories and files to what is wanted. Return what changed, in words, and the diffs.

    ``wanted``: {"user", "home", "directories": [{path, owner, mode}], "files": [{path, content, mode}],
    "sandbox": {path, content}}. The sandbox drop-in is written only where a probe with its settings starts.
    """
    done = [ensure_account(wanted["user"], wanted["home"], dry_run)]
    done += [
        ensure_directory(Path(item["path"]), item["owner"], int(item["mode"], 8), dry_run)
        for item in wanted["directories"]
    ]
    diffs = []
    files = list(wanted["files"])
    sandbox = wanted["sandbox"]
    # The probe leaves nothing behind, so a check may run it too.
    if Path(sandbox["path"]).exists() or sandbox_works(properties_of(sandbox["content"])):
        files.append({**sandbox, "mode": "0644"})
    for item in files:
        diff = ensure_file(Path(item["path"]), item["content"], int(item["mode"], 8), dry_run)
        if diff:
            done.append(f"file {item['path']}")
            diffs.append(diff)
    return [text for text in done if text], diffs
