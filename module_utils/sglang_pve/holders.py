"""Who holds GPU memory: the processes that nvidia-smi lists, with user, command and unit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import foreign, host

PROC = Path("/proc")
DEVICE = "/dev/nvidia"


def uses_gpu(pid: int) -> bool:
    """True when the process has a device of the driver open, as every process with GPU memory has."""
    try:
        return any(os.readlink(entry.path).startswith(DEVICE) for entry in os.scandir(PROC / str(pid) / "fd"))  # noqa: PTH115
    except OSError:
        return False


def named(processes: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The rows of gpus.query's ``processes`` as {"pid", "uuid", "used_mib", "user", "command", "unit", "orphan"}.

    Older drivers give a container the pids of the node (github.com/NVIDIA/nvidia-docker issue 1483), which may be those
    of innocent processes here: a pid that has no GPU open is None, and its user and command are empty. Driver
    580.159.04 gives the pids of the container and leaves out processes elsewhere (seen on an H200, 2026-12-01).
    """
    rows = []
    for row in processes or []:
        pid = row["pid"] if row["pid"] is not None and uses_gpu(row["pid"]) else None
        rows.append(
            {
                "pid": pid,
                "uuid": row["uuid"],
                "used_mib": row["used_mib"],
                "user": foreign.user_of(pid) if pid is not None else "",
                "command": host.command_line(pid) if pid is not None else "",
                "unit": host.unit_of(pid) if pid is not None else None,
                "orphan": pid is not None and foreign.is_orphan(pid),
            }
        )
    return rows


def of_card(card: Mapping[str, Any] | None, rows: Iterable[Mapping[str, Any]], unit: str) -> dict[str, Any]:
    """The card of one server: {"uuid", "used_mib", "holders"}; each holder says whether it is of the server's ``unit``.

    What is not known, also the whole card, is None.
    """
    if card is None:
        return {"uuid": None, "used_mib": None, "holders": []}
    mine = [{**row, "own": row["unit"] == unit} for row in rows if row["uuid"] == card["uuid"]]
    return {"uuid": card["uuid"], "used_mib": card["memory_used_mib"], "holders": mine}


def sentence(holder: Mapping[str, Any]) -> str:
    """A holder in words."""
    used = f"{holder['used_mib']:,} MiB" if holder["used_mib"] is not None else "memory"
    if holder["pid"] is None:
        return f"a process that this container does not see ({used})"
    return f"pid {holder['pid']} ({holder['command']}, of user {holder['user']}, {used})"
