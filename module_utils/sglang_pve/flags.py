"""The engine's command line as data: which options one version takes, with which values.

argparse accepts every unique prefix of a long option, so a typo can set another option than the one meant; here only
exact option strings pass. The table is a file of stacks/flags/, whose header describes its columns.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Callable

from .findings import Finding

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_LISTED_ACTIONS = ("store", "LoRAPathAction")


# Of stacks/flags/renames.yml: "renamed" and "removed", each from a name to words.
Renames = Mapping[str, Mapping[str, str]]
NO_RENAMES: Renames = {"renamed": {}, "removed": {}}


class FlagTableError(ValueError):
    """A flag table cannot be read; the message names the file or line."""


def human_readable_int(text: str) -> int:
    """An integer with an optional suffix: 25.6k is 25,600 and 1Ki is 1,024. Raises ValueError.

    Source: SGLang 0.5.11, sglang/srt/utils/common.py, human_readable_int.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", text.strip())
    if not match:
        return int(text)
    number, suffix = match.groups()
    if "." in number and suffix.endswith("i"):
        raise ValueError(f"{text}: no decimals before {suffix}")
    return int(Decimal(number) * _SUFFIXES[suffix])


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "human_readable_int": human_readable_int,
    "json": json.loads,
    "json_list_type": json.loads,
    "str": str,
    "nullable_str": str,
}


@dataclass(frozen=True)
class Flag:
    """One option. ``values`` is the smallest and largest number of values behind it (None: no limit), ``deprecated``
    what a deprecated option does; empty for others.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    values: tuple[int, int | None]
    choices: tuple[Any, ...]
    deprecated: str

    def fault(self, values: Sequence[str]) -> tuple[str, str]:
        """What was seen and what was expected where ``values`` do not fit; ("", "") where they do."""
        low, high = self.values
        if len(values) < low or (high is not None and len(values) > high):
            wanted = "no value" if high == 0 else "one value" if (low, high) == (1, 1) else f"{low} or more values"
            return f"{len(values)} values", wanted
        for value in values:
            try:
                converted = _CONVERTERS[self.kind](value)
            except ValueError:
                return repr(value), {"json": "JSON", "json_list_type": "a JSON list"}.get(
                    self.kind, f"type {self.kind}"
                )
            if self.choices and converted not in self.choices:
                close = difflib.get_close_matches(value, [str(choice) for choice in self.choices], 1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                return repr(value) + hint, "one of " + ", ".join(str(choice) for choice in self.choices)
        return "", ""


def option(name: str) -> str:
    """The option string of a key: ``max_running_requests`` and ``--max-running-requests`` are the same."""
    return "--" + name.lstrip("-").replace("_", "-")


def to_argv(flags: Mapping[str, Any]) -> list[str]:
    """The command line of a mapping, sorted by option so that equal flags give equal text.

    None and False mean "not given", True an option without value, a list several values, a mapping (or a list that
    holds one) JSON.
    """
    argv: list[str] = []
    for key in sorted(flags, key=option):
        value = flags[key]
        if value is None or value is False:
            continue
        argv.append(option(key))
        if value is True:
            continue
        nested = isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(v, Mapping) for v in value))
        if nested:
            argv.append(json.dumps(value, separators=(",", ":"), sort_keys=True))
        elif isinstance(value, (list, tuple)):
            argv.extend(str(item) for item in value)
        else:
            argv.append(str(value))
    return argv


def _is_option(token: str) -> bool:
    return token.startswith("-") and token != "-" and " " not in token and not _NEGATIVE.fullmatch(token)


def split_argv(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option of a command line with its values; values before the first option come with an empty name."""
    name, values = "", list[str]()
    for token in argv:
        if not _is_option(token):
            values.append(token)
            continue
        if name or values:
            yield name, values
        name, equals, value = token.partition("=")
        values = [value] if equals else []
    if name or values:
        yield name, values


