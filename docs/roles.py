"""Write each role's README.md from its meta/argument_specs.yml. usage: roles.py [--check]"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def readme(role: str, specs: dict) -> str:
    parts = [f"# {role}"]
    for entry, spec in specs.items():
        title = [] if entry == "main" else [f"## Entry point `{entry}`"]
        parts += [*title, spec["short_description"] + ".", *spec.get("description", [])]
        options = spec.get("options")
        if not options:
            continue
        rows = ["| variable | type | default | what it means |", "|---|---|---|---|"]
        for name, option in options.items():
            default = "required" if option.get("required") else f"`{option['default']}`" if "default" in option else "-"
            rows.append(f"| `{name}` | {option['type']} | {cell(default)} | {cell(option['description'])} |")
        parts.append("\n".join(rows))
    parts.append("Written by `make docs` from `meta/argument_specs.yml`.")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    stale = []
    for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")):
        role = path.parents[1]
        text = readme(role.name, yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"])
        target = role / "README.md"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(str(target.relative_to(ROOT)))
            if "--check" not in sys.argv:
                target.write_text(text, encoding="utf-8")
    print("\n".join(stale) or "all READMEs are current")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
