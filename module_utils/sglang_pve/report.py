"""Tables that a person reads in a terminal and a program can still cut up when they are piped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .findings import Finding, worst_first

COLOURS = {"error": "31", "failed": "31", "down": "31", "warning": "33", "starting": "33", "ready": "32", "ok": "32"}


def paint(text: str, word: str, colour: bool) -> str:
    code = COLOURS.get(word) if colour else None
    return f"\033[{code}m{text}\033[0m" if code else text


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], colour: bool = False) -> str:
    """Columns padded to their widest cell, numbers to the right; no trailing blanks."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = range(len(header))
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in columns]
    numeric = [
        bool(cells) and all(row[column].replace(",", "").isdigit() for row in cells) for column in range(len(header))
    ]

    def line(row: Sequence[str], painted: bool) -> str:
        padded = [text.rjust(width) if right else text.ljust(width) for text, width, right in zip(row, widths, numeric)]
        padded[-1] = padded[-1].rstrip() if not numeric[-1] else padded[-1]
        return "  ".join(paint(cell, cell.strip(), painted) for cell in padded).rstrip()

    return "\n".join([line(list(header), False), *(line(row, colour) for row in cells)])


def server_state(seen: Mapping[str, Any]) -> str:
    """ready, starting, failed or down: one word for a server as fleet.read returned it."""
    unit = seen["unit"]
    if unit.get("active") == "failed" or unit.get("sub") == "auto-restart":
        return "failed"
    if unit.get("active") == "activating":
        return "starting"
    if unit.get("active") == "active":
        return "ready" if seen.get("healthy") else "busy"
    return "down"


def fleet_rows(host_names: Mapping[str, str], state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a server: server (its inventory name), gpu, listen, port, release, state, running_limit, kv_tokens.

    ``host_names`` maps gpu3 to ct200-gpu3. A server that the inventory does not know is shown, and one that is missing.
    """
    rows: list[dict[str, Any]] = []
    for name in sorted({*host_names, *state["servers"]}, key=lambda name: int(name[3:])):
        row = dict.fromkeys(COLUMNS)
        row.update(server=host_names.get(name, f"{name} (not in the inventory)"), gpu=int(name[3:]), state="down")
        rows.append(row)
        seen = state["servers"].get(name)
        if seen is None:
            continue
        pools = seen.get("pools") or {}
        running, linked = seen.get("running_release"), seen.get("release")
        row.update(
            listen=seen["parameters"].get("host"),
            port=int(seen["parameters"].get("port", 0)) or None,
            release=f"{running} (link {linked})" if running and running != linked else running or linked,
            state=server_state(seen),
            running_limit=pools.get("max_running_requests"),
            kv_tokens=pools.get("max_total_num_tokens"),
        )
    return rows


# Key of a row to its heading.
COLUMNS = {
    "server": "SERVER",
    "gpu": "GPU",
    "listen": "LISTEN",
    "port": "PORT",
    "release": "RELEASE",
    "state": "STATE",
    "running_limit": "RUNNING LIMIT",
    "kv_tokens": "KV TOKENS",
}


def fleet_table(rows: Sequence[Mapping[str, Any]], colour: bool = False) -> str:
    """The rows of ``fleet_rows`` as a table; what is not known is a dash."""

    def cell(key: str, value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:,}" if key == "kv_tokens" else str(value)

    return table(list(COLUMNS.values()), [[cell(key, row[key]) for key in COLUMNS] for row in rows], colour)


def findings_table(findings: Sequence[Finding], colour: bool = False) -> str:
    """Worst first, one finding a paragraph: what was seen, what was expected, what to do."""
    blocks = []
    for item in worst_first(findings):
        where = f" ({item.where})" if item.where else ""
        blocks.append(
            f"{paint(item.level.upper(), item.level, colour)} {item.id}{where}\n"
            f"  seen      {item.seen}\n  expected  {item.expected}\n  do        {item.cure}"
        )
    return "\n".join(blocks)
