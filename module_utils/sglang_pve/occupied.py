"""What stands in the way of a start: ports and GPU memory that others have, and orphans of ours, which are ended.

Nothing else is ever ended here; foreign.is_orphan says what proves that a process is ours.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from . import foreign, gpus, holders, host
from .adopt import signal_exactly
from .server import Server

# GPU memory that a card may have in use by others.
FREE_MIB = 1024
# So long the driver may take to give back what a process held that has just ended.
SETTLE_S = 30.0
# So long an orphan may take to end by itself before it is killed.
END_S = 5.0
PAUSE_S = 0.5


def end(pids: Iterable[int]) -> None:
    """End orphans: SIGTERM, and SIGKILL for what is there after END_S seconds. Each is proven by its start time."""
    known = {one.pid: one.started for one in map(foreign.read_process, pids) if one is not None}
    deadline = time.monotonic() + END_S
    for pid, started in known.items():
        signal_exactly(pid, started, signal.SIGTERM)
    while known and time.monotonic() < deadline:
        time.sleep(PAUSE_S / 5)
        known = {pid: started for pid, started in known.items() if _lives(pid, started)}
    for pid, started in known.items():
        signal_exactly(pid, started, signal.SIGKILL)


def _lives(pid: int, started: str) -> bool:
    one = foreign.read_process(pid)
    return one is not None and one.started == started and one.state != "Z"


def _ports(item: Server, parameters: Mapping[str, Any]) -> list[tuple[int | None, str]]:
    """(pid, sentence) of every process of others that has a port of this server."""
    wanted = {int(parameters[key]) for key in ("port", "nccl_port") if str(parameters.get(key, "")).isdigit()}
    found = []
    for one in host.listeners():
        if one["port"] in wanted and one["unit"] != item.unit:
            who = f"pid {one['pid'] or 'unknown'} ({one['unit'] or one['command'] or 'unknown'})"
            found.append((one["pid"], f"port {one['port']} is held by {who}"))
    return found


def _memory(item: Server, uuid: str, runs: bool) -> tuple[list[tuple[int | None, str]], str]:
    """(pid, sentence) of every process of others on the card, and a sentence about memory of nobody that is seen.

    ``runs`` says that this server has a process, whose pid an older driver may not tell.
    """
    seen = gpus.query()
    card = next((one for one in seen["gpus"] if one["uuid"] == uuid), None)
    if card is None:
        return [], ""
    rows = [row for row in holders.named(seen["processes"]) if row["uuid"] == uuid]
    mine = runs or any(row["unit"] == item.unit for row in rows)
    known = [
        (row["pid"], f"GPU {item.index} is used by {holders.sentence(row)}")
        for row in rows
        if row["pid"] is not None and row["unit"] != item.unit and (row["used_mib"] or FREE_MIB) >= FREE_MIB
    ]
    used = card["memory_used_mib"] or 0
    hidden = not mine and not known and used >= FREE_MIB
    return known, f"{used:,} MiB of GPU {item.index} are in use by no process that is seen here" if hidden else ""


def misplaced(item: Server, port: int, uuid: str) -> str:
    """Why a server that answers is not the one that it should be, in words; empty when it is.

    Says nothing of GPU memory where the driver does not tell which process holds it.
    """
    for one in host.listeners():
        if one["port"] == port and one["pid"] is not None and one["unit"] != item.unit:
            return f"port {port} is answered by pid {one['pid']} ({one['unit'] or one['command']}), not by {item.unit}"
    rows = [row for row in holders.named(gpus.query()["processes"]) if row["pid"] is not None]
    mine = {row["uuid"] for row in rows if row["unit"] == item.unit}
    if mine - {uuid}:
        return f"{item.unit} holds memory of {', '.join(sorted(mine - {uuid}))}, expected that of {uuid} alone"
    others = [row for row in rows if row["uuid"] == uuid and row["unit"] != item.unit]
    big = [holders.sentence(row) for row in others if (row["used_mib"] or 0) >= FREE_MIB]
    return f"its card is used by {'; '.join(big)} too, expected {item.unit} alone" if big else ""


def clear(item: Server, parameters: Mapping[str, Any], runs: bool) -> tuple[list[int], list[str]]:
    """Orphans that may be ended, and what keeps the server from its start, one sentence each.

    ``parameters`` are those of the server (port, nccl_port, gpu_uuid).
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        memory, hidden = _memory(item, str(parameters.get("gpu_uuid", "")), runs)
        found = [*_ports(item, parameters), *memory]
        if not hidden or time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    left = [] if runs else [pid for pid in foreign.processes() if host.unit_of(pid) == item.unit]
    orphans = {pid for pid in [*left, *(pid for pid, _ in found)] if pid is not None and foreign.is_orphan(pid)}
    return sorted(orphans), [text for pid, text in found if pid not in orphans] + ([hidden] if hidden else [])
