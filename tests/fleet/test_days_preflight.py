"""A preflight of a fleet that serves: it changes nothing, and every server goes on as the process that it was."""

from __future__ import annotations

import json

import pytest
from fleet_kit import Fleet, changes

from tests.unchanged import differences, state

pytestmark = pytest.mark.container


def test_preflight_of_servers_that_serve_changes_nothing(days: Fleet) -> None:
    before = state(days.lab)
    done = days.run("preflight", sglang_preflight_json=str(days.folder / "answer.json"))
    assert done.returncode == 0, done.stdout
    assert changes(done) == 0
    assert differences(before, state(days.lab)) == {}
    assert json.loads((days.folder / "answer.json").read_text())["verdict"] == "go"
