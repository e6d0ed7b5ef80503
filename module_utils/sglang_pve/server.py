"""One server: the link that names its release, its parameters, its unit's drop-in, and what runs now.

The template unit is a fixed contract (``ExecStart=/opt/sglang/servers/gpu%i/release/run %i``). Whatever varies lives
in the release, in ``server.env`` (this card's UUID, port, ...) or in the drop-in that is written with the link.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import reserve
from .release import linked

# The form of server.env and of the note of a loan.
SCHEMA = 1
PREFIX = "SGLANG_PVE_"
LENT = Path("/var/lib/sglang/lent")
ERROR = re.compile(r"\b\w*(Error|Exception)\b(?!s)[:(]|\berror: |CRITICAL|not staged completely")


class ServerError(Exception):
    """A server cannot be switched; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Server:
    """The server of one GPU. ``root`` is /opt/sglang and ``systemd`` /etc/systemd/system, except in tests."""

    index: int
    root: Path = Path("/opt/sglang")
    systemd: Path = Path("/etc/systemd/system")

    @property
    def name(self) -> str:
        return f"gpu{self.index}"

    @property
    def unit(self) -> str:
        return f"sglang@{self.index}.service"

    @property
    def directory(self) -> Path:
        return self.root / "servers" / self.name

    @property
    def drop_in(self) -> Path:
        return self.systemd / f"{self.unit}.d" / "release.conf"

    def release_directory(self, release: str) -> Path:
        return self.root / "releases" / release


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """``server.env``: its schema, then one ``SGLANG_PVE_KEY='value'`` a line, safe to be read by a shell."""
    lines = [f"{PREFIX}{key.upper()}={shlex.quote(str(value))}\n" for key, value in sorted(parameters.items())]
    return "".join([f"# schema {SCHEMA}\n", *lines])


def read_parameters(text: str) -> dict[str, str]:
    """The reverse of ``parameters_text``; lines that are none are passed over."""
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.startswith(PREFIX):
            found[key[len(PREFIX) :].lower()] = "".join(shlex.split(value))
    return found


def loan_note(server: Server) -> Path:
    return LENT / server.name


def read_loan(server: Server) -> dict[str, Any] | None:
    """Who has this server's card, since when and why: {"who", "since", "reason"}; None while it is not lent.

    The unit has a condition on this file, so a boot does not start the server either.
    """
    try:
        text = loan_note(server).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        loan = json.loads(text)
        return {key: str(loan.get(key, "")) for key in ("who", "since", "reason")}
    except (ValueError, AttributeError):
        return {"who": "", "since": "", "reason": "the note cannot be read"}


