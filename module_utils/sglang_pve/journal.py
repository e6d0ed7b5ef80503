"""Why a server failed, from its journal, its unit, the kernel and its plan, by signatures that are data (signatures/).

A signature names a cause by patterns of journal lines, of kernel messages, or by how the unit ended. One that is
``general`` (a child died, a compile failed) counts only where no other does. Among the others how the unit ended comes
first, then the earliest line, since what follows a cause are its consequences. Lines of a healthy start that look like
errors are noise, and no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import memory

NOISE_FIELDS = {"id", "noise", "from", "to"}
REQUIRED = ("cause", "cure", "cured_by", "source", "date")
FIELDS = {*REQUIRED, "id", "patterns", "stage", "kernel", "unit", "needs", "general"}
CURED_BY = ("plan", "operator", "none")
STAGES = ("init", "run", "any")
READY = "The server is fired up"
SUPPRESSED = re.compile(r"Suppressed (\d+) messages from (\S+)")
ERROR = re.compile(r"\b\w*(Error|Exception)\b(?!s)[:(]|\berror: |CRITICAL")
AVAILABLE = re.compile(r"Load weight (begin|end)\..*?avail mem=([0-9.]+) GB")
# Evidence is shown in a terminal and kept in the history.
EVIDENCE_CHARS = 300


class SignatureError(ValueError):
    """Signatures that cannot be used; the message names the file, the entry and what is expected."""


@dataclass(frozen=True)
class Plan:
    """What is known of the plan: ``argv`` and ``engine`` of the release, and the checkpoint's ``config`` (config.json).

    All may be empty; then cures lack their numbers.
    """

    argv: Sequence[str] = ()
    engine: str = ""
    config: Mapping[str, Any] | None = None

    @property
    def flags(self) -> dict[str, Any]:
        """Options by name without dashes; True for one without a value."""
        found: dict[str, Any] = {}
        words = list(self.argv)
        for position, word in enumerate(words):
            if word.startswith("--"):
                following = words[position + 1] if position + 1 < len(words) else "--"
                found[word[2:]] = True if following.startswith("--") else following
        return found


@dataclass(frozen=True)
class Diagnosis:
    """One cause. ``evidence`` is the line, ``stage`` init or run, ``cured_by`` plan, operator or none; ``suppressed``
    counts lines that journald dropped, among which a better evidence may have been."""

    id: str
    cause: str
    evidence: str
    cure: str
    stage: str
    cured_by: str
    suppressed: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        lost = f" (journald dropped {self.suppressed} lines)" if self.suppressed else ""
        return f"Cause: {self.cause}. It said: {self.evidence or 'nothing'}{lost}. {self.cure}"


def load(files: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of ``files`` (name -> content), checked, in the order of the names. Raises SignatureError."""
    entries: list[dict[str, Any]] = []
    for file, content in sorted(files.items()):
        if not isinstance(content, list):
            raise SignatureError(f"{file} holds {type(content).__name__}, expected a list of signatures")
        for entry in content:
            _check(file, entry)
            if any(other["id"] == entry["id"] for other in entries):
                raise SignatureError(f"{file}: {entry['id']} is there twice")
            entries.append({**entry, "date": str(entry["date"])} if "date" in entry else entry)
    return entries


def _check(file: str, entry: Any) -> None:
    if not isinstance(entry, dict) or not entry.get("id"):
        raise SignatureError(f"{file}: {str(entry)[:80]} is no signature; expected a mapping with an id")
    where = f"{file}: {entry['id']}"
    noise = bool({"noise", "from"} & set(entry))
    odd = set(entry) - (NOISE_FIELDS if noise else FIELDS)
    if odd:
        raise SignatureError(f"{where} has the unknown field {', '.join(sorted(odd))}")
    lacking = [name for name in REQUIRED if name not in entry and not noise]
    if lacking:
        raise SignatureError(f"{where} has no {', '.join(lacking)}")
    if not noise and (entry["cured_by"] not in CURED_BY or entry.get("stage", "any") not in STAGES):
        raise SignatureError(f"{where}: cured_by is one of {', '.join(CURED_BY)}, stage one of {', '.join(STAGES)}")
    if not {"patterns", "kernel", "unit", "noise", "from"} & set(entry):
        raise SignatureError(f"{where} matches nothing; expected patterns, kernel, unit, noise, or from and to")
    for pattern in _patterns(entry):
        try:
            re.compile(pattern)
        except re.error as error:
            raise SignatureError(f"{where}: {pattern!r} is no regular expression: {error}") from error


def _patterns(entry: Mapping[str, Any]) -> list[str]:
    ends = [entry[key] for key in ("from", "to") if key in entry]
    return [*ends, *(pattern for key in ("patterns", "kernel", "noise") for pattern in entry.get(key) or [])]


