"""Every known failure gives its diagnosis, every healthy start none. Cases are data: journals/cases.yml."""

import json
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from sglang_pve import fits, journal

from tests.unit.planning import MODEL

ROOT = Path(__file__).resolve().parents[2]
JOURNALS = Path(__file__).with_name("journals")
SIGNATURES = journal.check(yaml.safe_load((ROOT / "signatures/sglang.yml").read_text()))
CASES = yaml.safe_load((JOURNALS / "cases.yml").read_text())
FIELDS = {"id", "log", "lines", "argv", "unit", "kernel", "says", "evidence", "stage", "cured_by", "suppressed"}
FAILED = "mtp-noradix-48-not-enough-memory.log"


def lines_of(log):
    return (JOURNALS / log).read_text().splitlines()


def running(lines, argv, engine="0.5.11"):
    return fits.running(lines, engine, argv, MODEL["config"])


def diagnosed(case):
    # Journals of the evidence end with a stop that was asked for; a failure happens before.
    log = lines_of(case["log"]) if "log" in case else []
    lines = list(takewhile(lambda line: "SIGTERM" not in line, log)) + case.get("lines", [])
    number = running(lines, case["argv"]) if "argv" in case else None
    return journal.diagnose(lines, SIGNATURES, case.get("unit"), case.get("kernel", []), number)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_gives_its_diagnosis(case):
    assert set(case) <= FIELDS
    found = diagnosed(case)
    assert (found["id"] if found else "none") == case["id"]
    if found:
        assert [word for word in case.get("says", []) if word not in journal.sentence(found)] == []
        assert {key: found[key] for key in ("stage", "cured_by", "suppressed") if key in case}.items() <= case.items()
        assert case.get("evidence", "") in found["evidence"]
        assert "{" not in found["cure"]


@pytest.mark.parametrize("log", sorted(path.name for path in JOURNALS.glob("*.log") if path.name != FAILED))
def test_a_healthy_start_gives_none(log):
    assert journal.diagnose(lines_of(log), SIGNATURES) is None


def test_every_signature_has_a_case():
    known = {item["id"] for kind in ("signatures", "ends") for item in SIGNATURES[kind]}
    assert known - {case["id"] for case in CASES} == set()


def test_noise_is_what_a_healthy_start_would_otherwise_be_found_guilty_of():
    assert journal.diagnose(lines_of("noradix.log"), {**SIGNATURES, "noise": []}) is not None


def test_a_dropped_line_is_admitted():
    lines = ["Suppressed 1234 messages from sglang@0.service", "OSError: [Errno 28] No space left on device"]
    assert "lost lines" in journal.sentence(journal.diagnose(lines, SIGNATURES))


def test_the_computed_number_is_the_most_that_the_formulas_allow(tmp_path):
    """The real engine refused 48 with these flags and this memory, and served 40."""
    argv = next(case["argv"] for case in CASES if "argv" in case)
    assert running(lines_of(FAILED), argv) == 46
    assert running(lines_of(FAILED), argv, engine="9.9") is None
    assert running([], argv) is None
    (tmp_path / "config.json").write_text(json.dumps(MODEL["config"]))
    manifest = {"model": {"path": str(tmp_path)}, "stack": {"engine": "0.5.11"}, "plan": {"argv": argv}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert fits.of_release(tmp_path, lines_of(FAILED)) == 46
    assert fits.of_release(tmp_path / "none", lines_of(FAILED)) is None


GOOD = {"id": "a", "any": ["x"], "cause": "c", "cure": "d", "cured_by": "plan", "source": "s"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cured_by": "prayer"}, "its cured_by"),
        ({"any": ["("]}, "no regular expression"),
        ({"colour": "red"}, "unknown .'colour'."),
        ({"stage": "later"}, "init or run was expected"),
    ],
)
def test_a_signature_that_cannot_be_used_is_refused(change, words):
    with pytest.raises(journal.SignatureError, match=words):
        journal.check({**SIGNATURES, "signatures": [{**GOOD, **change}]})
