"""Prove that a stack serves before a release is made of it, and keep what was found beside it.

``proof.json`` holds each proof under what it depends on: toolkit, driver, cards, planned words and environment. A plan
that is proven is not proven again until one of them changes. What this machine cannot show, for want of a driver, is
"not checked", and is checked as soon as there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .findings import Finding, errors
from .proof_checks import Checks, Plan, Proof, Subject, program
from .server import write_atomic

SCHEMA = 1
FILE = "proof.json"
# As many plans as a container has cards, for now and before.
KEPT = 16


def prove(subject: Subject, plan: Plan) -> Proof:
    """Prove the stack for one plan, or return the proof that is there. Raises KeyError where the user is missing."""
    checks = Checks(subject, plan)
    seen = checks.look()
    if not seen:
        return checks.proof
    key = _key(subject, plan, seen)
    proofs = _read(subject.directory)
    for entry in proofs:
        if entry["key"] == key:
            return Proof(False, entry["checks"], _not_checked(entry["checks"]))
    proof = checks.run()
    if not errors(proof.findings):
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
        others = [entry for entry in proofs if not _same_words(entry["key"], plan)]
        proofs = [*others, {"key": key, "time": moment, "look": seen, "checks": proof.checks}][-KEPT:]
        write_atomic(subject.directory / FILE, json.dumps({"schema": SCHEMA, "proofs": proofs}, indent=1) + "\n")
    proof.findings += _not_checked(proof.checks)
    return proof


def kept(subject: Subject, plan: Plan) -> bool:
    """Whether there is a proof of the same card and words, whatever else changed since. Runs nothing."""
    return any(_same_words(entry["key"], plan) for entry in _read(subject.directory))


def _same_words(key: Mapping[str, Any], plan: Plan) -> bool:
    return bool(key["card"] == plan.card and key["words"] == _words(plan))


def _words(plan: Plan) -> str:
    return _digest([list(plan.argv), plan.environment])


def _key(subject: Subject, plan: Plan, seen: Mapping[str, Any]) -> dict[str, Any]:
    """What a proof holds for. The toolkit counts by what it says, where it is, and what the overlay was made of."""
    try:
        overlay = (subject.directory / "cuda/manifest.json").read_text()
    except OSError:
        overlay = ""
    return {
        "toolkit": _digest([seen[name] for name in ("says", "tools", "cuda_home", "cxx")] + [overlay]),
        "driver": subject.driver,
        "cuda": seen["cuda"],
        "card": plan.card,
        "gpus": sorted(plan.gpus),
        "words": _words(plan),
        "rules": _digest([dict(subject.rules), program()]),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _read(directory: Path) -> list[dict[str, Any]]:
    """The proofs that are kept; none where the file is missing, damaged or of another version: it is made again."""
    try:
        state = json.loads((directory / FILE).read_text())
        return list(state["proofs"]) if state["schema"] == SCHEMA else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _not_checked(checks: Sequence[Mapping[str, Any]]) -> list[Finding]:
    cure = "Nothing to do here: it is checked when that changes, and a server's start shows it too."
    return [
        Finding("proof-not-checked", "not checked", check["detail"], "a card that can show it", cure, check["check"])
        for check in checks
        if check["result"] == "not checked"
    ]
