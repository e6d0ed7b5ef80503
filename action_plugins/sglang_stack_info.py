# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a stack's data, and find its wheels, on the controller. Documented in library/sglang_stack_info.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parent.parent
# A controller-side plugin does not see the project's module_utils by itself.
sys.path.insert(0, str(PROJECT / "module_utils"))

from sglang_pve import host_compiler
from sglang_pve.findings import Finding
from sglang_pve.lane import AUTO, Choice, Place, choose, judge, why
from sglang_pve.lockfile import LockError, stack_id
from sglang_pve.stack import LANES, Stack, StackError, check_meta, require_python
from sglang_pve.wheelhouse import count_lacking, survey

PLACE = {
    "driver": {"type": "str"},
    "nvcc": {"type": "str"},
    "glibc": {"type": "str"},
    "os": {"type": "dict"},
    "compilers": {"type": "dict"},
    "wheels": {"type": "list", "elements": "str", "default": []},
    "stacks": {"type": "list", "elements": "str", "default": []},
}
ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "engine": {"type": "str"},
    "lane": {"type": "str", "choices": [AUTO, *LANES], "default": AUTO},
    "place": {"type": "dict", "options": PLACE},
    "stacks_dir": {"type": "path", "required": True},
    "python": {"type": "str", "required": True},
    "wheelhouse_source": {"type": "path"},
    "wanted": {"type": "list", "elements": "str"},
    "machine": {"type": "str", "default": "x86_64"},
}


display = Display()


class ActionModule(ActionBase):
    """One task: files on the controller in, a dictionary out."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, p = self.validate_argument_spec(argument_spec=ARGUMENTS)
        try:
            stack, choice = select(Path(p["stacks_dir"]), p)
            found = [*choice.findings]
            if p["place"]:
                stack["compilers"] = known_compilers(stack, p["place"]["os"] or {})
                found += judge_compilers(stack, p["place"]["compilers"])
            findings = [finding.as_dict() for finding in found]
            result.update(changed=False, stack=stack, reason=choice.reason, findings=findings)
            if p["place"]:
                display.display(f"Stack {choice.reason}")
            if p["wheelhouse_source"] and not p["place"]:
                result["files"] = find_files(stack, Path(p["wheelhouse_source"]), p)
        except StackError as error:
            result.update(failed=True, msg=str(error), finding=error.finding.as_dict())
        except LockError as error:
            result.update(failed=True, msg=f"{Path(p['stacks_dir']) / p['name'] / 'lock.txt'}: {error}")
        return result


def select(stacks_dir: Path, p: dict[str, Any]) -> tuple[dict[str, Any], Choice]:
    """The stack that the arguments name, or the one of their engine and lane that fits the place best.

    Raises StackError and LockError. Without ``place``, nothing is judged.
    """
    if p["name"] == AUTO:
        if not p["place"]:
            raise StackError("stack-auto", "name: auto without place", "what is known of the container", "Give both.")
        stacks = of_engine(stacks_dir, p)
        choice = choose(stacks, place_of(p, stacks))
        return next(stack for stack in stacks if stack["name"] == choice.name), choice
    stack = read_stack(stacks_dir, p["name"], p["python"])
    if not p["place"] or "lane" not in stack:
        return stack, Choice(p["name"], p["name"], [])
    place = place_of(p, [stack])
    findings = judge(stack, place)
    if p["lane"] not in (AUTO, stack["lane"]):
        seen, cure = f"sglang_stack_lane: {p['lane']}", "Correct one of them, or leave sglang_stack_lane at auto."
        findings.append(Finding("lane-differs", "error", seen, f"{stack['lane']}, of {p['name']}", cure))
    return stack, Choice(p["name"], why(stack, place) + "; chosen by sglang_stack", findings)


def known_compilers(stack: dict[str, Any], system: dict[str, Any]) -> dict[str, Any]:
    """What is known of the stack's host compilers, and the package that gives this distribution a good one."""
    rows = yaml.safe_load((PROJECT / "stacks/compilers.yml").read_text())["packages"]
    packages = [
        row["package"] for row in rows if (row["os"], row["version"]) == (system.get("id"), system.get("version"))
    ]
    return {"good": [], "bad": [], **stack.get("compilers", {}), "package": packages[0] if packages else ""}


def judge_compilers(stack: dict[str, Any], compilers: dict[str, Any] | None) -> list[Finding]:
    """Nothing of a stack that compiles no kernels, as one without ``nvcc_min`` does."""
    if compilers is None or "nvcc_min" not in stack:
        return []
    found = [host_compiler.Compiler(**one) for one in compilers["found"]]
    return host_compiler.judge(found, compilers["offers"], stack["compilers"], compilers["headers"])


