"""The language of rules: clauses such as ``--page-size > 1``, read when rules are loaded, answered on a facts document.

    PATH is VALUE | is not VALUE | is set | is not set | in [A, B] | not in [A, B]
    PATH < VALUE | <= | > | >=       versions and numbers, by the fact's type
    PATH divides VALUE | not divides VALUE
    PATH has VALUE | lacks VALUE     lists
    PATH matches REGEX | not matches REGEX

``--name`` is the fact ``plan.options.name``, ``$NAME`` is ``plan.environment.NAME``. A value in braces is another fact:
``{node.driver}``, ``{--speculative-num-steps} + 1``, ``/dev/nvidia{gpu.minor}``. A list of conditions means all of
them; ``any``, ``all`` and ``not`` combine. An answer is true, false or unknown, with the facts that it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Union

from .shape import UNKNOWN, UNSET, Facts, ShapeError, is_unknown, kind_of

NEGATED = {"is not": "is", "not in": "in", "lacks": "has", "not matches": "matches", "not divides": "divides"}
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": lambda a, b: bool(a <= b),
    ">=": lambda a, b: bool(a >= b),
    "<": lambda a, b: bool(a < b),
    ">": lambda a, b: bool(a > b),
    "divides": lambda a, b: a != 0 and b % a == 0,
}
OPERATORS = ("is set", "is not set", *NEGATED, *NEGATED.values(), *ORDERS)
ORDERED_KINDS = ("version", "number", "option")
_REFERENCE = re.compile(r"\{([^{}]+)\}")
_SUM = re.compile(r"\{([^{}]+)\}(?:\s*([+*])\s*(\d+))?")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.-]?(dev|a|b|rc|post)(\d*))?(?:\+.*)?")
_PHASES = {"dev": -4, "a": -3, "b": -2, "rc": -1, None: 0, "post": 1}


class ConditionError(ValueError):
    """A condition that is not of the language; the message says what was read and what is expected."""


@dataclass(frozen=True)
class Answer:
    """``value`` is None where it is not known; ``missing`` are the paths that would settle it."""

    value: bool | None
    missing: frozenset[str] = frozenset()


def full_path(text: str) -> str:
    """A path with its short forms written out."""
    if text.startswith("--"):
        return "plan.options." + text[2:]
    return "plan.environment." + text[1:] if text.startswith("$") else text


def version_key(text: Any) -> tuple[Any, ...] | None:
    """A key that sorts versions: 0.5.10 after 0.5.9, rc before, post after, +cu129 ignored. None for another text."""
    match = _VERSION.fullmatch(str(text).strip())
    if not match:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return (numbers, _PHASES[match[2]], int(match[3] or 0))


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _same(left: Any, right: Any) -> bool:
    numbers = _number(left), _number(right)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return _word(left) == _word(right)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """A value in a message."""
    if value is UNSET:
        return "not set"
    if is_unknown(value):
        return "unknown"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def references(text: str) -> list[str]:
    """Paths that a message or a value names in braces."""
    return [full_path(match) for match in _REFERENCE.findall(text)]


def fill(text: str, facts: Facts) -> str:
    """A message with its facts put in."""
    return _REFERENCE.sub(lambda match: shown(facts.get(full_path(match[1]))), text)


@dataclass(frozen=True)
class Clause:
    """One comparison. ``values`` are as written, several where a list is; ``kind`` is that of the fact."""

    path: str
    operator: str
    values: tuple[str, ...]
    kind: str

    def paths(self) -> Iterator[str]:
        yield self.path
        for value in self.values if "matches" not in self.operator else ():
            yield from references(value)

    def answer(self, facts: Facts) -> Answer:
        left = facts.get(self.path)
        if is_unknown(left):
            return Answer(None, frozenset({self.path}))
        if self.operator in ("is set", "is not set"):
            return Answer((left is not UNSET) is (self.operator == "is set"))
        if self.operator in NEGATED:
            found = replace(self, operator=NEGATED[self.operator]).answer(facts)
            return Answer(None if found.value is None else not found.value, found.missing)
        if left is UNSET:
            return Answer(False)
        if self.operator == "matches":
            return Answer(re.search(self.values[0], shown(left)) is not None)
        return self._compare(left, facts)

    def _compare(self, left: Any, facts: Facts) -> Answer:
        rights: list[Any] = []
        missing: set[str] = set()
        for value in self.values:
            right = self._right(value, facts)
            if is_unknown(right):
                missing.update(path for path in references(value) if is_unknown(facts.get(path)))
            elif right is not UNSET:
                rights.append(right)
        if self.operator in ORDERS:
            found = any(self._ordered(left, right) for right in rights)
        elif self.operator == "has":
            found = any(_same(item, right) for item in left for right in rights)
            missing.update({self.path} if None in left else ())
        elif isinstance(left, list):
            found = len(left) == len(rights) and all(map(_same, left, rights))
        else:
            flat = [item for right in rights for item in (right if isinstance(right, list) else [right])]
            found = any(_same(left, right) for right in flat)
        return Answer(True) if found else Answer(None, frozenset(missing)) if missing else Answer(False)

    def _right(self, value: str, facts: Facts) -> Any:
        """The value of an operand: a fact, a fact and a number, a text with facts in it, or what is written."""
        match = _SUM.fullmatch(value)
        if not match:
            paths = references(value)
            return UNKNOWN if any(is_unknown(facts.get(path)) for path in paths) else fill(value, facts)
        found = facts.get(full_path(match[1]))
        number = _number(found)
        if not match[2] or number is None:
            return found
        return number + int(match[3]) if match[2] == "+" else number * int(match[3])

    def _ordered(self, left: Any, right: Any) -> bool:
        key = version_key if self.kind == "version" else _number
        a, b = key(left), key(right)
        return a is not None and b is not None and ORDERS[self.operator](a, b)


@dataclass(frozen=True)
class Group:
    """``all`` or ``any`` of conditions, or ``not`` of all of them."""

    word: str
    parts: tuple[Condition, ...]

    def paths(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.paths()

    def answer(self, facts: Facts) -> Answer:
        answers = [part.answer(facts) for part in self.parts]
        deciding = self.word == "any"
        # One part that decides is enough, whatever else is not known.
        if any(answer.value is deciding for answer in answers):
            found = Answer(deciding)
        elif any(answer.value is None for answer in answers):
            found = Answer(None, frozenset().union(*(answer.missing for answer in answers)))
        else:
            found = Answer(not deciding)
        if self.word != "not" or found.value is None:
            return found
        return Answer(not found.value)


Condition = Union[Clause, Group]


def parse(written: Any, bound: Mapping[str, str]) -> Condition:
    """Read the condition of a rule. ``bound`` maps the name of an ``each`` to its list. Raises ConditionError."""
    if isinstance(written, str):
        return parse_clause(written, bound)
    if isinstance(written, list) and written:
        return Group("all", tuple(parse(part, bound) for part in written))
    if isinstance(written, dict) and len(written) == 1:
        ((word, parts),) = written.items()
        if word in ("all", "any", "not") and parts:
            inner = parts if isinstance(parts, list) else [parts]
            return Group(word, tuple(parse(part, bound) for part in inner))
    raise ConditionError(f"condition {written!r}; expected a clause, a list of them, or one of all, any, not")


def parse_clause(text: str, bound: Mapping[str, str]) -> Clause:
    """Read one clause. Raises ConditionError."""
    words = "|".join(re.escape(word) for word in sorted(OPERATORS, key=len, reverse=True))
    match = re.fullmatch(rf"(\S+) ({words})(?: (.+))?", text.strip())
    if not match:
        known = ", ".join(sorted(OPERATORS))
        raise ConditionError(f"clause {text!r}: no operator in its place; expected PATH OPERATOR VALUE, one of {known}")
    path, operator, written = full_path(match[1]), match[2], (match[3] or "").strip()
    if operator.endswith(" set") != (not written):
        raise ConditionError(f"clause {text!r}: {operator} takes {'no value' if written else 'a value'}")
    values = _values(written) if operator in ("in", "not in", "is", "is not", "has", "lacks") else (written,)
    clause = Clause(path, operator, () if operator.endswith(" set") else values, "")
    return replace(clause, kind=_checked_kind(clause, text, bound))


def _values(written: str) -> tuple[str, ...]:
    if not (written.startswith("[") and written.endswith("]")):
        return (written,)
    return tuple(item.strip().strip("\"'") for item in written[1:-1].split(",") if item.strip())


def _checked_kind(clause: Clause, text: str, bound: Mapping[str, str]) -> str:
    """The kind of the clause's fact, which the operator and the value must fit. Raises ConditionError."""
    try:
        kind, *_ = [kind_of(path, bound) for path in clause.paths()]
        if "matches" in clause.operator:
            re.compile(clause.values[0])
    except (ShapeError, re.error) as error:
        raise ConditionError(f"clause {text!r}: {error}") from error
    if clause.operator in ("has", "lacks") and kind != "list":
        raise ConditionError(f"clause {text!r}: {clause.path} is a {kind}, expected a list")
    if NEGATED.get(clause.operator, clause.operator) in ORDERS:
        key = version_key if kind == "version" else _number
        if kind not in ORDERED_KINDS:
            raise ConditionError(f"clause {text!r}: {clause.path} is a {kind}, which has no order")
        if kind == "version" and clause.operator.endswith("divides"):
            raise ConditionError(f"clause {text!r}: {clause.path} is a version, expected a number")
        if not references(clause.values[0]) and key(clause.values[0]) is None:
            raise ConditionError(f"clause {text!r}: {clause.values[0]!r} is no {kind}")
    return kind
