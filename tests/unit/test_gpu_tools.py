"""What can be told without a GPU about the tools that measure on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from planning import MODEL, ROOT

TOOLS = ROOT / "tests/gpu"
KEPT = sorted((ROOT / "docs/measurements").glob("*.json"))


def run(tool: str, *words: object) -> str:
    done = subprocess.run([sys.executable, TOOLS / tool, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gpu")
    (place / "config.json").write_text(json.dumps(MODEL["config"]))
    run("prepare.py", place / "out", place / "config.json")
    return place / "out"


def test_every_case_has_a_start_script_with_its_plans_words(prepared: Path) -> None:
    cases = json.loads((prepared / "cases.json").read_text())["cases"]
    wanted = yaml.safe_load((TOOLS / "cases.yml").read_text())["cases"]
    assert [case["name"] for case in cases] == [case["name"] for case in wanted]
    for case in cases:
        script = prepared / "releases" / case["name"] / "run"
        assert subprocess.run(["sh", "-n", script]).returncode == 0
        joined = script.read_text().replace(" \\\n ", "")
        assert " ".join(case["plan"]["argv"]) in joined


def test_the_models_special_tokens_are_those_of_its_tokenizer(prepared: Path) -> None:
    config = json.loads((prepared / "model/config.json").read_text())
    tokens = json.loads((prepared / "model/tokenizer.json").read_text())["added_tokens"]
    known = {token["content"]: token["id"] for token in tokens}
    assert config["image_token_id"] == known["<|image_pad|>"]
    assert config["text_config"]["num_hidden_layers"] == MODEL["config"]["text_config"]["num_hidden_layers"]


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_the_report_is_made_again_from_what_was_kept(kept: Path, tmp_path: Path) -> None:
    whole = json.loads(kept.read_text())
    (tmp_path / "machine.json").write_text(json.dumps(whole["machine"]))
    for case in whole["cases"]:
        (tmp_path / f"{case['case']}.json").write_text(json.dumps(case))
    page = tmp_path / "again.md"
    page.write_text(kept.with_suffix(".md").read_text())
    printed = run("report.py", tmp_path, tmp_path / "again")
    assert printed.splitlines()[-1] == whole["summary"]
    assert page.read_text() == kept.with_suffix(".md").read_text()
    assert json.loads((tmp_path / "again.json").read_text()) == whole
