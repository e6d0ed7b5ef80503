"""Facts documents and container configurations with junk in them: refused in words or judged, and nothing else.

The same examples in every run; FUZZ_CASES=20000 tries so many others.
"""

from __future__ import annotations

import copy
import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_pve import pve_config, shape, verdict

from tests.unit.test_pve_config import FILE
from tests.unit.test_rule_cases import CASES, RULES, TABLE, document

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["0.5.11", "12.0", "0-9"])
)
JUNK = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3), max_leaves=5
)
OTHERS = int(os.environ.get("FUZZ_CASES", "0"))
LIKELY = st.sampled_from([None, [], {}, [None], [[]], {8: 1}, "x", 0, True])
DOCUMENTS = [document(param.values[0]) for param in CASES]
LINES = st.lists(st.sampled_from(FILE.splitlines()), max_size=20)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document, below its first level."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * (len(path) > 0) + [place for name, part in inner for place in places(part, (*path, name))]


def judge(facts: dict[str, Any]) -> None:
    documents = verdict.read_documents([facts], "f")
    verdict.judge_all(RULES, [verdict.Subject("", documents, [], {})], lambda engine: TABLE)


@settings(max_examples=OTHERS or 600, derandomize=not OTHERS, deadline=None, database=None)
@given(st.sampled_from(DOCUMENTS), st.data())
def test_junk_in_the_place_of_a_fact(facts: dict[str, Any], data: st.DataObject) -> None:
    spoilt = copy.deepcopy(facts)
    *above, name = data.draw(st.sampled_from(places(spoilt)))
    here = spoilt
    for step in above:
        here = here[step]
    here[name] = data.draw(LIKELY | JUNK)
    try:
        judge(spoilt)
    except verdict.FactsError as error:
        assert "facts file f: " in str(error) and "docs/facts.md" in str(error)


@settings(max_examples=OTHERS or 200, derandomize=not OTHERS, deadline=None, database=None)
@given(LINES, st.lists(st.text(), max_size=3), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_configuration_of_lines_in_any_order_and_of_text_that_is_none(
    lines: list[str], text: list[str], end: str
) -> None:
    config = pve_config.facts(pve_config.parse(end.join([*lines, *text, *lines])))
    facts = {"schema": 1, "container": {"config": config}}
    assert shape.check(facts) == ([], [])
    judge(facts)
