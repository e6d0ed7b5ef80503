"""Write docs/rules.md from rules/*.yml, and docs/facts.md from the shape of a facts document.

usage: rules.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "module_utils"))

from sglang_pve import rules, shape

RULES_INTRO = """\
# Rules

What must not be together, as data in `rules/*.yml`. Preflight evaluates every rule on the facts of a deployment
([facts.md](facts.md)); an error stops it before anything is touched. A rule fires when its condition is true. A fact
that is not known makes it "not checked", with the fact's name, unless what is known decides alone.

`--name` is an option of the engine, `$NAME` a variable of its environment, `{...}` another fact. "for each" rules are
asked for every element of a list.

To pass over a rule: `sglang_waive: {rule-id: "why"}` for the container's group, or `-e '{"sglang_waive": {...}}'`. It
is printed in every run and kept in the container's history.

A new rule is an entry in a file of `rules/` with every field, a case in which it fires and one in which it passes
(`tests/unit/cases/*.yml`), and `make docs`.
"""
FACTS_INTRO = """\
# Facts

A facts document is what rules are judged by: one mapping, YAML or JSON, of which nothing is required but `schema: 1`.
What is absent or null is not known, and makes the rules that need it "not checked".

```yaml
schema: 1
gpus: [{index: 0, uuid: GPU-1, compute_capability: "12.0"}]
toolkit: {cuda_home: /usr/local/cuda, nvcc: "12.8"}
plan: {options: {attention-backend: flashinfer}, environment: {}}
```

```
ansible-playbook playbooks/preflight.yml -e sglang_facts_file=facts.yml       # needs no machine; exit status 0 or 2
ansible-playbook -i inventory/mine playbooks/preflight.yml -e sglang_facts_save=facts.yml   # the facts of a real run
```

A file may hold several documents (`---` between them): servers of one container that differ in plan or checkpoint
have one each. Saved facts have no secrets: values of names that end in key, token, password, secret or credentials
are masked.

Kinds: a *version* is a text in quotes; *option* is a text, true (an option without value) or a list. Behind a *?*,
null says that there is none. A name under `*` that is not there is not set: `plan.options` and `plan.environment` are
known as a whole or not at all. `[]` is every element of a list.

Where facts come from: `node`, and most of `container`, from the Proxmox VE node (`pve_container_info`; registered as
`_preflight_pve`, its `node` and `container` win over what the container says of itself); the rest from `fleet_state`,
`checkpoint_info`, the stack and the plan (`module_utils/sglang_pve/facts.py`).
"""


def cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def condition(written: Any, inside: bool = False) -> str:
    """A condition in one line."""
    if isinstance(written, str):
        return f"`{written}`"
    word, parts = ("all", written) if isinstance(written, list) else next(iter(written.items()))
    if word == "not":
        return f"not ({condition(parts)})"
    parts = parts if isinstance(parts, list) else [parts]
    text = {"all": " and ", "any": " or "}[word].join(condition(part, True) for part in parts)
    return f"({text})" if inside and len(parts) > 1 else text


def rules_page() -> str:
    parts = [RULES_INTRO]
    known = {rule.id: rule for rule in rules.load({path.name: read(path) for path in files()})}
    for path in files():
        intro = [line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        rows = ["| rule | level | fires when | what to do | source |", "|---|---|---|---|---|"]
        for entry in read(path):
            rule = known[entry["id"]]
            each = f"for each {rule.each[0]} in `{rule.each[1]}`: " if rule.each else ""
            what = f"Expected: {rule.expected}. {rule.cure}"
            cells = (
                f"`{rule.id}`",
                rule.level,
                each + condition(entry["when"]),
                what,
                f"{rule.source}; read {rule.date}",
            )
            rows.append(f"| {' | '.join(map(cell, cells))} |")
        parts += [f"## {path.stem}\n", " ".join(intro) + "\n", "\n".join(rows) + "\n"]
    parts.append(f"{len(known)} rules. Written by `make docs` from `rules/`.\n")
    return "\n".join(parts)


def facts_page() -> str:
    rows = ["| fact | kind | what it is |", "|---|---|---|"]
    rows += [f"| `{path}` | {kind} | {cell(meaning)} |" for path, (kind, meaning) in shape.SHAPE.items()]
    return "\n".join(
        [FACTS_INTRO, "\n".join(rows) + "\n", "Written by `make docs` from `module_utils/sglang_pve/shape.py`.\n"]
    )


def files() -> list[Path]:
    return sorted((ROOT / "rules").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def main() -> int:
    stale = []
    for name, text in (("rules.md", rules_page()), ("facts.md", facts_page())):
        target = ROOT / "docs" / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{name}")
            if "--check" not in sys.argv:
                target.write_text(text, encoding="utf-8")
    print("\n".join(stale) or "docs/rules.md and docs/facts.md are current")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
