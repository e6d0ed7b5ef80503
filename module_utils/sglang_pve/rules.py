"""Rules as data: what must not be together, judged on a facts document.

A rule fires when its condition is true. A fact that is not known never lets a rule pass: it is "not checked", and says
which fact is missing, unless what is known decides alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .conditions import Answer, Condition, ConditionError, fill, full_path, parse, references
from .findings import Finding
from .shape import UNSET, Facts, ShapeError, is_unknown, kind_of, list_of

FIELDS = ("id", "level", "each", "when", "seen", "expected", "cure", "source", "date")
OPTIONAL = ("each",)
LEVELS = ("error", "warning", "note")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class RuleError(ValueError):
    """Rules or waivers that cannot be used; the message names the file and the rule, and what is expected."""


@dataclass(frozen=True)
class Rule:
    """One entry of a file in rules/. ``each`` is the name and the list of ``GPU in gpus``, or empty."""

    id: str
    file: str
    level: str
    each: tuple[str, str] | None
    when: Condition
    seen: str
    expected: str
    cure: str
    source: str
    date: str

    @property
    def needs(self) -> list[str]:
        """The facts that the condition reads, each once, in its order."""
        return list(dict.fromkeys(map(self._whole, self.when.paths())))

    def _whole(self, path: str) -> str:
        """A path of an element as the document has it: ``gpus[].mig`` for ``gpu.mig``."""
        name, _, rest = path.partition(".")
        return f"{self.each[1]}[].{rest}" if self.each and name == self.each[0] else path

    def judge(self, document: Mapping[str, Any]) -> list[Finding]:
        """Nothing where the rule passes; a finding for each element that it fires for; or one "not checked"."""
        facts = Facts(document)
        if not self.each:
            places = [facts]
        else:
            listed = facts.get(self.each[1])
            if is_unknown(listed):
                return [self._not_checked([self.each[1]])]
            places = [] if listed is UNSET else [facts.bind(*self.each, item) for item in listed]
        found: list[Finding] = []
        missing: set[str] = set()
        for place in places:
            answer: Answer = self.when.answer(place)
            if answer.value:
                found.append(self._finding(place))
            elif answer.value is None:
                missing.update(map(self._whole, answer.missing))
        # The same words for several elements are one finding.
        return [*dict.fromkeys(found), *([self._not_checked(sorted(missing))] if missing else [])]

    def _finding(self, facts: Facts) -> Finding:
        seen, expected, cure = (fill(text, facts) for text in (self.seen, self.expected, self.cure))
        return Finding(self.id, self.level, seen, expected, cure, source=f"{self.source}; read {self.date}")

    def _not_checked(self, missing: Sequence[str]) -> Finding:
        seen = f"not known: {', '.join(missing)}"
        cure = "Run preflight where it can be read, or add it to the facts file (docs/facts.md)."
        expected = f"{', '.join(self.needs)} to judge by"
        return Finding(self.id, "not checked", seen, expected, cure, source=f"{self.source}; read {self.date}")


def load(files: Mapping[str, Any]) -> list[Rule]:
    """The rules of ``files`` (name -> content, a list of rules). Raises RuleError at the first that is wrong."""
    rules: dict[str, Rule] = {}
    for file, content in sorted(files.items()):
        if not isinstance(content, list):
            raise RuleError(f"{file} holds {type(content).__name__}, expected a list of rules")
        for entry in content:
            rule = _read(file, entry)
            if rule.id in rules:
                raise RuleError(f"{file}: rule {rule.id} is there twice (also in {rules[rule.id].file})")
            rules[rule.id] = rule
    return list(rules.values())


def _read(file: str, entry: Any) -> Rule:
    if not isinstance(entry, dict) or not _ID.fullmatch(str(entry.get("id", ""))):
        raise RuleError(f"{file}: {str(entry)[:80]} is no rule; expected a mapping with an id such as flashinfer-nvcc")
    where = f"{file}: rule {entry['id']}"
    for field in FIELDS:
        if field not in entry and field not in OPTIONAL:
            raise RuleError(f"{where} has no {field}; expected {', '.join(FIELDS)}")
    for field, value in entry.items():
        if field not in FIELDS:
            raise RuleError(f"{where} has the unknown field {field!r}; expected {', '.join(FIELDS)}")
        if field != "when" and not str(value).strip():
            raise RuleError(f"{where}: {field} is empty")
    if entry["level"] not in LEVELS:
        raise RuleError(f"{where}: level {entry['level']!r} is none of {', '.join(LEVELS)}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(entry["date"])):
        raise RuleError(f"{where}: date {entry['date']!r}; expected the day that its source was read, as 2026-12-01")
    each = _read_each(where, entry.get("each"))
    bound = dict([each]) if each else {}
    texts = {name: " ".join(str(entry[name]).split()) for name in ("seen", "expected", "cure", "source")}
    try:
        when = parse(entry["when"], bound)
        for path in references(" ".join((texts["seen"], texts["expected"], texts["cure"]))):
            kind_of(path, bound)
    except (ConditionError, ShapeError) as error:
        raise RuleError(f"{where}: {error}") from error
    return Rule(entry["id"], file, entry["level"], each, when, **texts, date=str(entry["date"]))


def _read_each(where: str, written: Any) -> tuple[str, str] | None:
    if written is None:
        return None
    match = re.fullmatch(r"(\w+) in (\S+)", str(written))
    if not match:
        raise RuleError(f"{where}: each {written!r}; expected NAME in LIST, such as gpu in gpus")
    try:
        return match[1], list_of(full_path(match[2]))
    except ShapeError as error:
        raise RuleError(f"{where}: {error}") from error


def judge(rules: Iterable[Rule], document: Mapping[str, Any]) -> list[Finding]:
    """What every rule says of one facts document."""
    return [finding for rule in rules for finding in rule.judge(document)]


def check_waivers(rules: Sequence[Rule], waivers: Mapping[str, Any]) -> None:
    """Raise RuleError unless every waiver names a rule and says why."""
    known = [rule.id for rule in rules]
    for id, reason in waivers.items():
        if id not in known:
            close = difflib.get_close_matches(id, known, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else "docs/rules.md lists them all."
            raise RuleError(f"sglang_waive names {id!r}, which is no rule; {hint}")
        if not isinstance(reason, str) or not reason.strip():
            raise RuleError(f"sglang_waive: {id} has no reason; expected why it may be passed over, in words")


def waive(
    findings: Iterable[Finding], waivers: Mapping[str, str], earlier: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[Finding], list[tuple[Finding, str]]]:
    """The findings that remain, and those that are passed over, each with the operator's reason.

    What was not checked is no firing of a rule, so it stays. A waiver that nothing needed is pointed out; not so one of
    ``earlier``, which was given when what is judged was deployed.
    """
    judged = list(findings)
    reasons = {**earlier, **waivers}
    fired = [finding for finding in judged if finding.level != "not checked" and finding.id in reasons]
    remaining = [finding for finding in judged if finding not in fired]
    for id in sorted(waivers.keys() - {finding.id for finding in judged}):
        cure = f"Remove {id} from sglang_waive, so that it is judged again."
        remaining.append(
            Finding("waiver-unused", "note", f"rule {id} did not fire", "waivers that are needed", cure, id)
        )
    return remaining, [(finding, reasons[finding.id].strip()) for finding in fired]