class FlagTable:
    """Every option of one engine version, found by each of its spellings."""

    def __init__(self, engine: str, flags: Sequence[Flag], renames: Renames) -> None:
        self.engine = engine
        self._by_spelling = {spelling: flag for flag in flags for spelling in (flag.name, *flag.aliases)}
        self._later, self._removed = dict(renames["renamed"]), dict(renames["removed"])
        self._earlier = {later: earlier for earlier, later in self._later.items()}

    @classmethod
    def parse(cls, text: str, engine: str, renames: Renames = NO_RENAMES) -> FlagTable:
        """The table in ``text``, a file of stacks/flags/. Raises FlagTableError.

        ``renames`` is the content of stacks/flags/renames.yml: renamed (earlier name -> later name) and removed
        (name -> what to do instead).
        """
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line and not line.startswith("#")]
        if not lines:
            raise FlagTableError(f"the flag table of engine {engine} is empty")
        columns = lines[0][1].split("\t")
        flags = []
        for number, line in lines[1:]:
            row = dict(zip(columns, line.split("\t")))
            try:
                flags.append(_flag(row))
            except (KeyError, ValueError) as error:
                raise FlagTableError(f"line {number} of the flag table of engine {engine}: {error}: {line}") from error
        return cls(engine, flags, renames)

    @classmethod
    def read(cls, path: Path, engine: str, renames: Renames = NO_RENAMES) -> FlagTable:
        """The table in the file ``path``. Raises FlagTableError, also where it cannot be read."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"), engine, renames)
        except OSError as error:
            raise FlagTableError(f"no flag table of engine {engine} at {path}: {error.strerror}") from error

    def canonical(self, name: str) -> str:
        """The one name of an option in every version, without dashes in front: aliases resolved (``tp`` is
        ``tensor-parallel-size``), and of two versions' names the earlier.
        """
        spelling = option(name)
        flag = self._by_spelling.get(spelling)
        own = (flag.name if flag else spelling)[2:]
        return self._earlier.get(own, own)

    def spelled(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """A mapping of flags in this version's names. One that is there under both its names stays as it is."""
        given = {option(name)[2:] for name in flags}
        renamed = {name: self._own_name(option(name)[2:]) for name in flags}
        return {name if own in given else own: flags[name] for name, own in renamed.items()}

    def _own_name(self, key: str) -> str:
        others = (key, self._later.get(key), self._earlier.get(key))
        return next((name for name in others if name and option(name) in self._by_spelling), key)

    def check(self, flags: Mapping[str, Any] | Sequence[str]) -> list[Finding]:
        """What is wrong with a mapping of flags or a command line; nothing where the engine takes it as it stands."""
        argv = to_argv(flags) if isinstance(flags, Mapping) else flags
        found: list[Finding] = []
        given: set[str] = set()
        for name, values in split_argv(argv):
            flag = self._by_spelling.get(name)
            if flag is None:
                found.append(self._unknown(name, values))
                continue
            if flag.name in given:
                found.append(self._finding("flag-twice", name, "the option twice", "once", "Remove one of them."))
            given.add(flag.name)
            seen, expected = flag.fault(values)
            if expected:
                found.append(self._finding("flag-value", name, seen, expected, f"Correct the value of {name}."))
            elif flag.deprecated:
                cure = f"Remove {name}: this version accepts it {flag.deprecated}."
                found.append(self._finding("flag-deprecated", name, "a deprecated option", "none", cure, "warning"))
        return found

    def _unknown(self, name: str, values: Sequence[str]) -> Finding:
        if not name:
            seen = " ".join(values)
            return self._finding("flag-stray", seen, "a value without option", "an option first", f"Remove {seen}.")
        if name[2:] in self._removed:
            return self._finding("flag-removed", name, "an option of another version", "none", self._removed[name[2:]])
        own = option(self._own_name(name[2:]))
        if own != name:
            cure = f"Write {own}, as this version calls it."
            return self._finding("flag-unknown", name, "an option of another version", f"{own}, once", cure)
        longer = [spelling for spelling in self._by_spelling if len(name) > 3 and spelling.startswith(name)]
        close = longer or difflib.get_close_matches(name, self._by_spelling, 1, 0.7)
        cure = f"Did you mean {' or '.join(close[:3])}?" if close else f"Remove {name}."
        return self._finding("flag-unknown", name, "an unknown option", f"an option of SGLang {self.engine}", cure)

    def _finding(self, rule: str, where: str, seen: str, expected: str, cure: str, level: str = "error") -> Finding:
        source = f"option table of SGLang {self.engine}, read in its server_args.py"
        return Finding(rule, level, seen, expected, cure, where, source)


