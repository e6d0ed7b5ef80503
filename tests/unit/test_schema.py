"""State of a newer version is refused; state of the first one, which carries no version in some files, is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sglang_pve import history, schema, server

HISTORY = "var/lib/sglang/history.jsonl"
SERVER = "opt/sglang/servers/gpu0/server.env"
LOAN = "var/lib/sglang/lent/gpu0"
KINDS = {
    "opt/sglang/releases/0123456789ab/manifest.json": '{"schema": 1}',
    "opt/sglang/stacks/ba9876543210/stack.json": '{"schema": 1}',
    "opt/sglang/stacks/ba9876543210/cuda/manifest.json": '{"schema": 1}',
    "opt/sglang/stacks/ba9876543210/proof.json": '{"schema": 1, "proofs": []}',
    SERVER: server.parameters_text({"port": 1}),
    LOAN: server.loan_text({"who": "a", "since": "now", "reason": ""}),
    "etc/sglang/models.json": '{"schema": 1, "models": []}',
    "copy/.sglang-staged.json": '{"schema": 1}',
    "var/lib/sglang/checkpoints/m.json": '{"schema": 1}',
    "run/sglang-pve/adopt/gpu1": '{"schema": 1}',
    "run/sglang-pve/lock.json": '{"schema": 1}',
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    models = json.dumps({"schema": 1, "models": [{"source": "/m", "target": str(tmp_path / "copy")}]})
    for name, text in {**KINDS, "etc/sglang/models.json": models}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    history.append(tmp_path / HISTORY, [{"event": "verified", "kind": "deploy", "servers": {}}])
    return tmp_path


def test_what_this_version_writes_is_known(base: Path):
    assert schema.newer(base) == []
    assert schema.refusal(schema.newer(base)) == ""


@pytest.mark.parametrize("kind", [HISTORY, *KINDS])
def test_a_newer_form_of_any_file_is_refused_in_words(base: Path, kind: str):
    path = base / kind
    text = path.read_text()
    path.write_text(re.sub(r'("schema": |# schema )1', r"\g<1>2", text))
    assert path.read_text() != text
    assert schema.newer(base) == [f"{path} has schema 2, this version knows 1 at most"]
    said = schema.refusal(schema.newer(base))
    assert said.startswith("Nothing was touched. A newer version of this project was here: ")
    assert said.endswith("Use the version that wrote it, or a later one.")


def test_the_newest_line_of_a_history_counts_wherever_it_stands(base: Path):
    with (base / HISTORY).open("a") as handle:
        handle.write('{"event": "verified", "schema": 7}\n{"event": "note", "schema": 1}\n{"event": "activ')
    assert schema.newer(base) == [f"{base / HISTORY} has schema 7, this version knows 1 at most"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "2"}', '{"schema": null}'])
def test_what_carries_no_version_or_none_that_is_a_number_is_no_newer_one(base: Path, text: str):
    """As v0.1.0 wrote server.env and the note of a loan; and what somebody spoiled, which others report."""
    (base / LOAN).write_text('{"who": "a", "since": "now", "reason": ""}\n')
    (base / SERVER).write_text((base / SERVER).read_text().partition("\n")[2])
    (base / "etc/sglang/models.json").write_text(text)
    assert schema.newer(base) == []


def test_an_empty_container_has_nothing_newer(tmp_path: Path):
    assert schema.newer(tmp_path) == []


def test_the_version_in_server_env_is_no_parameter(base: Path):
    seen = server.observe(server.Server(0, base / "opt/sglang", base / "etc/systemd/system"), {}, {})
    assert seen["parameters"] == {"port": "1"}
