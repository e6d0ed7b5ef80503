"""Rules as data: what is refused when they are loaded, waivers, and that the shipped ones are documented."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sglang_pve import rules, verdict
from sglang_pve.findings import Finding

from tests.unit.planning import TABLE

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "rules").glob("*.yml")}
RULE = {
    "id": "a-rule",
    "level": "error",
    "when": "node.driver < 580",
    "seen": "driver {node.driver}",
    "expected": "580 or later",
    "cure": "Update it.",
    "source": "somewhere",
    "date": "2026-12-01",
}
OLD = {"schema": 1, "node": {"driver": "570"}}


def load(*changed):
    return rules.load({"x.yml": [{**RULE, **one} for one in changed or ({},)]})


def test_a_rule_says_what_it_saw_what_it_expected_what_to_do_and_who_says_so():
    (finding,) = rules.judge(load(), OLD)
    assert finding == Finding(
        "a-rule", "error", "driver 570", "580 or later", "Update it.", "", "somewhere; read 2026-12-01"
    )
    assert rules.judge(load(), {"schema": 1, "node": {"driver": "580"}}) == []


def test_a_rule_names_the_facts_that_it_needs():
    (rule,) = load(
        {"each": "gpu in gpus", "when": ["gpu.mig is true", "node.driver < {stack.driver_min}"], "seen": "{gpu.index}"}
    )
    assert rule.needs == ["gpus[].mig", "node.driver", "stack.driver_min"]
    (finding,) = rule.judge({"schema": 1})
    assert (finding.level, finding.seen) == ("not checked", "not known: gpus")
    (finding,) = rule.judge({"schema": 1, "gpus": [{"mig": True}], "node": {"driver": "570"}})
    assert finding.seen == "not known: stack.driver_min"


def test_an_empty_list_passes_and_an_element_that_is_not_known_stands_beside_one_that_fires():
    (rule,) = load({"each": "gpu in gpus", "when": "gpu.mig is true", "seen": "card {gpu.index}"})
    assert rule.judge({"gpus": []}) == []
    found = rule.judge({"gpus": [{"index": 0, "mig": True}, {"index": 1}, {"index": 2, "mig": False}]})
    assert [(one.level, one.seen) for one in found] == [("error", "card 0"), ("not checked", "not known: gpus[].mig")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": None}, ["x.yml: rule a-rule", "source is empty"]),
        ({"source": "..."}, None),
        ({"level": "fatal"}, ["a-rule", "fatal", "error, warning, note"]),
        ({"date": "yesterday"}, ["a-rule", "yesterday", "2026-12-01"]),
        ({"when": "node.drivr < 580"}, ["x.yml: rule a-rule", "node.drivr", "did you mean node.driver?"]),
        ({"when": "node.driver older 580"}, ["x.yml: rule a-rule", "no operator", "is not"]),
        ({"seen": "{node.drivr}"}, ["a-rule", "node.drivr"]),
        ({"each": "gpus"}, ["a-rule", "NAME in LIST"]),
        ({"each": "gpu in node.driver"}, ["a-rule", "no list 'node.driver'"]),
        ({"colour": "blue"}, ["a-rule", "unknown field 'colour'"]),
        ({"id": "A Rule"}, ["x.yml", "is no rule"]),
        ({"cure": " "}, ["a-rule", "cure is empty"]),
    ],
)
def test_a_rule_that_is_wrong_is_named_with_its_file(change, words):
    entry = {**RULE, **change}
    if words is None:
        del entry["source"]
        words = ["x.yml: rule a-rule has no source"]
    entry = {key: "" if value is None else value for key, value in entry.items()}
    with pytest.raises(rules.RuleError) as refused:
        rules.load({"x.yml": [entry]})
    assert [word for word in words if word not in str(refused.value)] == []


def test_two_rules_of_one_name_and_a_file_that_holds_none_are_refused():
    with pytest.raises(rules.RuleError, match=r"a-rule is there twice \(also in x.yml\)"):
        rules.load({"x.yml": [RULE], "y.yml": [RULE]})
    with pytest.raises(rules.RuleError, match=r"y.yml holds NoneType, expected a list"):
        rules.load({"y.yml": None})


def test_a_waiver_takes_a_finding_off_and_keeps_it_with_its_reason():
    judged = rules.judge(load(), OLD)
    remaining, waived = rules.waive(judged, {"a-rule": " tested here "})
    assert remaining == [] and waived == [(judged[0], "tested here")]


def test_a_waiver_that_nothing_needed_is_pointed_out_and_one_for_what_was_not_checked_changes_nothing():
    remaining, waived = rules.waive(rules.judge(load(), {"schema": 1, "node": {"driver": "590"}}), {"a-rule": "why"})
    assert [(one.id, one.level, one.where) for one in remaining] == [("waiver-unused", "note", "a-rule")] and not waived
    remaining, waived = rules.waive(rules.judge(load(), {"schema": 1}), {"a-rule": "why"})
    assert [(one.id, one.level) for one in remaining] == [("a-rule", "not checked")] and not waived


@pytest.mark.parametrize(
    ("waivers", "words"),
    [
        ({"a-rul": "why"}, ["a-rul", "did you mean a-rule?"]),
        ({"nothing-like-it": "why"}, ["docs/rules.md"]),
        ({"a-rule": ""}, ["a-rule has no reason"]),
        ({"a-rule": None}, ["a-rule has no reason"]),
        ({"a-rule": True}, ["a-rule has no reason"]),
    ],
)
def test_a_waiver_names_a_rule_and_a_reason(waivers, words):
    with pytest.raises(rules.RuleError) as refused:
        rules.check_waivers(load(), waivers)
    assert [word for word in words if word not in str(refused.value)] == []


def judge(documents, found=(), waivers=None):
    subject = verdict.Subject("ct", documents, found, waivers or {})
    (found,) = verdict.judge_all(load(), [subject], lambda engine: TABLE)
    return found


def test_what_another_check_has_said_under_the_same_id_is_said_once_and_waived_all_the_same():
    own = Finding("a-rule", "error", "another way to see it", "580", "Update it.")
    assert judge([OLD], [own]).remaining == [own]
    assert judge([OLD], [own], {"a-rule": "why"}).waived == [(own, "why")]


def test_servers_that_differ_are_named_in_short_where_they_differ():
    documents = [
        {**OLD, "servers": ["ct200-gpu0", "ct200-gpu1", "ct200-gpu2", "ct200-gpu5"]},
        {"schema": 1, "node": {"driver": "590"}, "servers": ["ct200-gpu3"]},
    ]
    assert [one.where for one in judge(documents).remaining] == ["ct200-gpu[0-2,5]"]
    assert [one.where for one in judge(documents[:1]).remaining] == [""]
    assert [one.where for one in judge([OLD, OLD]).remaining] == ["document 1", "document 2"]
    assert verdict.fold(["big", "ct200-gpu7"]) == "big, ct200-gpu7"


def test_of_several_containers_each_has_its_waivers_and_its_name():
    subjects = [
        verdict.Subject("a", [{**OLD, "servers": ["ct1-gpu0", "ct1-gpu1"]}], [], {}),
        verdict.Subject("b", [{**OLD, "servers": ["ct2-gpu0"]}], [], {"a-rule": "why"}),
    ]
    one, other = verdict.judge_all(load(), subjects, lambda engine: TABLE)
    assert [finding.where for finding in one.remaining] == ["ct1-gpu[0-1]"] and not one.waived
    assert [finding.where for finding, _ in other.waived] == ["ct2-gpu0"] and not other.remaining


def test_findings_of_a_plan_that_was_saved_count_and_its_options_are_not_judged_again():
    found = Finding("flag-value", "error", "x", "y", "z", "--page-size").as_dict()
    plan = {"options": {"no-such-option": "1"}, "findings": [found]}
    document = {
        "schema": 1,
        "node": {"driver": "590"},
        "stack": {"engine": "0.5.11"},
        "plan": plan,
        "servers": ["a", "b"],
    }
    assert [(one.id, one.where) for one in judge([document]).remaining] == [
        ("flag-value", "a --page-size"),
        ("flag-value", "b --page-size"),
    ]


def test_the_shipped_rules_cite_no_address_that_nobody_can_open():
    for entry in (entry for content in FILES.values() for entry in content):
        assert len(entry["source"]) > 15, entry["id"]
        assert not re.search(r"(^|[\s(])/\w", entry["source"]), f"{entry['id']}: a path of somebody's machine"
        assert "work" not in entry["source"].split("/")[1:-1] and " U" not in entry["source"], entry["id"]


def test_every_option_that_a_rule_names_is_one_of_an_engine():
    known = {
        row.split("\t")[0] for path in (ROOT / "stacks/flags").glob("*.tsv") for row in path.read_text().splitlines()
    }
    # The name that 0.5.15 gave to mamba-scheduler-strategy.
    known.add("--mamba-radix-cache-strategy")
    named = {
        f"--{path.removeprefix('plan.options.')}"
        for rule in rules.load(FILES)
        for path in rule.needs
        if path.startswith("plan.options.")
    }
    assert named - known == set()


def test_the_pages_of_rules_and_facts_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/rules.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "docs/rules.md and docs/facts.md are current\n")
