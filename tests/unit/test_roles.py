"""Roles and modules say what they take, and what they say is true."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = sorted((ROOT / "library").glob("*.py"))
PRODUCT = ("roles", "library", "module_utils", "action_plugins", "connection_plugins", "templates", "playbooks")


def load(path):
    return yaml.safe_load(path.read_text()) if path.exists() else None


@pytest.mark.parametrize("role", ROLES)
def test_defaults_equal_the_argument_specs(role):
    options = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    documented = {name: option["default"] for name, option in options.items() if "default" in option}
    assert documented == (load(ROOT / "roles" / role / "defaults/main.yml") or {})


@pytest.mark.parametrize("role", ROLES)
def test_every_public_variable_of_a_role_is_in_its_argument_specs(role):
    if role == "sglang":
        pytest.skip("it is where the variables are documented")
    specs = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"].values()
    named = {name for spec in specs for name in spec.get("options", {})}
    public = set(load(ROOT / "roles/sglang/meta/argument_specs.yml")["argument_specs"]["main"]["options"])
    files = [path for folder in ("tasks", "vars") for path in (ROOT / "roles" / role / folder).glob("*.yml")]
    files += (ROOT / "templates/release").glob("*.j2") if role == "plan" else []
    used = {name for path in files for name in re.findall(r"\bsglang_\w+\b(?!:)", path.read_text())} & public
    assert used - named == set()


def test_the_readmes_of_the_roles_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/roles.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all READMEs are current\n")


def constants(path):
    tree = ast.parse(path.read_text())
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_every_module_is_documented_as_it_is(module):
    texts = constants(module)
    documented = yaml.safe_load(texts["DOCUMENTATION"])
    assert documented["module"] == module.stem
    assert "check_mode" in documented["attributes"]
    assert yaml.safe_load(texts["EXAMPLES"])
    assert yaml.safe_load(texts["RETURN"])
    spec = next(
        (
            node.value
            for node in ast.walk(ast.parse(module.read_text()))
            if isinstance(node, ast.keyword) and node.arg == "argument_spec"
        ),
        None,
    )
    # What runs on the controller has its documentation in a module without arguments.
    if isinstance(spec, ast.Dict) and spec.keys:
        assert {key.value for key in spec.keys} == set(documented["options"])


def test_the_boot_gets_every_file_that_staging_imports():
    """sglang-model.service runs without Ansible: what it imports must be what the release role installs."""
    directory = ROOT / "module_utils/sglang_pve"
    needed, todo = {"__init__"}, ["staging"]
    while todo:
        name = todo.pop()
        if name in needed:
            continue
        needed.add(name)
        for node in ast.walk(ast.parse((directory / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                todo += [node.module] if node.module else [alias.name for alias in node.names]
    assert set(load(ROOT / "roles/release/vars/main.yml")["_release_libexec"]) == needed


def test_a_real_deployment_never_names_the_lab():
    files = [
        path
        for folder in (
            "roles",
            "library",
            "module_utils",
            "action_plugins",
            "connection_plugins",
            "templates",
            "playbooks",
        )
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path != ROOT / "playbooks/lab.yml"
    ]
    named = [str(path) for path in files if re.search(r"\blab[/_.]|stand-?in|sglang.lab", path.read_text())]
    assert named == []
