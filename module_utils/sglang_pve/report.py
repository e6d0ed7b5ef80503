"""Tables that a person reads in a terminal and a program can still cut up when they are piped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from .findings import LEVELS, Finding, worst_first

# A dash stands for a number that is not known.
NUMBER = re.compile(r"[0-9][0-9,]*|-")
RED, YELLOW, GREEN = "31", "33", "32"
COLOURS = {
    **dict.fromkeys(("error", "failed", "down", "no"), RED),
    **dict.fromkeys(("warning", "starting", "busy", "degraded", "lent", "not checked", "waived"), YELLOW),
    **dict.fromkeys(("ready", "ok", "go"), GREEN),
}


def paint(text: str, word: str, colour: bool) -> str:
    code = COLOURS.get(word) if colour else None
    return f"\033[{code}m{text}\033[0m" if code else text


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], colour: bool = False) -> str:
    """Columns padded to their widest cell, numbers to the right; no trailing blanks."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = range(len(header))
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in columns]
    numeric = [bool(cells) and all(NUMBER.fullmatch(row[column]) for row in cells) for column in columns]

    def line(row: Sequence[str], painted: bool) -> str:
        padded = [text.rjust(width) if right else text.ljust(width) for text, width, right in zip(row, widths, numeric)]
        padded[-1] = padded[-1].rstrip() if not numeric[-1] else padded[-1]
        return "  ".join(paint(cell, cell.strip(), painted) for cell in padded).rstrip()

    return "\n".join([line(list(header), False), *(line(row, colour) for row in cells)])


def server_state(seen: Mapping[str, Any]) -> str:
    """ready, busy (it runs and did not answer in time), starting, failed, lent or down."""
    unit = seen["unit"]
    if unit.get("active") == "failed" or unit.get("sub") == "auto-restart":
        return "failed"
    if unit.get("active") == "activating":
        return "starting"
    if unit.get("active") == "active":
        return "ready" if seen.get("healthy") else "busy"
    return "lent" if seen.get("lent") else "down"


