"""The history of a container: what was activated, verified, failed and rolled back; append-only JSON lines.

"Before" means before in this history, never "older by the clock": a clock that went back changes nothing here.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import reserve

SCHEMA = 1
Entry = dict[str, Any]
Snapshot = dict[str, str]  # server name (gpu0) -> release id, of every server of the container


class HistoryError(Exception):
    """The history cannot be read or written, or no release qualifies; the message says which and what to do."""


def timestamp() -> str:
    """Now, as entries have it: ``2026-12-01T05:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read(path: Path) -> tuple[list[Entry], int]:
    """Return the entries, oldest first, and how many lines could not be read (a write that a crash cut short).

    Raises HistoryError for a line of a newer schema: this version would misread what the fleet is.
    """
    entries: list[Entry] = []
    broken = 0
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return [], 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            broken += 1
            continue
        if isinstance(entry, dict) and entry.get("schema", SCHEMA) != SCHEMA:
            raise HistoryError(
                f"{path} has a line of schema {entry['schema']!r}, this version of sglang-pve reads {SCHEMA}: "
                "a newer one was used here. Use that one; nothing was touched"
            )
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            entries.append(entry)
        else:
            broken += 1
    return entries, broken


def notes(entries: Iterable[Entry], broken: int, now: str) -> list[str]:
    """What a person should know of these entries before reading their times, one sentence each.

    ``now`` is the container's time in the form of an entry's ("2026-12-01T05:00:00Z").
    """
    said = []
    if broken:
        said.append(f"{broken} lines of the history cannot be read and are passed over (a crash may cut one short)")
    latest = ""
    for moment in [*(str(entry["time"]) for entry in entries if "time" in entry), now]:
        if moment < latest:
            said.append(
                f"the container's clock went back: the history knows {latest}, and after it {moment}. "
                "Its order counts, not its times; correct the clock"
            )
            break
        latest = moment
    return said


def append(path: Path, entries: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Append entries (each gets ``schema`` and ``time``) and return them as written; durable when this returns.

    A full disk is met with the space that is kept for that (reserve.py).
    """
    entries = list(entries)
    written = reserve.spend(lambda: _append(path, entries))
    reserve.keep()
    return written


def _append(path: Path, entries: Iterable[Mapping[str, Any]]) -> list[Entry]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not buffered: closing would write once more what a full disk did not take.
    with path.open("a+b", buffering=0) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        # The time is taken behind the lock, so that writers side by side leave their times in order.
        stamped = [{"schema": SCHEMA, "time": timestamp(), **entry} for entry in entries]
        # A line that a crash cut short must not swallow the next one.
        handle.seek(0, os.SEEK_END)
        if handle.tell():
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                handle.write(b"\n")
        end = handle.seek(0, os.SEEK_END)
        data = "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in stamped).encode()
        try:
            if handle.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(handle.fileno())
        except OSError:
            # What a full disk took of it must not stand before what is written again.
            os.ftruncate(handle.fileno(), end)
            raise
    return stamped


def line(entries: Iterable[Entry]) -> list[Snapshot]:
    """The verified states of the fleet that lead to the present one, oldest first.

    A verified deployment is put on top; a rollback takes off everything above the state that it went back to. So a
    second rollback goes further back, and none ever comes back to what was left by a rollback.
    """
    states: list[Snapshot] = []
    for entry in entries:
        if entry["event"] != "verified" or not isinstance(entry.get("servers"), dict):
            continue
        state: Snapshot = dict(entry["servers"])
        if entry.get("kind") == "rollback" and state in states:
            while states[-1] != state:
                states.pop()
        elif not states or states[-1] != state:
            states.append(state)
    return states


def verified_entry(entries: Iterable[Entry], kind: str, passed: Snapshot, servers: Iterable[str]) -> Entry:
    """The entry to append when every selected server passed its gate (``passed``: server -> release).

    A server that was not selected keeps the release that it was last verified with, whatever its link says now.
    A rollback names the earlier state that it went back to, also when only some servers went.
    ``servers`` are all servers of the container; one that is no longer among them is left out.
    """
    states = line(entries)
    state = {**(states[-1] if states else {}), **passed}
    if kind == "rollback":
        reached = (earlier for earlier in reversed(states) if passed.items() <= earlier.items())
        return {"event": "verified", "kind": kind, "servers": next(reached, state)}
    known = set(servers)
    return {
        "event": "verified",
        "kind": kind,
        "servers": {server: release for server, release in state.items() if server in known},
    }


def verified_releases(entries: Iterable[Entry]) -> set[str]:
    """Every release that passed its gate on all servers that were selected for it."""
    return {
        release
        for entry in entries
        if entry["event"] == "verified"
        for release in dict(entry.get("servers") or {}).values()
    }


def unfinished_rollback(entries: Iterable[Entry]) -> Snapshot | None:
    """What the servers were going back to when a rollback was stopped; None when none was, or a deployment came since.

    Without it the next rollback would take the stopped one for a half-finished deployment, and undo it.
    """
    target: Snapshot | None = None
    for entry in entries:
        if entry["event"] == "rollback" and isinstance(entry.get("servers"), dict):
            target = dict(entry["servers"])
        elif entry["event"] == "verified":
            target = None
        elif entry["event"] == "activated" and target is not None:
            server, name = str(entry.get("server")), entry.get("release")
            target = target if target.get(server, name) == name else None
    return target


def rollback_target(entries: Iterable[Entry], present: Mapping[str, str | None]) -> Snapshot:
    """Choose what ``present`` (server -> release that its link names, of the selected servers) goes back to.

    Raises HistoryError when there is nothing to go back to.
    """
    return line_target(line(entries), present)


def line_target(states: Iterable[Snapshot], present: Mapping[str, str | None]) -> Snapshot:
    """As ``rollback_target``, from the verified states (``line``).

    One state for the whole fleet: the newest verified one if the servers are not at it (a half-finished or failed
    deployment), else the one before it.
    """
    for state in reversed(list(states)):
        if any(state.get(server, release) != release for server, release in present.items()):
            return {server: state[server] for server in present if server in state}
    shown = ", ".join(f"{server}={release or 'none'}" for server, release in sorted(present.items()))
    raise HistoryError(
        f"nothing to go back to: the history has no verified release before the present one ({shown}). "
        "Deploy with playbooks/site.yml, or name a verified release with -e sglang_rollback_to=ID."
    )


def new_waivers(entries: Iterable[Entry], waived: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """The entries to append for rules that an operator passed over; none for what the history says already."""
    known = [{key: value for key, value in entry.items() if key not in ("schema", "time")} for entry in entries]
    made = [{"event": "waived", **waiver} for waiver in waived]
    return [entry for entry in made if entry not in known]


def waivers(entries: Iterable[Entry]) -> dict[str, dict[str, str]]:
    """The rules that were passed over for each release, with the reason: release -> {rule: reason}."""
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        for release in entry.get("releases") or [] if entry["event"] == "waived" else []:
            found.setdefault(release, {})[str(entry.get("rule"))] = str(entry.get("reason"))
    return found


def settled(entries: Iterable[Entry]) -> dict[str, dict[str, str]]:
    """Releases that a canary fell from to another plan of their ladder: release -> {"plan": its id, "reason"}.

    A later deployment of the same flags begins with that plan, so that it changes nothing.
    """
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        if entry["event"] == "settled":
            found[str(entry.get("wanted"))] = {"plan": str(entry.get("plan")), "reason": str(entry.get("reason"))}
        elif entry["event"] == "tuned":
            # It has passed since, and was the fastest.
            found.pop(str(entry.get("release")), None)
    return found
