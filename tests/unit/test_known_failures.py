"""docs/known-failures.md: every rule stands there, and every rule, finding, signature and test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_rules import FILES

ROOT = Path(__file__).resolve().parents[2]
RULES = {entry["id"] for content in FILES.values() for entry in content}
ROW = re.compile(r"\| ([A-Z])(\d+) \| ([^|]+) \| ([^|]*)\| ([^|]*)\|")
ROWS = [
    match.groups() for match in map(ROW.fullmatch, (ROOT / "docs/known-failures.md").read_text().splitlines()) if match
]
# The lists that the page is to cover, by the letter of their rows.
LISTS = {"F": 17, "B": 9, "S": 5, "C": 11, "M": 8, "L": 17}


def names(text: str, kind: str = "") -> set[str]:
    return set(re.findall(rf"(?<![:\w]){kind}`([\w-]+)`", text))


def test_no_row_of_a_list_is_missing_and_each_is_said_somewhere() -> None:
    assert [(letter, int(number)) for letter, number, *_ in ROWS] == [
        (letter, number) for letter, count in LISTS.items() for number in range(1, count + 1)
    ]
    assert [row for row in ROWS if not (row[3] + row[4]).strip()] == []


def test_every_rule_stands_there() -> None:
    assert RULES - set().union(*(names(before) for *_, before, _ in ROWS)) == set()


@pytest.mark.parametrize("kind", ["", "s:", "t:"])
def test_what_it_names_exists(kind: str) -> None:
    named = set().union(*(names(before + later, kind) for *_, before, later in ROWS))
    modules = "".join(path.read_text() for path in (ROOT / "module_utils/sglang_pve").glob("*.py"))
    signatures = (ROOT / "signatures/sglang.yml").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = {
        # The first argument of a call, or the second after what was checked.
        "": RULES | set(re.findall(r'\w\(\s*(?:(?:\w+|"\w+"), )?"([a-z0-9]+(?:-[a-z0-9]+)+)",', modules)),
        "s:": set(re.findall(r"(?m)^  - id: (\S+)$", signatures)),
        "t:": set(re.findall(r"(?m)^def (test_\w+)", tests)),
    }
    assert len(named) > 9 and named - known[kind] == set()