def loan_text(loan: Mapping[str, str]) -> str:
    """The note of a loan: {"who", "since", "reason"}."""
    return json.dumps({"schema": SCHEMA, **loan}) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def observe(server: Server, unit: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What is: ``unit`` is this unit's part of host.unit_states, ``environ`` the environment of its main process."""
    return {
        "release": linked(server.directory),
        "parameters": read_parameters(_read(server.directory / "server.env")),
        "drop_in": _read(server.drop_in),
        "unit": dict(unit),
        "running_release": environ.get(f"{PREFIX}RELEASE"),
        "running_parameters": {
            key[len(PREFIX) :].lower(): value
            for key, value in environ.items()
            if key.startswith(PREFIX) and key != f"{PREFIX}RELEASE"
        },
    }


def process_environment(pid: int) -> dict[str, str]:
    """The environment that process ``pid`` was started with; empty when it is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def is_stopped(seen: Mapping[str, Any]) -> bool:
    """True when the unit neither runs nor will by itself, as one does that waits for its next attempt."""
    return seen["unit"].get("active") in (None, "inactive", "failed")


def is_running(seen: Mapping[str, Any]) -> bool:
    """True while the unit has a main process, ready or still starting."""
    unit = seen["unit"]
    return unit.get("active") in ("active", "activating") and bool(unit.get("main_pid"))


def reasons(seen: Mapping[str, Any], release: str, parameters: Mapping[str, Any], drop_in: str | None) -> list[str]:
    """Why the server must be started or restarted to serve ``release``: one phrase each, none if it does already."""
    if seen["release"] is None and not is_running(seen):
        return [f"first start, release {release}"]
    wanted = {key: str(value) for key, value in parameters.items()}
    found = []
    if not is_running(seen):
        found.append(f"not running ({seen['unit'].get('active') or 'no unit'})")
    elif seen["running_release"] != release:
        found.append(f"runs release {seen['running_release'] or 'unknown'}, wanted {release}")
    if seen["release"] != release:
        found.append(f"link: {seen['release'] or 'none'} -> {release}")
    now = seen["running_parameters"] if is_running(seen) else seen["parameters"]
    found += [
        f"{key}: {now.get(key, 'none')} -> {wanted.get(key, 'none')}"
        for key in sorted({*wanted, *now})
        if now.get(key) != wanted.get(key)
    ]
    if drop_in is not None and seen["drop_in"] != drop_in:
        found.append("unit settings differ")
    return found


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    with unfinished.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    unfinished.chmod(mode)
    unfinished.replace(path)


def point(server: Server, release: str, parameters: Mapping[str, Any]) -> None:
    """Give the server its parameters, drop-in and link, in that order: the link is what makes them count."""
    directory = server.release_directory(release)
    if not (directory / "run").is_file():
        raise ServerError(
            f"release {release} is not on this container ({directory}/run is missing); "
            "run playbooks/site.yml with --tags release, or without tags"
        )
    reserve.spend(lambda: _point(server, release, parameters, directory))


def _point(server: Server, release: str, parameters: Mapping[str, Any], directory: Path) -> None:
    write_atomic(server.directory / "server.env", parameters_text(parameters))
    write_atomic(server.drop_in, _read(directory / "unit.conf"))
    unfinished = server.directory / ".release.new"
    if unfinished.is_symlink():
        unfinished.unlink()
    unfinished.symlink_to(Path("../../releases") / release)
    unfinished.replace(server.directory / "release")


def systemctl(*arguments: str) -> str:
    """Run systemctl and return its output. Raises ServerError with its words."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerError(f"systemctl {' '.join(arguments)} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def _forget_failures(server: Server) -> None:
    # Fails for a unit that systemd has not loaded, which has no failures to forget.
    subprocess.run(["systemctl", "reset-failed", server.unit], capture_output=True, check=False)


def journal_tail(unit: str, lines: int = 60, *matches: str) -> list[str]:
    """The unit's last journal lines, oldest first, cut to what fits a terminal; empty where none can be read.

    ``matches`` narrow them down as journalctl's FIELD=VALUE do.
    """
    command = ["journalctl", "--unit", unit, "--lines", str(lines), "--output", "cat", "--no-pager", *matches]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return [line[:240] for line in done.stdout.splitlines()]


def unit_runs(unit: str, lines: int = 600, most: int = 3) -> list[list[str]]:
    """The unit's last journal lines by run, the newest run first, each oldest line first; at most ``most`` runs.

    A line that belongs to no run counts to the run before it, and what journald says that it dropped, which it does not
    say in the unit's name, to all of them.
    """
    fields = "--output-fields=MESSAGE,_SYSTEMD_INVOCATION_ID,INVOCATION_ID"
    command = ["journalctl", "--unit", unit, "--lines", str(lines), "--output", "json", "--no-pager", fields]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    runs: dict[str, list[str]] = {}
    present = ""
    for text in done.stdout.splitlines():
        try:
            entry = json.loads(text)
        except ValueError:
            continue
        message = entry.get("MESSAGE")
        present = str(entry.get("_SYSTEMD_INVOCATION_ID") or entry.get("INVOCATION_ID") or present)
        # What is no UTF-8 comes as a list of bytes.
        said = bytes(message).decode(errors="replace") if isinstance(message, list) else str(message or "")
        runs.setdefault(present, []).append(said[:400])
    dropped = ["journalctl", "--since=-1hour", "--output", "cat", "--no-pager", "SYSLOG_IDENTIFIER=systemd-journald"]
    own = subprocess.run(dropped, capture_output=True, text=True, errors="replace", check=False).stdout.splitlines()
    lost = [line for line in own if f" messages from {unit}" in line]
    return [[*run, *lost] for run in reversed(runs.values())][:most]


def kernel_tail(lines: int = 100) -> list[str]:
    """Last lines of the kernel's log; none where it may not be read, as in most unprivileged containers."""
    try:
        done = subprocess.run(["dmesg", "--notime"], capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return []
    return done.stdout.splitlines()[-lines:] if done.returncode == 0 else []


def evidence(journal: list[str]) -> str:
    """The last line that names an error, which is where a traceback ends; empty when none does."""
    telling = [line.strip() for line in journal if ERROR.search(line)]
    return telling[-1] if telling else ""


def start(server: Server) -> None:
    """(Re)start without waiting: the gate waits. Earlier failures no longer count towards the start limit."""
    systemctl("daemon-reload")
    systemctl("enable", "--quiet", server.unit)
    _forget_failures(server)
    systemctl("restart", "--no-block", server.unit)


def stop(server: Server) -> bool:
    """Stop without forgetting anything: running requests get TimeoutStopSec, and the next boot starts it again.

    Returns whether some outlasted that time and were ended.
    """
    ran = systemctl("show", "--property", "MainPID", "--value", server.unit).strip() != "0"
    systemctl("stop", server.unit)
    ended = ran and systemctl("show", "--property", "Result", "--value", server.unit).strip() == "timeout"
    if ended:
        _forget_failures(server)
    return ended


def remove(server: Server) -> None:
    """Stop and disable the server and forget its link, parameters and drop-in. Releases stay."""
    systemctl("disable", "--now", "--quiet", server.unit)
    _forget_failures(server)
    shutil.rmtree(server.directory, ignore_errors=True)
    shutil.rmtree(server.drop_in.parent, ignore_errors=True)
    systemctl("daemon-reload")
