"""Tables that a person reads in a terminal and a program can still cut up when they are piped."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from . import foreign, holders
from .findings import LEVELS, Finding, worst_first

# A dash stands for a number that is not known.
NUMBER = re.compile(r"[0-9][0-9,]*|-")
RED, YELLOW, GREEN = "31", "33", "32"
COLOURS = {
    **dict.fromkeys(("error", "failed", "down", "unreachable", "broken", "no"), RED),
    **dict.fromkeys(
        ("warning", "starting", "stopping", "busy", "degraded", "lent", "doubtful", "not checked", "waived"), YELLOW
    ),
    **dict.fromkeys(("ready", "ok", "good", "go"), GREEN),
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
    """ready, busy (it runs and did not answer in time), starting, stopping, failed, lent or down."""
    unit = seen["unit"]
    if unit.get("active") == "active":
        return "ready" if seen.get("healthy") else "busy"
    if unit.get("active") == "deactivating":
        return "stopping"
    if unit.get("active") == "activating" and unit.get("sub") != "auto-restart":
        return "starting"
    if seen.get("lent"):
        return "lent"
    return "down" if unit.get("active") in ("inactive", None) else "failed"


def fleet_rows(
    host_names: Mapping[str, str], state: Mapping[str, Any], selected: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """One row a server, with ROW_KEYS; what is not known is None, sizes are MiB and tokens.

    ``host_names`` maps gpu3 to ct200-gpu3. A server that the inventory does not know is shown, and one that is missing;
    where ``selected`` (gpu3, ...) is given, only those.
    """
    cards = {key: card for card in state["gpus"]["gpus"] for key in (card["uuid"], card["index"])}
    verified = state["history"]["line"][-1] if state["history"]["line"] else {}
    rows: list[dict[str, Any]] = []
    for name in sorted({*host_names, *state["servers"]} if selected is None else selected, key=_index):
        seen = state["servers"].get(name, {})
        parameters, pools, unit = seen.get("parameters", {}), seen.get("pools") or {}, seen.get("unit", {})
        link = seen.get("release")
        card = cards.get(parameters.get("gpu_uuid") or _index(name), {})
        row = {
            **_empty_row(name, host_names),
            "listen": parameters.get("host"),
            "port": int(parameters.get("port", 0)) or None,
            "release": seen.get("running_release") or link,
            "link": link,
            "release_error": seen.get("release_error") or None,
            "profile": ((state["releases"].get(link) or {}).get("manifest") or {}).get("plan", {}).get("profile"),
            "verified": verified.get(name),
            "state": server_state(seen) if seen else "down",
            "pid": unit.get("main_pid") or None,
            "since": unit.get("since"),
            "restarts": unit.get("restarts"),
            "gpu_mib": card.get("memory_used_mib"),
            "running_limit": pools.get("max_running_requests"),
            "kv_tokens": pools.get("max_total_num_tokens"),
            "lent": seen.get("lent"),
            "why": _why(seen),
            "others": _others(_index(name), state),
        }
        rows.append(row)
    return rows


def _why(seen: Mapping[str, Any]) -> str | None:
    """Why a server is down that should run, in words; None when nothing is known."""
    unit = seen.get("unit", {})
    words = []
    if unit.get("active") == "failed":
        words.append(f"its unit was given up ({unit.get('result')}, exit status {unit.get('exit_status')})")
    if seen.get("said"):
        words.append(f"it said: {seen['said']}")
    return "; ".join(words) or None


def _others(index: int, state: Mapping[str, Any]) -> list[str]:
    """Who else is on the card of a server, in words. Without a pid it may be the server itself, if that runs."""
    strangers = [one for one in state["foreign"]["servers"] if index in [card["index"] for card in one["gpus"]]]
    known = {pid for one in strangers for pid in one["pids"]}
    seen = state["servers"].get(f"gpu{index}") or {"gpu": {"holders": []}, "unit": {}}
    rows = [row for row in seen["gpu"]["holders"] if not row["own"] and row["pid"] not in known]
    rows = [row for row in rows if row["pid"] is not None or not seen["unit"].get("main_pid")]
    return [*map(foreign.sentence, strangers), *map(holders.sentence, rows)]


def unreachable_rows(host_names: Mapping[str, str], selected: Collection[str]) -> list[dict[str, Any]]:
    """As ``fleet_rows``, of a container that could not be read."""
    return [{**_empty_row(name, host_names), "state": "unreachable"} for name in sorted(selected, key=_index)]


def _index(name: str) -> int:
    return int(name[3:])


def _empty_row(name: str, host_names: Mapping[str, str]) -> dict[str, Any]:
    known = {"server": host_names.get(name, name), "gpu": _index(name), "in_inventory": name in host_names}
    return {**dict.fromkeys(ROW_KEYS), **known}


ROW_KEYS = (
    *("server", "gpu", "in_inventory", "listen", "port", "release", "link", "release_error", "profile", "verified"),
    *("state", "pid", "since", "restarts", "gpu_mib", "running_limit", "kv_tokens", "lent", "others", "why"),
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


def verdict(rows: Sequence[Mapping[str, Any]], unreachable: Sequence[str] = ()) -> tuple[str, list[str]]:
    """ready, degraded or down for a whole fleet, and why, one sentence each.

    Down: no server that the inventory wants is ready. A lent one is not wanted as long as it is lent. ``unreachable``
    says why containers could not be read, whose servers have the state of that name.
    """
    said = [
        f"{row['server']} is lent to {line(row['lent']['who']) or 'somebody'} since {row['lent']['since']}"
        + (f": {line(row['lent']['reason'])}" if row["lent"]["reason"] else "")
        for row in rows
        if row["lent"]
    ]
    said += [f"{text} is on the card of {row['server']}" for row in rows for text in row["others"] or []]
    wrong = [f"{row['server']} is not in the inventory" for row in rows if not row["in_inventory"]]
    wanted = [row for row in rows if row["in_inventory"] and not row["lent"]]
    for row in wanted:
        if row["state"] not in ("ready", "unreachable"):
            wrong.append(f"{row['server']} is {row['state']}" + (f": {line(row['why'])}" if row["why"] else ""))
        if row["release_error"]:
            wrong.append(f"{row['server']}: {row['release_error']}")
        if row["release"] and row["link"] != row["release"]:
            wrong.append(f"{row['server']} runs {row['release']}, its link names {row['link']}: a switch was cut short")
        elif row["release"] and row["release"] != row["verified"]:
            wrong.append(
                f"{row['server']} runs {row['release']}, last verified was {row['verified'] or 'nothing'}: "
                "a deployment did not finish"
            )
    ready = sum(row["state"] == "ready" for row in wanted)
    word = "degraded" if wrong or unreachable else "ready"
    if wanted and not ready:
        word = "down"
    return word, [f"{ready} of {len(wanted)} servers are ready", *unreachable, *wrong, *said]


def line(text: str) -> str:
    """What somebody wrote, as one line that cannot steer a terminal."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


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


def takeovers_text(rows: Sequence[Mapping[str, Any]], confirmed: bool) -> str:
    """What adopt.yml takes over: ``rows`` of {"server", "was" (preflight_foreign.takeovers), "to" (of the plan)}."""
    if not rows:
        return "No SGLang server of somebody else is on a selected GPU; nothing was touched."
    header = ("SERVER", "GPU", "PID", "USER", "STARTED", "PORT", "BECOMES", "RELEASE")
    cells = []
    lines = []
    for row in rows:
        server, was, to = row["server"], row["was"], row["to"]
        new = f"{to['parameters']['host']}:{to['parameters']['port']}"
        pid = "stopped" if was["stopped"] else was["pid"]
        port = was["port"] or "-"
        cells.append((server["host"], server["index"], pid, was["user"], was["how"], port, new, to["release"]))
        lines.append(f"{server['host']} runs as: {' '.join(was['argv'])}")
    end = (
        "They are taken over now, one at a time behind the gate."
        if confirmed
        else "Nothing was touched. To take them over, one at a time behind the gate, add -e sglang_adopt_confirm=true."
    )
    return "\n".join([table(header, cells), *lines, end])
