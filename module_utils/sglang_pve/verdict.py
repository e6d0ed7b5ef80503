"""The verdict on containers: rules on their facts documents, findings made elsewhere, and what an operator waives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import facts, shape
from .findings import Finding
from .rules import Rule, check_waivers, waive
from .rules import judge as judge_rules


class FactsError(ValueError):
    """A facts file that cannot be judged; the message says what is wrong with it and what is expected."""


@dataclass(frozen=True)
class Subject:
    """One container, or one file: its documents, what was found elsewhere, and the operator's waivers.

    ``earlier`` are rules that were waived when what is judged was deployed; one that is gone since does no harm.
    """

    name: str
    documents: Sequence[Mapping[str, Any]]
    found: Sequence[Finding]
    waivers: Mapping[str, Any]
    earlier: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What remains, and what is passed over with its reason."""

    subject: str
    remaining: list[Finding]
    waived: list[tuple[Finding, str]]


def read_documents(content: Sequence[Any], name: str) -> list[facts.Document]:
    """Check the documents of a facts file. Raises FactsError, which names every fault of the first wrong one."""
    documents = [document for document in content if document is not None]
    if not documents:
        raise FactsError(
            f"facts file {name} is empty; expected a document as docs/facts.md shows, or one that was saved"
        )
    checked = []
    for number, document in enumerate(documents, 1):
        wrong, strange = shape.check(document)
        wrong += [] if wrong else _wrong_findings(document)
        if wrong:
            place = f"document {number} of facts file {name}" if len(documents) > 1 else f"facts file {name}"
            raise FactsError(f"{place}: {'; '.join(wrong)}. docs/facts.md has every fact and its kind")
        checked.append(facts.derived({**document, "_strange": strange}))
    return checked


def _wrong_findings(document: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about findings of a document that are none."""
    for part in ("model", "plan"):
        items = (document.get(part) or {}).get("findings") or []
        if not isinstance(items, list):
            yield f"{part}.findings is {items!r}, expected a list"
            continue
        for item in items:
            try:
                Finding(**item)
            except (TypeError, ValueError) as error:
                yield f"{part}.findings has {item!r}: {error}"
            else:
                if not all(isinstance(value, str) for value in item.values()):
                    yield f"{part}.findings has {item!r}, expected texts"


def judge_all(rules: Sequence[Rule], subjects: Sequence[Subject], tables: facts.Tables) -> list[Verdict]:
    """Judge containers, or a file. Raises RuleError for a waiver of no rule, or without a reason.

    ``tables`` gives the flag table of an engine. With several documents a finding names the servers that it is about.
    """
    for subject in subjects:
        check_waivers(rules, subject.waivers)
    alone = sum(len(subject.documents) for subject in subjects) == 1
    return [_judge(rules, subject, tables, alone) for subject in subjects]


def _judge(rules: Sequence[Rule], subject: Subject, tables: facts.Tables, alone: bool) -> Verdict:
    found = list(subject.found)
    ids = {finding.id for finding in found}
    for number, document in enumerate(subject.documents, 1):
        servers = [str(name) for name in document.get("servers") or []]
        made = _made_with_plan(document, servers, tables)
        said = ids | {finding.id for finding in made}
        where = "" if alone else fold(servers) or f"document {number}"
        # What a check has said under the same id is not said twice.
        ruled = [finding for finding in judge_rules(rules, _canonical(document, tables)) if finding.id not in said]
        found += [*made, *(replace(finding, where=where) for finding in ruled)]
    remaining, waived = waive(dict.fromkeys(found), subject.waivers, subject.earlier)
    return Verdict(subject.name, remaining, waived)


def _made_with_plan(document: Mapping[str, Any], servers: Sequence[str], tables: facts.Tables) -> list[Finding]:
    """Findings that the document holds or, where its plan was never checked, those of its options."""
    model, plan = document.get("model") or {}, document.get("plan") or {}
    found = [_of_model(Finding(**item), str(model.get("path") or "")) for item in model.get("findings") or []]
    strange = document.get("_strange") or []
    found += [
        Finding("fact-unknown", "warning", text, "facts of docs/facts.md", "Correct its name.") for text in strange
    ]
    if "findings" in plan:
        made = [Finding(**item) for item in plan["findings"]]
        return found + [
            replace(item, where=f"{host} {item.where}".strip()) for host in servers or [""] for item in made
        ]
    options, engine = plan.get("options"), (document.get("stack") or {}).get("engine")
    if options is None or engine is None:
        return found
    table = tables(engine)
    if table is None:
        cure = "Add stacks/flags/sglang-VERSION.tsv, or look into the engine's --help."
        expected = "options that this engine knows"
        return [*found, Finding("flags-unchecked", "not checked", f"no flag table of SGLang {engine}", expected, cure)]
    return found + table.check(options)


def _of_model(finding: Finding, path: str) -> Finding:
    """A finding about a file of a checkpoint, with the checkpoint's directory."""
    where = finding.where if finding.where.startswith(path) else "/".join(filter(None, (path, finding.where)))
    return replace(finding, where=where)


def _canonical(document: Mapping[str, Any], tables: facts.Tables) -> Mapping[str, Any]:
    """The document with each option under the name that rules use."""
    plan = document.get("plan") or {}
    table = tables((document.get("stack") or {}).get("engine")) if plan.get("options") else None
    if table is None:
        return document
    options = {table.canonical(name): value for name, value in plan["options"].items()}
    return {**document, "plan": {**plan, "options": options}}


def fold(names: Iterable[str]) -> str:
    """Names that end in numbers, in short: ``ct200-gpu[0-3,5], other``."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        stem = re.sub(r"\d+$", "", name)
        numbers.setdefault(stem, []).extend([int(name[len(stem) :])] if name != stem else [])
    return ", ".join(f"{stem}{_ranges(sorted(found))}" for stem, found in numbers.items())


def _ranges(numbers: Sequence[int]) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return "[" + ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) + "]"
