"""Every known failure gives its diagnosis, every healthy start none. Cases are data: journals/cases.yml."""

from pathlib import Path

import pytest
import yaml
from sglang_pve import journal

from tests.unit.planning import MODEL

ROOT = Path(__file__).resolve().parents[2]
JOURNALS = Path(__file__).with_name("journals")
SIGNATURES = journal.load({path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "signatures").glob("*.yml")})
CASES = yaml.safe_load((JOURNALS / "cases.yml").read_text())
FIELDS = {*["id", "log", "lines", "argv", "unit", "kernel", "says", "evidence", "stage", "cured_by", "suppressed"]}
FAILED = "mtp-noradix-48-not-enough-memory.log"


def lines_of(log):
    return (JOURNALS / log).read_text().splitlines()


def diagnosed(case):
    lines = (lines_of(case["log"]) if "log" in case else []) + case.get("lines", [])
    plan = journal.Plan(case.get("argv", []), "0.5.11", MODEL["config"])
    return journal.diagnose(lines, SIGNATURES, case.get("unit"), plan, case.get("kernel", []))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['id']}-{str(case.get('lines') or case.get('unit'))[:40]}"
)
def test_a_case_gives_its_diagnosis(case):
    assert set(case) <= FIELDS
    found = diagnosed(case)
    assert (found.id if found else "none") == case["id"]
    if not found:
        return
    assert [word for word in case.get("says", []) if word not in found.sentence()] == []
    assert case.get("evidence", "") in found.evidence
    for key in ("stage", "cured_by", "suppressed"):
        assert key not in case or getattr(found, key) == case[key]
    assert "{" not in found.cure


@pytest.mark.parametrize("log", sorted(path.name for path in JOURNALS.glob("*.log") if path.name != FAILED))
def test_a_healthy_start_gives_none(log):
    assert journal.diagnose(lines_of(log), SIGNATURES) is None


def test_every_signature_has_a_case():
    assert {entry["id"] for entry in SIGNATURES if "cause" in entry} - {case["id"] for case in CASES} == set()


def test_noise_is_what_a_healthy_start_would_otherwise_be_found_guilty_of():
    """Without the list of noise the last error named in a healthy journal is one of its harmless lines."""
    ended = {"result": "exit-code", "exit_status": 1}
    assert journal.diagnose(lines_of("noradix.log"), SIGNATURES, ended).evidence == ""
    bare = [entry for entry in SIGNATURES if "cause" in entry]
    assert "libtorchcodec" in journal.diagnose(lines_of("noradix.log"), bare, ended).evidence


def test_the_computed_number_is_the_most_that_the_formulas_allow():
    argv = next(case for case in CASES if case["id"] == "pools-no-room-mtp")["argv"]
    plan = journal.Plan(argv, "0.5.11", MODEL["config"])
    assert journal.running_that_fits(lines_of(FAILED), plan) == 46
    assert journal.running_that_fits(lines_of(FAILED), journal.Plan(argv, "9.9", MODEL["config"])) is None
    assert journal.running_that_fits([], plan) is None


GOOD = {
    "id": "a",
    "patterns": ["x"],
    "cause": "c",
    "cure": "d",
    "cured_by": "plan",
    "source": "s",
    "date": "2026-12-01",
}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("text", "no signature"),
        ({**GOOD, "cured_by": "prayer"}, "cured_by is one of plan, operator, none"),
        ({**GOOD, "patterns": ["("]}, "no regular expression"),
        ({**GOOD, "colour": "red"}, "unknown field colour"),
        ({key: value for key, value in GOOD.items() if key != "cure"}, "has no cure"),
        ({key: value for key, value in GOOD.items() if key != "patterns"}, "matches nothing"),
    ],
)
def test_a_signature_that_cannot_be_used_is_refused(entry, words):
    with pytest.raises(journal.SignatureError, match=words):
        journal.load({"x.yml": [entry]})
    with pytest.raises(journal.SignatureError, match="there twice"):
        journal.load({"x.yml": [GOOD, GOOD]})
