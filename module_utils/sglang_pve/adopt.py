"""Take a foreign SGLang server over: note how it was started, stop it, and start it again when ours does not pass.

The note lies in /run, for root alone, since the environment in it may hold keys; it is there from before the stop until
ours has passed or the old server serves again, so that an interrupted run can go on or go back.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import foreign, gate, gpus, holders, host, lock, relaunch
from .masking import HIDDEN
from .relaunch import RelaunchError
from .server import ServerError, systemctl, write_atomic

SCHEMA = 1
NOTES = Path("/run/sglang-pve/adopt")
PAUSE_S = 0.5
# So long a supervisor that starts what it lost at once gets to show itself.
SETTLE_S = 2.0
SHOWN = ("pid", "started", "user", "unit", "how", "address", "port", "argv", "gpus")

Stranger = Mapping[str, Any]


class AdoptError(Exception):
    """A server cannot be taken over or given back; the message says what was seen and what to do."""


def strangers() -> list[dict[str, Any]]:
    """The foreign servers of now."""
    cards = gpus.query()
    return foreign.read(cards["gpus"], host.listeners(), holders.named(cards["processes"]))


def on_card(index: int) -> list[dict[str, Any]]:
    """The foreign servers of now on the GPU with this index."""
    return [one for one in strangers() if index in [card["index"] for card in one["gpus"]]]


# --- the note


def read_note(name: str, notes: Path = NOTES) -> dict[str, Any] | None:
    """The note of a server (gpu3); None without one, or with one that cannot be read."""
    try:
        found = json.loads((notes / name).read_text(encoding="utf-8"))
        return dict(found) if found["schema"] == SCHEMA and found["was"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unfinished(notes: Path = NOTES) -> dict[str, dict[str, Any]]:
    """Take-overs that were neither finished nor undone: server name -> what was stopped (SHOWN)."""
    names = sorted(path.name for path in notes.iterdir()) if notes.is_dir() else []
    found = {name: read_note(name, notes) for name in names}
    return {name: note["was"] for name, note in found.items() if note is not None}


def write_note(name: str, one: Stranger, notes: Path = NOTES) -> dict[str, Any]:
    """Note how a server of now was started."""
    unit = foreign.unit_facts(one["unit"]) if one["unit"] else {}
    note = {
        "schema": SCHEMA,
        "was": {key: one[key] for key in SHOWN},
        "enabled": unit.get("UnitFileState", ""),
        "transient": unit.get("Transient") == "yes",
        "process": None if one["unit"] else relaunch.describe(one["pid"]),
    }
    notes.mkdir(parents=True, exist_ok=True)
    notes.chmod(0o700)
    write_atomic(notes / name, json.dumps(note) + "\n", 0o600)
    return note


def forget(name: str, notes: Path = NOTES) -> bool:
    """Remove the note; whether there was one."""
    there = (notes / name).exists()
    (notes / name).unlink(missing_ok=True)
    return there


# --- how to have it back


def what_to_run(note: Mapping[str, Any]) -> str:
    """What a person must do to have the old server back."""
    was, process = note["was"], note["process"]
    if was["unit"]:
        return f"systemctl enable --now {was['unit']}"
    cards = process["environ"].get("CUDA_VISIBLE_DEVICES")
    visible = f"CUDA_VISIBLE_DEVICES={shlex.quote(cards)} " if cards is not None else ""
    line = " ".join(shlex.quote(word) if word != HIDDEN else word for word in was["argv"])
    return f"as user {was['user']}: cd {shlex.quote(process['cwd'])} && {visible}{line}"


# --- stop


def signal_exactly(pid: int, started: str, number: int) -> bool:
    """Send a signal to the process that had this pid at this start; False when it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The handle is of one process for good; that it is the right one is proven before it is used.
        if lock.process_started(pid) != started:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def alive(known: Mapping[int, str]) -> list[int]:
    """Those of the processes (pid -> start) that still run; a dead one that nobody has waited for does not."""
    left = []
    for pid, started in known.items():
        found = foreign.read_process(pid)
        if found is not None and found.started == started and found.state not in ("Z", "X"):
            left.append(pid)
    return left


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    """Wait for something to become true, so long at most; whether it did."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_S)
    return True


def stop(one: Stranger, timeout_s: float, kill: bool) -> None:
    """Stop a server of now and all of its processes within ``timeout_s`` seconds.

    With ``kill`` what is left after that time gets SIGKILL. Raises AdoptError when something is left.
    """
    known = {pid: lock.process_started(pid) for pid in one["pids"]}
    if known.get(one["pid"]) != one["started"]:
        raise AdoptError(f"pid {one['pid']} is not the process any more that was shown; run adopt.yml again")
    if one["unit"]:
        systemctl("stop", "--no-block", one["unit"])
    else:
        signal_exactly(one["pid"], one["started"], signal.SIGTERM)
    ended = wait_until(lambda: not alive(known), timeout_s)
    if not ended and kill:
        for pid in alive(known):
            signal_exactly(pid, known[pid], signal.SIGKILL)
        ended = wait_until(lambda: not alive(known), timeout_s)
    if not ended:
        left = ", ".join(f"pid {pid}" for pid in alive(known))
        raise AdoptError(
            f"{left} did not end within {timeout_s:g} s of SIGTERM; running requests may take longer. Run adopt.yml "
            "again, which goes on from there, or end it with -e sglang_adopt_kill=true (SIGKILL)"
        )


def take(index: int, shown: Mapping[str, Any], timeout_s: float, kill: bool, notes: Path = NOTES) -> dict[str, Any]:
    """Stop the foreign server ``shown`` ({"pid", "started"}) on this GPU and return its note.

    Its unit is disabled too. Without ``shown`` an earlier take-over goes on. Raises AdoptError and ServerError.
    """
    name, there = f"gpu{index}", on_card(index)
    if shown:
        match = [one for one in there if (one["pid"], one["started"]) == (shown["pid"], shown["started"])]
        if not match:
            raise AdoptError(f"pid {shown['pid']} is not the server on GPU {index} any more; run adopt.yml again")
        if match[0]["blocked"]:
            raise AdoptError(f"pid {shown['pid']} cannot be taken over: {match[0]['blocked']}")
        note = write_note(name, match[0], notes)
        stop(match[0], timeout_s, kill)
        time.sleep(SETTLE_S)
        there = on_card(index)
    else:
        found = read_note(name, notes)
        if found is None:
            raise AdoptError(f"GPU {index} has no server to take over any more; run adopt.yml again")
        note = found
    if note["was"]["unit"] and not note["transient"]:
        systemctl("disable", "--quiet", note["was"]["unit"])
    expect_none(index, there)
    return note


def expect_none(index: int, there: list[dict[str, Any]] | None = None) -> None:
    """Raises AdoptError when a foreign server is on the GPU, such as one that something has started again."""
    for one in on_card(index) if there is None else there:
        raise AdoptError(
            f"{foreign.sentence(one)}: something started it there again. Stop what does that, then run adopt.yml again"
        )


# --- give back


def give_back(note: Mapping[str, Any], timeout_s: float) -> tuple[bool, str]:
    """Start the old server again; whether it answers within ``timeout_s`` seconds, and what was done in words."""
    was = note["was"]
    name = was["unit"] or f"the server of user {was['user']} (pid {was['pid']} before)"
    try:
        if was["unit"]:
            if note["transient"]:
                return False, f"{name} was a transient unit and is gone with its stop; start it yourself"
            if note["enabled"] == "enabled":
                systemctl("enable", "--quiet", was["unit"])
            systemctl("start", "--no-block", was["unit"])
        elif alive({was["pid"]: was["started"]}):
            return False, f"{name} was told to stop and still finishes its requests; then run {what_to_run(note)}"
        elif on_card(was["gpus"][0]["index"]):
            return True, f"{name} was started again already by something else"
        elif note["process"]["why_not"]:
            return False, (
                f"{name} was stopped and cannot be started again as it was, since {note['process']['why_not']}; "
                f"run {what_to_run(note)}"
            )
        else:
            was = {**was, "pid": relaunch.start_again(note["process"])}
    except (RelaunchError, ServerError) as error:
        return False, f"{name} is stopped: {error}; run {what_to_run(note)}"
    if not was["port"]:
        return True, f"{name} was started again"
    address = "127.0.0.1" if was["address"] in ("0.0.0.0", "::", None) else was["address"]
    base = f"http://{f'[{address}]' if ':' in address else address}:{was['port']}"
    if wait_until(lambda: gate.healthy(base), timeout_s):
        return True, f"{name} was started again and serves on port {was['port']}"
    return False, f"{name} was started again and does not answer {base}/health; look at its log"
