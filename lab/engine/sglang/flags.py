"""The command line of SGLang 0.5.11: an argparse parser built from the table of flags (flags.tsv)."""

import argparse
import json
import pkgutil
import re
from pathlib import Path

from .journal import say

_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
# Options that the engine accepts and does not keep as a setting.
NOT_SETTINGS = {
    "config",
    "hybrid_kvcache_ratio",
    "collect_tokens_histogram",
    "prefill_round_robin_balance",
    "enable_piecewise_cuda_graph",
}


def human_readable_int(text):
    """An integer, or one with an SI (k M G T) or IEC (Ki Mi Gi Ti) suffix; decimals only with SI."""
    match = re.fullmatch(r"(\d+)(\.\d+)?(Ki|Mi|Gi|Ti|k|M|G|T)", text.strip())
    if match and not (match[2] and match[3].endswith("i")):
        whole, fraction, unit = match[1], match[2] or "", _UNITS[match[3]]
        digits = fraction[1:]
        return int(whole + digits) * unit // 10 ** len(digits)
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid integer value: '{text}'. Use a plain integer, SI suffixes (1k, 1M), or IEC suffixes (1Ki, 1Mi)."
        ) from None


def nullable_str(text):
    """A string, where nothing and "None" mean unset."""
    return None if text in ("", "None") else text


def loads(text):
    """JSON; the name is what argparse prints in its refusal."""
    return json.loads(text)


def json_list_type(text):
    """A list in JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {text}. Please provide a valid JSON list.") from None


class DeprecatedAction(argparse.Action):
    """Accepted, warned about, without effect."""

    def __init__(self, option_strings, dest, **kwargs):
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None):
        say(
            f"\033[1;33mThe command line argument '{option_string}' is deprecated"
            " and will be removed in future versions.\033[0m"
        )


class DeprecatedStoreTrueAction(DeprecatedAction):
    """An old spelling of a switch."""

    def __call__(self, parser, namespace, values, option_string=None):
        new = "--" + self.dest.replace("_", "-")
        say(
            f"\033[1;33m'{option_string}' is deprecated and will be removed in a future release."
            f" Use '{new}' instead.\033[0m"
        )
        setattr(namespace, self.dest, True)


class LoRAPathAction(argparse.Action):
    """A list of adapters, each a path, name=path or a JSON object."""

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, [json.loads(v) if v.startswith("{") else v for v in map(str.strip, values)])


_TYPES = {
    "str": str,
    "int": int,
    "float": float,
    "json": loads,
    "json_list_type": json_list_type,
    "nullable_str": nullable_str,
    "human_readable_int": human_readable_int,
}
_ACTIONS = {
    "BooleanOptionalAction": argparse.BooleanOptionalAction,
    "DeprecatedAction": DeprecatedAction,
    "DeprecatedStoreTrueAction": DeprecatedStoreTrueAction,
    "LoRAPathAction": LoRAPathAction,
}


def read_table(text):
    """Rows of the flag table as dictionaries; the table's own header says what each column holds."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    columns = lines[0].split("\t")
    return [dict(zip(columns, line.split("\t"))) for line in lines[1:]]


def table():
    """The rows of the table that this engine was built with."""
    return read_table(pkgutil.get_data(__package__, "flags.tsv").decode())


def add_options(parser, rows):
    """Add an option for each row."""
    for row in rows:
        names = [row["option"], *filter(None, row["aliases"].split(","))]
        kind = row["action"]
        options = {"dest": row["dest"], "default": json.loads(row["default"])}
        options["action"] = _ACTIONS.get(kind, kind)
        if row["type"]:
            options["type"] = _TYPES[row["type"]]
        if row["nargs"]:
            options["nargs"] = row["nargs"]
        if row["const"]:
            options["const"] = json.loads(row["const"])
        if row["choices"]:
            options["choices"] = json.loads(row["choices"])
        if row["required"]:
            options["required"] = True
        parser.add_argument(*names, **options)


def build_parser(rows):
    """An argparse parser that accepts what the real one accepts, unique prefixes included."""
    parser = argparse.ArgumentParser(prog="launch_server.py")
    add_options(parser, rows)
    return parser


def expand_config(argv):
    """Put the settings of a `--config FILE` before the other arguments, so that the command line wins.

    Only a flat file is read: `key: value` lines, where a list stands in brackets.
    """
    if "--config" not in argv:
        return argv
    at = argv.index("--config")
    found = []
    for line in Path(argv[at + 1]).read_text(encoding="utf-8").splitlines():
        key, colon, value = line.partition(":")
        if not colon or line.lstrip().startswith("#"):
            continue
        option, value = "--" + key.strip().replace("_", "-"), value.strip().strip("\"'")
        if value.startswith("["):
            found += [option, *(item.strip().strip("\"'") for item in value.strip("[]").split(","))]
        elif value.lower() == "true":
            found.append(option)
        elif value.lower() != "false":
            found += [option, value]
    return found + argv[:at] + argv[at + 2 :]


def parse(argv):
    """Settings by name. Leaves with status 2 and argparse's own message where the real engine does."""
    values = vars(build_parser(table()).parse_args(expand_config(argv)))
    return {name: value for name, value in values.items() if name not in NOT_SETTINGS}
