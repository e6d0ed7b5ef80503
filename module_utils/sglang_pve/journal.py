"""From what a server said and how its unit ended to a cause, the line that shows it, and what to do.

Signatures are data (signatures/*.yml), read on the controller and handed in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CURED_BY = ("plan", "operator", "none")
KEYS = {"id", "any", "stage", "cause", "cure", "cured_by", "source"}
END_KEYS = {"id", "status", "result", "cause", "cure", "cured_by", "source"}
# An engine's line begins with its time, and often its rank.
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:]+[^\]]*\]\s*")
_ERROR = re.compile(r"\S*(Error|Exception)(: |$)")


class SignatureError(ValueError):
    """Signatures that cannot be used; the message names the one and what is wrong with it."""


def check(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises SignatureError unless every signature is whole and every pattern one."""
    for kind, keys in (("signatures", KEYS), ("ends", END_KEYS)):
        for item in data.get(kind) or []:
            name, odd = item.get("id"), set(item) - keys
            lacks = {"id", "cause", "cure", "cured_by", "source"} - set(item)
            if odd or lacks or item.get("cured_by") not in CURED_BY:
                raise SignatureError(f"{kind} {name}: unknown {sorted(odd)}, missing {sorted(lacks)}, or its cured_by")
            if item.get("stage") not in (None, "init", "run"):
                raise SignatureError(f"{kind} {name}: stage {item['stage']!r}; init or run was expected")
    patterns = [text for item in data.get("signatures") or [] for text in item["any"]]
    for text in (*patterns, *(data.get("noise") or []), *(data[key] for key in ("ready", "stopping", "suppressed"))):
        try:
            re.compile(text)
        except re.error as error:
            raise SignatureError(f"{text!r} is no regular expression: {error}") from error
    return data


def diagnose(
    lines: Iterable[str],
    signatures: Mapping[str, Any],
    unit: Mapping[str, Any] | None = None,
    kernel: Iterable[str] = (),
    running: int | None = None,
) -> dict[str, Any] | None:
    """``{"id", "cause", "evidence", "cure", "stage", "cured_by", "source", "suppressed"}``, or None for nothing wrong.

    ``lines``: the journal of one run of the server, oldest first; ``unit``: {"exit_status", "result"} of systemd, None
    or empty while it runs; ``kernel``: lines of the kernel's log where they can be read; ``running``: a running limit
    that fits, for the cure. Of several signatures the first in their order counts, and of it the first line; those that
    nothing cures only say that something failed, and come last.
    """
    told = [_PREFIX.sub("", line).strip() for line in lines]
    stop = next((at for at, line in enumerate(told) if re.search(signatures["stopping"], line)), len(told))
    told = told[:stop]
    noise = [re.compile(text) for text in signatures.get("noise") or []]
    telling = [line for line in told if not any(pattern.search(line) for pattern in noise)]
    ready = next((at for at, line in enumerate(telling) if re.search(signatures["ready"], line)), None)
    suppressed = any(re.search(signatures["suppressed"], line) for line in told)
    # The kernel's log tells of other processes and other days too, so it counts where the journal knows no cause, but
    # before what only says that something failed.
    causes = [item for item in signatures.get("signatures") or [] if item["cured_by"] != "none"]
    rest = [item for item in signatures.get("signatures") or [] if item["cured_by"] == "none"]
    passes = [(causes, telling, ready)]
    if unit:
        passes.append((causes, list(kernel), None if ready is None else -1))
    for items, said, since in [*passes, (rest, telling, ready)]:
        for item in items:
            found = _first(item, said, since)
            if found is not None:
                at, line = found
                if items is rest:
                    # What it was stands where the traceback ends.
                    line = next((text for text in reversed(said[at:]) if _ERROR.match(text)), line)
                stage = "run" if since is not None and at > since else "init"
                return _answer(item, line, stage, suppressed, running)
    for item in signatures.get("ends") or []:
        if unit and _ended(item, unit):
            line = f"result {unit.get('result')}, exit status {unit.get('exit_status')}"
            return _answer(item, line, "run" if ready is not None else "init", suppressed, running)
    return None


def _first(item: Mapping[str, Any], lines: Sequence[str], ready: int | None) -> tuple[int, str] | None:
    for at, line in enumerate(lines):
        stage = "run" if ready is not None and at > ready else "init"
        if item.get("stage") in (None, stage) and any(re.search(text, line) for text in item["any"]):
            return at, line
    return None


def _ended(item: Mapping[str, Any], unit: Mapping[str, Any]) -> bool:
    if "result" in item:
        return bool(unit.get("result") == item["result"])
    return str(unit.get("exit_status")) == str(item["status"])


def _answer(item: Mapping[str, Any], line: str, stage: str, suppressed: bool, running: int | None) -> dict[str, Any]:
    limit = "one that fits" if running is None else str(running)
    return {
        "id": item["id"],
        "cause": item["cause"],
        "evidence": line[:300],
        "cure": item["cure"].replace("{running}", limit),
        "stage": stage,
        "cured_by": item["cured_by"],
        "source": item["source"],
        "suppressed": suppressed,
    }


def sentence(found: Mapping[str, Any]) -> str:
    """The diagnosis in one paragraph; says when the journal lost lines."""
    lost = " The journal lost lines (rate limit), so this may not be the first." if found["suppressed"] else ""
    return f"{found['id']}: {found['cause']}. It said: {found['evidence']}. {found['cure']}{lost}"
