"""From what a server said to a cause: every known failure, nothing on healthy starts, and what a diagnosis admits."""

import copy

import pytest
import yaml
from sglang_pve import journal

from tests.unit.planning import CASES, ROOT

SIGNATURES = journal.check(yaml.safe_load((ROOT / "signatures/sglang.yml").read_text()))
LINES = yaml.safe_load((CASES / "journal-lines.yml").read_text())["cases"]
READY = "[2026-12-01 02:43:10] The server is fired up and ready to roll!"


def diagnose(lines, **more):
    return journal.diagnose([f"[2026-12-01 02:43:12 TP0] {line}" for line in lines], SIGNATURES, **more)


@pytest.mark.parametrize("case", LINES, ids=lambda case: f"{case['id']}-{(case['lines'] or ['unit'])[0][:30]}")
def test_what_was_said_gets_its_diagnosis(case):
    lines = [READY, *case["lines"]] if case.get("after_ready") else case["lines"]
    found = diagnose(lines, unit=case.get("unit"), kernel=case.get("kernel", ()))
    if case["id"] is None:
        assert found is None
        return
    assert found is not None and found["id"] == case["id"]
    for key in ("cured_by", "stage", "evidence"):
        if key in case:
            assert found[key] == case[key]
    assert found["evidence"] and found["cure"] and found["source"] and "{" not in found["cure"]


def test_every_signature_and_every_end_has_a_case():
    known = {item["id"] for kind in ("signatures", "ends") for item in SIGNATURES[kind]}
    assert known - {case["id"] for case in LINES} <= {"unit-directory"}


@pytest.mark.parametrize("path", sorted((CASES / "journals").glob("*.log")), ids=lambda path: path.stem)
def test_healthy_journals_of_the_real_engine_give_nothing_and_the_failed_one_its_cause(path):
    found = journal.diagnose(path.read_text().splitlines(), SIGNATURES, running=40)
    if "not-enough-memory" not in path.name:
        assert found is None
        return
    assert (found["id"], found["stage"], found["cured_by"]) == ("memory-init", "init", "plan")
    assert "Lower max-running-requests to 40" in found["cure"]
    assert found["evidence"].startswith("RuntimeError: Not enough memory")


def test_lines_that_journald_suppressed_are_admitted():
    found = diagnose(["Suppressed 1234 messages from sglang@0.service", "RuntimeError: Ninja build failed."])
    assert found["suppressed"] and "The journal lost lines" in journal.sentence(found)
    assert "lost" not in journal.sentence(diagnose(["RuntimeError: Ninja build failed."]))


def test_memory_at_a_start_and_in_service_have_opposite_cures():
    words = "torch.OutOfMemoryError: CUDA out of memory."
    start, service = diagnose([words]), diagnose([READY, words])
    assert start["id"] != service["id"] and "not higher" in service["cure"]


def test_the_cause_counts_and_not_what_follows_from_it():
    lines = [
        "fatal error: curand.h: No such file",
        "RuntimeError: Ninja build failed.",
        "Exception: Capture cuda graph failed",
    ]
    assert diagnose(lines)["id"] == "toolkit-incomplete"
    assert diagnose(lines[1:])["id"] == "kernel-compile"
    assert diagnose(lines[2:])["id"] == "memory-capture", (
        "a capture that fails is told by its own line where nothing else is"
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda data: data["signatures"][0].pop("cure"), "cure"),
        (lambda data: data["signatures"][0].update(cured_by="luck"), "cured_by"),
        (lambda data: data["signatures"][0].update(stage="later"), "later"),
        (lambda data: data["signatures"][0].update(any=["("]), "regular expression"),
        (lambda data: data["ends"][0].update(colour="red"), "colour"),
    ],
)
def test_signatures_that_cannot_be_used_are_refused(change, word):
    data = copy.deepcopy(dict(SIGNATURES))
    change(data)
    with pytest.raises(journal.SignatureError, match=word):
        journal.check(data)
