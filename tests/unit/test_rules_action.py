"""playbooks/preflight.yml on facts files: no machine, a table or JSON, exit status 0 or 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WELL = '# a comment\r\nschema: 1\r\nnode: {driver: "580.95.05"}\r\nstack: {driver_min: "580"}\r\n'
OLD = WELL.replace("580.95.05", "570.86")


def preflight(file, content=None, **extra):
    """The playbook as a person runs it, with an inventory that names no host that exists."""
    if content is not None:
        file.write_text(content, newline="")
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        "nowhere.invalid,",
        "playbooks/preflight.yml",
    ]
    extra = {"facts_file": str(file), **extra}
    done = subprocess.run([*command, "-e", json.dumps(extra)], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_facts_that_are_well_end_with_0_and_what_was_not_checked_is_named(tmp_path):
    code, said = preflight(tmp_path / "facts.yml", WELL)
    assert code == 0, said
    assert "not known: toolkit.found: nvcc-missing" in said and "verdict: go (0 errors, 0 warnings," in said
    assert "nowhere.invalid" not in said


def test_an_error_ends_with_2_in_the_table_and_in_json_and_a_waiver_with_a_reason_takes_it_off(tmp_path):
    answer = tmp_path / "answer.json"
    code, said = preflight(tmp_path / "facts.yml", OLD, sglang_preflight_json=str(answer))
    assert code == 2
    assert "ERROR driver-too-old seen driver 570.86 expected driver 580 or later" in said
    assert "Nothing was touched. error driver-too-old: driver 570.86" in said
    written = json.loads(answer.read_text())
    assert written["verdict"] == "no" and written["findings"][0]["id"] == "driver-too-old"
    waive = {"driver-too-old": "a loan until Friday"}
    code, said = preflight(tmp_path / "facts.yml", sglang_waive=waive, sglang_preflight_json=str(answer))
    assert code == 0, said
    assert "WAIVED error driver-too-old seen driver 570.86 reason a loan until Friday" in said
    assert json.loads(answer.read_text())["waived"][""][0]["reason"] == "a loan until Friday"


def test_json_in_place_of_the_table_and_json_as_input(tmp_path):
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({"schema": 1, "node": {"driver": "570.86"}, "stack": {"driver_min": "580"}}))
    code, said = preflight(file, sglang_preflight_json="-")
    assert code == 2 and '"verdict": "no"' in said and "ERROR driver-too-old" not in said


@pytest.mark.parametrize(
    ("content", "extra", "words"),
    [
        (None, {}, ["facts.yml: No such file or directory", "docs/facts.md"]),
        ("a: [", {}, ["is neither JSON nor YAML"]),
        (
            WELL,
            {"sglang_waive": {"driver-to-old": "x"}},
            ["'driver-to-old', which is no rule; did you mean driver-too-old"],
        ),
        (WELL, {"sglang_preflight_json": "/no/such/directory/x"}, ["/no/such/directory/x cannot be written"]),
    ],
)
def test_bad_input_is_refused_in_words(tmp_path, content, extra, words):
    code, said = preflight(tmp_path / "facts.yml", content, **extra)
    assert code == 2
    assert [word for word in words if word not in said] == []