def _flag(row: Mapping[str, str]) -> Flag:
    """One line of a table. Raises KeyError for a missing column, ValueError for a value it cannot mean."""
    action, nargs = row["action"], row["nargs"]
    if action not in _LISTED_ACTIONS and not nargs:
        values: tuple[int, int | None] = (0, 0)
    else:
        try:
            values = {"": (1, 1), "1": (1, 1), "?": (0, 1), "*": (0, None), "+": (1, None)}[nargs]
        except KeyError:
            raise ValueError(f"nargs {nargs!r} is none of '', 1, ?, *, +") from None
        if row["type"] not in _CONVERTERS:
            raise ValueError(f"type {row['type']!r} is none of {', '.join(_CONVERTERS)}")
    aliases = [alias for alias in row["aliases"].split(",") if alias]
    if action == "BooleanOptionalAction":
        aliases.append("--no-" + row["option"][2:])
    choices = tuple(json.loads(row["choices"])) if row["choices"] else ()
    deprecated = ""
    if action.startswith("Deprecated"):
        deprecated = "without effect" if action == "DeprecatedAction" else "in place of a newer option"
    return Flag(row["option"], tuple(aliases), row["type"], values, choices, deprecated)


_BY_UNIT = ("every server's unit gives its own", "Remove it: ports and cards are set per server in the inventory.")
_KEY = (
    "the engine writes its whole ServerArgs to the journal, keys included",
    "Keep the servers on a private address and ask for keys at a router in front of them.",
)
OWNED_FLAGS = {
    "model-path": ("it follows from the server's model", "Set sglang_model_path."),
    "host": _BY_UNIT,
    "port": _BY_UNIT,
    "nccl-port": _BY_UNIT,
    "base-gpu-id": _BY_UNIT,
    "gpu-id-step": _BY_UNIT,
    "numa-node": _BY_UNIT,
    "config": ("a file of flags would pass by every check here", "Write its flags into the inventory."),
    "api-key": _KEY,
    "admin-api-key": _KEY,
}
PARALLEL_SIZES = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "expert-parallel-size",
    "attention-context-parallel-size",
    "moe-data-parallel-size",
    "attn-dp-size",
    "dcp-size",
    "dwdp-size",
    "nnodes",
)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OWNED_ENV = {
    "CUDA_VISIBLE_DEVICES": "every server's unit gives its own card",
    "SGLANG_PVE_RELEASE": "it names the release that runs",
    "SGLANG_MAMBA_SSM_DTYPE": "it changes the pools behind the plan; the flag mamba-ssm-dtype does not",
    "SGLANG_MAMBA_CONV_DTYPE": "it changes the pools behind the plan",
}


def refused(flags: Mapping[str, Any], env: Mapping[str, Any]) -> list[Finding]:
    """What the inventory must not set: ``flags`` by canonical name, ``env`` the environment it adds."""
    given = {name: value for name, value in flags.items() if value is not None and value is not False}
    found = []

    def refuse(rule: str, where: str, seen: str, expected: str, cure: str) -> None:
        found.append(Finding(rule, "error", seen, expected, cure, where))

    for name in sorted(OWNED_FLAGS.keys() & given.keys()):
        why, cure = OWNED_FLAGS[name]
        refuse("flag-owned", f"--{name}", "set among the inventory's flags", f"it not there, because {why}", cure)
    for name in PARALLEL_SIZES:
        if str(given.get(name, 1)) not in ("0", "1"):
            why = "1: one process per GPU, data parallel, needs neither NCCL nor NVLink between the cards"
            cure = "Remove it: more GPUs are more servers in the inventory."
            refuse("flag-parallel", f"--{name}", str(given[name]), why, cure)
    level = str(given.get("log-requests-level", "2, its default"))
    if given.get("log-requests") and level not in ("0", "1"):
        expected = "0 or 1, which keep prompt text out of the journal"
        refuse("flag-prompts", "--log-requests", f"level {level}", expected, "Add log-requests-level: 1.")
    for name in sorted(OWNED_ENV.keys() & {name for name, value in env.items() if value is not None}):
        refuse(
            "env-owned", name, "set among the inventory's variables", f"it not there: {OWNED_ENV[name]}", "Remove it."
        )
    for name in sorted(name for name in env if not ENV_NAME.fullmatch(str(name))):
        refuse("env-name", str(name), "no name that a shell can export", "letters, digits and _", "Correct its name.")
    return found


def options_of(argv: Sequence[str], table: FlagTable | None = None) -> dict[str, Any]:
    """A command line by option: its value, True for one without, a list for several. Names are canonical with a
    ``table``, and as they stand, without dashes, without one."""
    found: dict[str, Any] = {}
    for name, values in split_argv(argv):
        key = table.canonical(name) if table else name.lstrip("-")
        found[key] = True if not values else values[0] if len(values) == 1 else values
    return found
