"""Facts documents with their findings (cases/*.yml), and a case in which each rule fires and one in which it passes."""

from pathlib import Path

import pytest
import yaml
from sglang_pve import pve_config, rules, shape, verdict

from tests.unit.planning import TABLE

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"case", "facts", "conf", "fires", "says", "count", "passes", "not_checked"}
RULES = rules.load({path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "rules").glob("*.yml")})
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['case']}")
    for path in sorted(Path(__file__).with_name("cases").glob("*.yml"))
    for case in yaml.safe_load_all(path.read_text())
    if "facts" in case
]


def document(case):
    """The facts of a case, with what the parser reads in its container's configuration, where it has one."""
    if "conf" not in case:
        return case["facts"]
    config = pve_config.facts(pve_config.parse(case["conf"]))
    return {**case["facts"], "container": {**case["facts"]["container"], "config": config}}


def judged(case):
    """Findings by id; those of the engine's options too, as for any facts file."""
    documents = verdict.read_documents([document(case)], "case")
    subject = verdict.Subject("", documents, [], {})
    found = {}
    (judgement,) = verdict.judge_all(RULES, [subject], lambda engine: TABLE if engine == "0.5.11" else None)
    for finding in judgement.remaining:
        found.setdefault(finding.id, []).append(finding)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_case_gives_its_findings(case):
    assert set(case) <= FIELDS
    found = judged(case)
    fired = {id: one[0].level for id, one in found.items() if one[0].level != "not checked"}
    assert fired == case.get("fires", {})
    for id, count in case.get("count", {}).items():
        assert len([one for one in found[id] if one.level != "not checked"]) == count
    for id, words in case.get("says", {}).items():
        said = " ".join(one.sentence() for one in found[id])
        assert [word for word in words if word not in said] == []
        assert id not in {rule.id for rule in RULES} or "unknown" not in said
    assert [id for id in case.get("passes", []) if id in found or id not in {rule.id for rule in RULES}] == []
    for id, missing in case.get("not_checked", {}).items():
        (finding,) = found[id]
        assert finding.level == "not checked"
        assert finding.seen == f"not known: {', '.join(missing)}" or not missing


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_a_case_in_which_it_fires_and_one_in_which_it_passes(rule):
    cases = [param.values[0] for param in CASES]
    assert any(case.get("fires", {}).get(rule.id) == rule.level for case in cases), "no case in which it fires"
    assert any(rule.id in case.get("passes", []) for case in cases), "no case in which it passes"


def test_every_fact_of_the_shape_can_be_written_down_and_is_of_its_kind():
    """A wrong kind is an error for each fact, so that no rule ever compares what it cannot."""
    wrong = {"version": 1.5, "number": "x", "text": [], "flag": "yes", "list": "x", "option": {}}
    for path, (kind, _) in shape.SHAPE.items():
        if kind.rstrip("?") not in wrong or path == "schema":
            continue
        value = wrong[kind.rstrip("?")]
        for part in reversed(path.replace("*", "name").split(".")):
            value = {part[:-2]: [value]} if part.endswith("[]") else {part: value}
        errors, _ = shape.check({"schema": 1, **value})
        assert len(errors) == 1 and path.replace("*", "name") in errors[0], path
