"""docs/checkpoint.md names every finding about a checkpoint, and none that there is not."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("checkpoint", "shard", "mtp", "small_files", "integrity")
CALLS = {"Finding", "CheckpointError", "_add", "_invalid", "_read_json"}
ID = re.compile(r"[a-z]+(-[a-z]+)+")


def strings(module: str) -> set[str]:
    """Every text that looks like an id, in a call that makes a finding or as a default of one."""
    tree = ast.parse((ROOT / f"module_utils/sglang_pve/{module}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in CALLS:
            found |= {
                leaf.value for argument in node.args for leaf in ast.walk(argument) if isinstance(leaf, ast.Constant)
            }
        if isinstance(node, ast.FunctionDef):
            found |= {default.value for default in node.args.defaults if isinstance(default, ast.Constant)}
    return {text for text in found if isinstance(text, str) and ID.fullmatch(text)}


def test_every_finding_is_in_the_table() -> None:
    rows = [line for line in (ROOT / "docs/checkpoint.md").read_text().splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert documented == set().union(*map(strings, MODULES))
