"""A finding: one result of a check, in words that a person can act on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

# Worst first; the order in which findings are shown.
LEVELS = ("error", "warning", "not checked", "note")


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    ``level`` is one of LEVELS: an error stops a deployment before anything is touched, "not checked" says that a fact
    was not to be had (never a silent pass). ``where`` names the server, file or container it is about.
    """

    id: str
    level: str
    seen: str
    expected: str
    cure: str
    where: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"finding {self.id}: level {self.level!r} is none of {', '.join(LEVELS)}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """The finding as one line: ``error port-taken ct200-gpu3: seen ...; expected ...; do ...``."""
        where = f" {self.where}" if self.where else ""
        return f"{self.level} {self.id}{where}: {self.seen}; expected {self.expected}. {self.cure}"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (LEVELS.index(f.level), f.id, f.where))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.level == "error"]


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for what several servers have in common, with all of them in ``where``."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    return [replace(finding, where=", ".join(filter(None, where))) for finding, where in places.items()]