def of_engine(stacks_dir: Path, p: dict[str, Any]) -> list[dict[str, Any]]:
    """Every stack of the engine and lane asked for."""
    names = sorted(path.parent.name for path in stacks_dir.glob("*/stack.yml"))
    stacks = [stack for stack in (load_stack(stacks_dir, name, p["python"]) for name in names) if "lane" in stack]
    found = [s for s in stacks if s["engine"] == p["engine"] and p["lane"] in (AUTO, s["lane"])]
    if not found:
        seen = f"no stack of SGLang {p['engine']}, lane {p['lane']}, in {stacks_dir}"
        known = ", ".join(f"{s['engine']} ({s['lane']})" for s in stacks) or "none"
        raise StackError("stack-unknown", seen, f"one of {known}", "Correct sglang_engine or sglang_stack_lane.")
    return found


def place_of(p: dict[str, Any], stacks: list[dict[str, Any]]) -> Place:
    """What is known of the container, with what each stack lacks of its wheels there and on the controller."""
    at_hand = [*p["place"]["wheels"], *source_names(p["wheelhouse_source"])]
    lacking = {
        stack["name"]: 0
        if stack["id"] in p["place"]["stacks"]
        else count_lacking(as_stack(stack).wanted, at_hand, p["python"], p["machine"])
        for stack in stacks
    }
    return Place(p["place"]["driver"], p["place"]["nvcc"], p["place"]["glibc"], p["python"], lacking)


def source_names(wheelhouse_source: str | None) -> list[str]:
    """File names on the controller; none where the directory cannot be read: the install says so, with every wheel."""
    try:
        return [path.name for path in Path(wheelhouse_source).iterdir()] if wheelhouse_source else []
    except OSError:
        return []


def read_stack(stacks_dir: Path, name: str, python: str) -> dict[str, Any]:
    """What load_stack returns, of a stack that is locked for this Python. Raises StackError, LockError."""
    stack = load_stack(stacks_dir, name, python)
    require_python(name, stack["python"], python)
    return stack


def load_stack(stacks_dir: Path, name: str, python: str) -> dict[str, Any]:
    """Return the checked data of ``stacks_dir/name`` with name, id, lock and wheels. Raises StackError, LockError."""
    directory = stacks_dir / name
    try:
        meta = yaml.safe_load((directory / "stack.yml").read_text())
        lock = (directory / "lock.txt").read_text()
    except OSError as exc:
        known = sorted(path.parent.name for path in stacks_dir.glob("*/stack.yml"))
        raise StackError(
            "stack-unknown",
            f"stack {name!r}: {exc.filename}: {exc.strerror}",
            f"one of {', '.join(known) or 'none'} in {stacks_dir}",
            "Correct sglang_stack or sglang_stacks_dir.",
        ) from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        seen = f"{directory}: {' '.join(str(exc).split())}"
        raise StackError("stack-meta", seen, "YAML and text", f"Correct the files in {directory}.") from exc
    meta = check_meta(meta, str(directory / "stack.yml"))
    # Its properties need no id, and the id needs the installer's version.
    draft = as_stack({**meta, "name": name, "id": "", "lock": lock})
    wheels = [locked.requirement for locked in draft.wanted]
    return {**meta, "name": name, "id": stack_id(lock, python, draft.uv.version), "lock": lock, "wheels": wheels}


def as_stack(data: dict[str, Any]) -> Stack:
    uv = data["uv"]
    return Stack(data["name"], data["id"], data["lock"], data["engine"], uv["wheel"], uv["sha256"])


def find_files(stack: dict[str, Any], directory: Path, p: dict[str, Any]) -> list[dict[str, str]]:
    """Find the wanted wheels on the controller. Raises StackError, which names each that is missing or altered."""
    chosen = set(stack["wheels"] if p["wanted"] is None else p["wanted"])
    wanted = {locked.requirement: locked for locked in as_stack(stack).wanted if locked.requirement in chosen}
    cure = f"Fill {directory} again from the lock of {stack['name']}, for Python {p['python']}."
    if chosen - wanted.keys():
        seen = f"wanted: {', '.join(sorted(chosen - wanted.keys()))}"
        raise StackError(
            "wheel-unknown", seen, f"requirements of stack {stack['name']}", "Ask for what the lock names."
        )
    try:
        look = survey(list(wanted.values()), directory, p["python"], p["machine"])
    except OSError as exc:
        seen = f"wheelhouse_source {directory}: {exc.strerror}"
        raise StackError("wheelhouse-missing", seen, "a directory of wheels on the controller", cure) from exc
    if look.lacking:
        seen = f"wheelhouse_source {directory} lacks {len(look.lacking)} of {len(wanted)} wheels: {look.lacking_text()}"
        raise StackError("wheel-lacking", seen, "a file with a SHA-256 of the lock for each", cure)
    return [
        {"requirement": requirement, "name": found.path.name, "path": str(found.path), "sha256": found.sha256}
        for requirement, found in look.found.items()
    ]
