"""Write an engine version's flag table from its published wheel: what the engine's own parser really takes.

Installs the stack's lock from a wheelhouse into a temporary environment (9 to 11 GiB, about a minute, no GPU), imports
the engine's ServerArgs there, lets it fill an argparse parser, and writes each option of that parser to
stacks/flags/sglang-VERSION.tsv. Importing is the only way that holds for every version: in 0.5.11 the options are calls
in server_args.py, in later ones they follow from annotated fields in arg_groups/fields/.

usage: flags.py STACK WHEELHOUSE PYTHON   (PYTHON: an interpreter that the stack is locked for)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

STACKS = Path(__file__).resolve().parent
TABLES = STACKS / "flags"
HEADER = """\
# Command line of SGLang {engine}: every option of `python -m sglang.launch_server`.
# Origin: read in SGLang {engine}'s published wheel, sglang/srt/server_args.py (the last column is the line {where}).
# Lines that start with '#' are comments; the first other line names the columns; columns are separated by one tab.
#   option    long option as the engine spells it
#   aliases   further spellings of the same option, comma separated
#   dest      name of the value inside the engine (its ServerArgs, and /server_info)
#   action    store, store_true, BooleanOptionalAction (adds --no-OPTION), LoRAPathAction (a list),
#             DeprecatedAction (accepted without effect), Deprecated... (accepted, sets what has replaced it)
#   type      of one value: str, int, float, json, json_list_type (JSON), nullable_str ("" and "None" mean unset),
#             human_readable_int (an integer, or with k M G T / Ki Mi Gi Ti behind it); empty where no value follows
#   nargs     empty (one value; none for store_true and the like), 1, +, * or ?
#   const     value for an option without value (nargs ?), as JSON
#   default   as JSON
#   required  yes or empty
#   choices   JSON list of the allowed values, or empty
#   line      line in server_args.py{line}
"""
COLUMNS = ["option", "aliases", "dest", "action", "type", "nargs", "const", "default", "required", "choices", "line"]

# Runs in the stack's own interpreter. Prints one JSON line last: what the engine prints comes before it.
READER = r"""
import argparse, ast, enum, json, sys
from pathlib import Path
from sglang.srt import server_args

# Functions that parse a value, and what they take.
KINDS = {"loads": "json", "parse_cuda_graph_backend_arg": "str", "parse_cuda_graph_config_arg": "json"}
SRT = Path(server_args.__file__).parent
fields = {}
for path in sorted((SRT / "arg_groups/fields").glob("*.py")):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = f"{path.relative_to(SRT)}:{node.lineno}"
lines = {}

add = argparse._ActionsContainer.add_argument

def add_argument(self, *names, **options):
    action = add(self, *names, **options)
    frame = sys._getframe(1)
    here = Path(frame.f_code.co_filename)
    lines[id(action)] = str(frame.f_lineno) if here == SRT / "server_args.py" else fields[action.dest]
    return action

argparse._ActionsContainer.add_argument = add_argument

def plain(value):
    if isinstance(value, enum.Enum):
        return value.value
    try:
        json.dumps(value)
        return value
    except TypeError:
        return str(value)

def ordered(choices):
    values = [plain(choice) for choice in choices]
    # A set has another order in every process.
    return sorted(values) if isinstance(choices, (set, frozenset)) else values

parser = argparse.ArgumentParser(add_help=False)
server_args.ServerArgs.add_cli_args(parser)
own = set(getattr(server_args.ServerArgs, "__annotations__", ())) | set(
    getattr(server_args.ServerArgs, "__struct_fields__", ()))

def field_of(action):
    spelled = [s.lstrip("-").replace("-", "_") for s in action.option_strings]
    return next((name for name in [action.dest, *spelled] if name in own), action.dest)

kinds = {cls: name for name, cls in parser._registries["action"].items() if name}
rows = []
for action in parser._actions:
    kind = "store" if type(action) is argparse._StoreAction else kinds.get(type(action), type(action).__name__)
    named = [s for s in action.option_strings if not (kind == "BooleanOptionalAction" and s.startswith("--no-"))]
    flag = action.nargs == 0 or kind == "BooleanOptionalAction"
    nargs = {None: "" if kind == "store" else "1", 0: ""}.get(action.nargs, action.nargs)
    name = getattr(action.type, "__name__", "str")
    kind_of_value = "" if flag else KINDS.get(name, name)
    rows.append({
        "option": named[0], "aliases": ",".join(named[1:]), "dest": field_of(action), "action": kind,
        "type": kind_of_value, "nargs": "" if flag else nargs,
        "const": json.dumps(action.const) if action.nargs == "?" else "",
        "default": json.dumps(plain(action.default)), "required": "yes" if action.required else "",
        "choices": json.dumps(ordered(action.choices)) if action.choices else "",
        "line": lines[id(action)],
    })
print("\n" + json.dumps(rows))
"""


def read_rows(python: Path) -> list[dict[str, str]]:
    """The options that the engine of this interpreter takes."""
    # Without a home of its own the engine would write to the caller's caches.
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([python, "-I", "-c", READER], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the engine's ServerArgs cannot be read:\n{done.stderr[-2000:]}")
    rows: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit((__doc__ or "").strip().splitlines()[-1])
    name, wheelhouse, base = sys.argv[1:]
    engine = yaml.safe_load((STACKS / name / "stack.yml").read_text())["engine"]
    # Not in /tmp, which may be memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        venv, cache = Path(work) / "venv", Path(work) / "cache"
        uv = ["uv", "--quiet", "--no-config", "--offline", "--cache-dir", str(cache)]
        sync = ["pip", "sync", "--python", str(venv / "bin/python"), "--no-index", "--find-links", wheelhouse]
        sync += ["--require-hashes", "--link-mode", "hardlink", str(STACKS / name / "lock.txt")]
        for step in (["venv", "--no-project", "--python", base, str(venv)], sync):
            if subprocess.run([*uv, *step], check=False).returncode != 0:
                sys.exit(
                    f"{name} cannot be installed from {wheelhouse}, see above; fill it for {base} (make wheelhouse)"
                )
        rows = read_rows(venv / "bin/python")
    elsewhere = any(":" in row["line"] for row in rows)
    where = "there, or in a file beside it" if elsewhere else "there"
    line = ", or FILE:LINE below sglang/srt" if elsewhere else ""
    text = HEADER.format(engine=engine, where=where, line=line) + "\t".join(COLUMNS) + "\n"
    text += "".join("\t".join(row[column] for column in COLUMNS) + "\n" for row in rows)
    table = TABLES / f"sglang-{engine}.tsv"
    same = table.exists() and table.read_text() == text
    table.write_text(text)
    print(f"{table.relative_to(STACKS.parent)}: {len(rows)} options, {'unchanged' if same else 'written'}")


if __name__ == "__main__":
    main()