def without_noise(lines: Iterable[str], entries: Iterable[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The lines that may be evidence, with their places. A block of noise that has no end is none."""
    entries = list(entries)
    single = [re.compile(pattern) for entry in entries for pattern in entry.get("noise") or []]
    blocks = [(re.compile(entry["from"]), re.compile(entry["to"])) for entry in entries if "from" in entry]
    numbered = [pair for pair in enumerate(lines) if not any(pattern.search(pair[1]) for pattern in single)]
    for begin, end in blocks:
        kept: list[tuple[int, str]] = []
        held: list[tuple[int, str]] = []
        for pair in numbered:
            if held or begin.search(pair[1]):
                held.append(pair)
                held = [] if end.search(pair[1]) else held
            else:
                kept.append(pair)
        numbered = kept + held
    return numbered


def diagnose(
    lines: Sequence[str],
    entries: Sequence[Mapping[str, Any]],
    unit: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    kernel: Sequence[str] = (),
) -> Diagnosis | None:
    """The cause of a failure; None where neither the lines nor the unit tell of one.

    ``lines`` are one run of the unit, oldest first, ``kernel`` messages of its time, and ``unit`` a state as
    host.unit_states gives it ({"result", "exit_status", ...}), which is known to have failed; None when it is not.
    """
    plan = plan or Plan()
    telling = without_noise(lines, entries)
    ready = next((place for place, line in telling if READY in line), len(lines))
    suppressed = sum(int(match[1]) for match in map(SUPPRESSED.search, lines) if match)
    causes = [e for e in entries if "cause" in e and (not e.get("needs") or e["needs"][2:] in plan.flags)]
    for general in (False, True):
        for entry, evidence, place in _matches(
            [e for e in causes if bool(e.get("general")) is general], telling, unit, kernel, ready, len(lines)
        ):
            stage = "run" if place >= ready else "init"
            cure = _computed(str(entry["cure"]), lines, plan)
            if general:
                # What it is about stands at the end of the traceback that follows.
                evidence = next(
                    (line.strip() for at, line in reversed(telling) if at >= place and ERROR.search(line)), evidence
                )
            return Diagnosis(
                entry["id"], entry["cause"], evidence[:EVIDENCE_CHARS], cure, stage, entry["cured_by"], suppressed
            )
    if unit is None:
        return None
    ended = f"result {unit.get('result')}, exit status {unit.get('exit_status')}"
    said = [line.strip() for _, line in telling if ERROR.search(line)]
    return Diagnosis(
        "unknown",
        f"not known; the unit ended with {ended}",
        said[-1][:EVIDENCE_CHARS] if said else "",
        "Read its journal (logs.yml), and pack a bundle with diagnose.yml to report it.",
        "run" if ready < len(lines) else "init",
        "none",
        suppressed,
    )


def _matches(
    entries: Sequence[Mapping[str, Any]],
    telling: Sequence[tuple[int, str]],
    unit: Mapping[str, Any] | None,
    kernel: Sequence[str],
    ready: int,
    count: int,
) -> Iterable[tuple[Mapping[str, Any], str, int]]:
    """Entries that match, the likeliest cause first, with the evidence and its place among the lines."""

    def fits(entry: Mapping[str, Any], place: int) -> bool:
        return entry.get("stage", "any") in ("any", "run" if place >= ready else "init")

    end = count if ready < count else -1
    for entry in entries:
        wanted = entry.get("unit")
        if unit and wanted and fits(entry, end) and all(unit.get(key) == value for key, value in wanted.items()):
            words = [f"{key.replace('_', ' ')} {unit.get(key)}" for key in wanted]
            line = next((line for _, line in telling if _found(entry.get("patterns"), line)), "")
            yield entry, line.strip() or f"systemd: {', '.join(words)}", end
    for place, line in telling:
        for entry in entries:
            if fits(entry, place) and _found(entry.get("patterns"), line):
                yield entry, line.strip(), place
    for line in kernel if unit else ():
        for entry in entries:
            if _found(entry.get("kernel"), line):
                yield entry, f"kernel: {line.strip()}", end


def _found(patterns: Sequence[str] | None, line: str) -> bool:
    return any(re.search(pattern, line) for pattern in patterns or ())


def _computed(cure: str, lines: Sequence[str], plan: Plan) -> str:
    """The cure with its numbers: those of the plan, or nothing in their place."""
    fraction = plan.flags.get("mem-fraction-static")
    running = running_that_fits(lines, plan) if "{mtp_running}" in cure else None
    return cure.replace("{fraction}", f" (now {fraction})" if fraction else "").replace(
        "{mtp_running}", f" to {running} or less" if running else ""
    )


def running_that_fits(lines: Iterable[str], plan: Plan) -> int | None:
    """The most running requests with which one request of full length still has its KV tokens, by the engine's own
    formulas (memory.py) and the free memory that it logged; None where something is not known."""
    free = {match[1]: float(match[2]) for match in map(AVAILABLE.search, lines) if match}
    if len(free) < 2 or plan.engine not in memory.ENGINES or not plan.config:
        return None
    engine = memory.ENGINES[plan.engine]
    try:
        geometry = memory.Geometry.from_config(plan.config)
        asked = memory.MemoryFlags.read(plan.flags, geometry)
        for running in range((asked.running or 1) - 1, 0, -1):
            flags = memory.MemoryFlags.read({**plan.flags, "max-running-requests": running}, geometry)
            pools = engine.pools(geometry, free["begin"], free["end"], flags)
            if pools.tokens >= flags.context and pools.running >= running:
                return running
    except ValueError:
        return None
    return None
