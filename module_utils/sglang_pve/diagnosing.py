"""Read what a diagnosis of one server needs (runs of its unit, kernel messages, its plan), and make it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import command, journal, server

READ_TIMEOUT_S = 30.0
LINES = 4000
# journald tells what it dropped in its own name, and names the unit.
DROPPED = ("SYSLOG_IDENTIFIER=systemd-journald", "_TRANSPORT=driver")


def _read(argv: Sequence[str]) -> str:
    """What a command prints; empty where it is missing, hangs or may not read."""
    try:
        return command.run(argv, READ_TIMEOUT_S).out
    except (command.MissingCommandError, command.HungCommandError):
        return ""


@dataclass
class Run:
    """One run of a unit: its first second (Unix time) and its lines, oldest first."""

    since: int
    lines: list[str] = field(default_factory=list)


def parse(text: str) -> list[Run]:
    """The runs of a unit, oldest first, from ``journalctl --output json``. What belongs to no run is left out."""
    found: dict[str, Run] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        # systemd speaks of the unit's run in a field of its own; the other one is then that of process 1.
        names = ("INVOCATION_ID",) if entry.get("_PID") == "1" else ("_SYSTEMD_INVOCATION_ID", "INVOCATION_ID")
        name = next((str(entry[key]) for key in names if entry.get(key)), "")
        # A message that is no plain text, such as a progress bar, is a list of its bytes.
        message = entry.get("MESSAGE") or ""
        said = bytes(message).decode(errors="replace") if isinstance(message, list) else str(message)
        if name:
            run = found.setdefault(name, Run(int(entry.get("__REALTIME_TIMESTAMP", 0)) // 10**6))
            run.lines.extend(filter(None, re.split(r"[\r\n]+", said)))
    return list(found.values())


def runs(unit: str, count: int = 1) -> list[Run]:
    """The last ``count`` runs of the unit, the newest first, each with what journald dropped of the unit since."""
    journalctl = ["journalctl", "--quiet", "--no-pager", "--all"]
    found = parse(_read([*journalctl, "--output=json", f"--lines={LINES}", "--unit", unit]))[-count:]
    for run in found:
        dropped = _read([*journalctl, "--output=cat", f"--since=@{run.since}", *DROPPED])
        run.lines += [line for line in dropped.splitlines() if f" messages from {unit}" in line]
    return found[::-1]


def plan(item: server.Server, release: str) -> journal.Plan:
    """The plan of a release with the checkpoint's config.json; what cannot be read is left empty."""
    try:
        manifest = json.loads((item.release_directory(release) / "manifest.json").read_text(encoding="utf-8"))
        argv, engine = manifest["plan"]["argv"], manifest["stack"]["engine"]
        path = Path(manifest["model"]["path"]) / "config.json"
    except (OSError, ValueError, KeyError, TypeError):
        return journal.Plan()
    try:
        return journal.Plan(argv, engine, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return journal.Plan(argv, engine)


def diagnose(
    item: server.Server,
    release: str,
    unit: Mapping[str, Any],
    signatures: Sequence[Mapping[str, Any]],
    earlier: int = 0,
) -> journal.Diagnosis | None:
    """The cause of a failed server: that of its last run, or of the ``earlier`` ones before it where that has none yet.

    A unit that runs (again) has not ended, so only its lines can tell of a cause.
    """
    runs_on = unit.get("active") in ("active", "activating") and unit.get("sub") != "auto-restart"
    known = plan(item, release)
    unknown = None
    for place, run in enumerate(runs(item.unit, earlier + 1) or [Run(0)]):
        ended = None if place or runs_on else unit
        # Kernel messages are for root, and not even for the root of every container.
        kernel = _read(["dmesg", "--since", f"@{run.since}"]).splitlines() if ended and run.since else []
        found = journal.diagnose(run.lines, signatures, ended, known, kernel)
        if found and found.id != "unknown":
            return found
        unknown = unknown or found
    return unknown