def fleet_rows(host_names: Mapping[str, str], state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a server, with ROW_KEYS; what is not known is None, sizes are MiB and tokens.

    ``host_names`` maps gpu3 to ct200-gpu3. A server that the inventory does not know is shown, and one that is missing.
    """
    cards = {card["uuid"]: card for card in state["gpus"]["gpus"]}
    verified = state["history"]["line"][-1] if state["history"]["line"] else {}
    rows: list[dict[str, Any]] = []
    for name in sorted({*host_names, *state["servers"]}, key=lambda name: int(name[3:])):
        row: dict[str, Any] = dict.fromkeys(ROW_KEYS)
        row.update(server=host_names.get(name, name), gpu=int(name[3:]), state="down", verified=verified.get(name))
        row["in_inventory"] = name in host_names
        rows.append(row)
        seen = state["servers"].get(name)
        if seen is None:
            continue
        parameters, pools, unit = seen["parameters"], seen.get("pools") or {}, seen["unit"]
        row.update(
            listen=parameters.get("host"),
            port=int(parameters.get("port", 0)) or None,
            release=seen.get("running_release") or seen.get("release"),
            link=seen.get("release"),
            state=server_state(seen),
            pid=unit.get("main_pid") or None,
            since=unit.get("since"),
            restarts=unit.get("restarts"),
            gpu_mib=cards.get(parameters.get("gpu_uuid"), {}).get("memory_used_mib"),
            running_limit=pools.get("max_running_requests"),
            kv_tokens=pools.get("max_total_num_tokens"),
            lent=seen.get("lent"),
        )
    return rows


ROW_KEYS = (
    *("server", "gpu", "in_inventory", "listen", "port", "release", "link", "verified", "state", "pid", "since"),
    *("restarts", "gpu_mib", "running_limit", "kv_tokens", "lent"),
)
HEADER = ("SERVER", "GPU", "ADDRESS", "RELEASE", "STATE", "SINCE", "RESTARTS", "GPU MIB", "RUNNING LIMIT", "KV TOKENS")


def fleet_table(rows: Sequence[Mapping[str, Any]], colour: bool = False) -> str:
    """The rows of ``fleet_rows`` as a table; what is not known is a dash."""

    def cells(row: Mapping[str, Any]) -> list[str]:
        values = [
            row["server"],
            row["gpu"],
            f"{row['listen']}:{row['port']}" if row["listen"] else None,
            row["release"],
            row["state"],
            str(row["since"]).replace("T", " ")[:19] if row["since"] else None,
            row["restarts"],
            *(f"{row[key]:,}" if row[key] is not None else None for key in ("gpu_mib", "running_limit", "kv_tokens")),
        ]
        return ["-" if value is None else str(value) for value in values]

    return table(HEADER, [cells(row) for row in rows], colour)


def verdict(rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """ready, degraded or down for a whole fleet, and why, one sentence each.

    Down: no server that the inventory wants is ready. A lent one is not wanted as long as it is lent.
    """
    said = [
        f"{row['server']} is lent to {row['lent']['who'] or 'somebody'} since {row['lent']['since']}"
        + (f": {row['lent']['reason']}" if row["lent"]["reason"] else "")
        for row in rows
        if row["lent"]
    ]
    wrong = [f"{row['server']} is not in the inventory" for row in rows if not row["in_inventory"]]
    wanted = [row for row in rows if row["in_inventory"] and not row["lent"]]
    wrong += [f"{row['server']} is {row['state']}" for row in wanted if row["state"] != "ready"]
    for row in wanted:
        if row["release"] and row["link"] != row["release"]:
            wrong.append(f"{row['server']} runs {row['release']}, its link names {row['link']}: a switch was cut short")
        elif row["release"] and row["release"] != row["verified"]:
            wrong.append(
                f"{row['server']} runs {row['release']}, last verified was {row['verified'] or 'nothing'}: "
                "a deployment did not finish"
            )
    ready = sum(row["state"] == "ready" for row in wanted)
    word = "degraded" if wrong else "ready"
    if wanted and not ready:
        word = "down"
    return word, [f"{ready} of {len(wanted)} servers are ready", *wrong, *said]


def findings_table(findings: Sequence[Finding], colour: bool = False) -> str:
    """Worst first, one finding a paragraph: what was seen, what was expected, what to do.

    What was not checked stands together, a line for each fact that is missing.
    """
    blocks = []
    for level, group in groupby(worst_first(findings), lambda item: item.level):
        items = list(group)
        blocks += [_not_checked(items, colour)] if level == "not checked" else [_paragraph(i, colour) for i in items]
    return "\n".join(blocks)


def _paragraph(item: Finding, colour: bool) -> str:
    return (
        f"{paint(item.level.upper(), item.level, colour)} {_name(item)}\n"
        f"  seen      {item.seen}\n  expected  {item.expected}\n  do        {item.cure}"
    )


def _not_checked(items: Sequence[Finding], colour: bool) -> str:
    ids: dict[str, list[str]] = {}
    for item in items:
        ids.setdefault(item.seen, []).append(_name(item))
    heading = f"{paint('NOT CHECKED', 'not checked', colour)} {len(items)}"
    lines = [f"  {seen}: {', '.join(names)}" for seen, names in sorted(ids.items())]
    cures = [f"  do        {cure}" for cure in dict.fromkeys(item.cure for item in items)]
    return "\n".join([heading, *lines, *cures])


def _name(item: Finding) -> str:
    return f"{item.id} ({item.where})" if item.where else item.id


def waived_lines(waived: Sequence[tuple[Finding, str]], colour: bool = False) -> str:
    """What an operator decided to pass over, with the reason."""
    return "\n".join(
        f"{paint('WAIVED', 'waived', colour)} {item.level} {_name(item)}\n  seen      {item.seen}\n  reason    {reason}"
        for item, reason in waived
    )


def preflight_verdict(findings: Sequence[Finding], waived: int) -> tuple[str, str]:
    """``go`` or ``no``, and the counts behind it in one sentence."""
    counts = {level: sum(item.level == level for item in findings) for level in LEVELS}
    said = [
        f"{count} {level}{'s' if count != 1 and level != 'not checked' else ''}" for level, count in counts.items()
    ] + ([f"{waived} waived"] if waived else [])
    return ("no" if counts["error"] else "go"), ", ".join(said)
