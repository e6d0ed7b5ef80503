"""Which host compiler is taken, installed or refused, and the module that makes a CUDA_HOME with it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglang_pve.command import Output
from sglang_pve.host_compiler import Compiler, choose, find, install, judge, offered, python_headers

from tests.unit import cuda_kit

ROOT = Path(__file__).resolve().parents[2]
# What stacks/sglang-0.5.11-cu130/stack.yml says, in Debian 12.
KNOWN = {"good": ["11.3", "13.3"], "bad": ["12.2"], "package": "g++-11"}
NOTHING = {"good": [], "bad": [], "package": "g++-11"}


def compilers(*versions: str) -> list[Compiler]:
    return [Compiler(f"/usr/bin/gcc-{v}", f"/usr/bin/g++-{v}", v) for v in versions]


@pytest.mark.parametrize(
    ("there", "known", "taken", "finding"),
    [
        (["12.2.0", "11.3.0"], KNOWN, "11.3.0", None),
        (["14.2.0", "13.3.0"], KNOWN, "13.3.0", None),
        (["11.4.0"], KNOWN, "11.4.0", None),
        (["12.2.0"], KNOWN, "g++-11", "compiler-to-install"),
        (["12.3.0"], KNOWN, "g++-11", "compiler-to-install"),
        (["14.2.0"], KNOWN, "g++-11", "compiler-to-install"),
        ([], KNOWN, "g++-11", "compiler-to-install"),
        (["14.2.0"], {**KNOWN, "package": ""}, "14.2.0", "compiler-untried"),
        (["12.2.0"], {**KNOWN, "package": ""}, None, "compiler-missing"),
        (["12.3.0", "15.1.0"], {**KNOWN, "package": ""}, None, "compiler-missing"),
        (["12.2.0", "11.3.0"], NOTHING, "12.2.0", "compiler-untried"),
        (["14.2.0"], {**KNOWN, "package": "g++-14"}, "14.2.0", "compiler-untried"),
        (["15.1.0"], NOTHING, "g++-11", "compiler-to-install"),
        ([], {**NOTHING, "package": ""}, None, "compiler-missing"),
    ],
)
def test_known_good_comes_first_and_known_bad_never(
    there: list[str], known: dict[str, Any], taken: str | None, finding: str | None
) -> None:
    choice = choose(compilers(*there), known, newest=14)
    assert (choice.compiler.version if choice.compiler else choice.package or None) == taken
    assert [found.id for found in choice.findings] == ([finding] if finding else [])


@pytest.mark.parametrize(
    ("offers", "findings"),
    [
        (["g++", "g++-11"], [("compiler-to-install", "note")]),
        ([], [("compiler-to-install", "not checked")]),
        (["g++", "g++-12"], [("compiler-missing", "error")]),
    ],
)
def test_preflight_says_whether_a_good_one_can_be_had(offers: list[str], findings: list[tuple[str, str]]) -> None:
    found = judge(compilers("12.2.0"), offers, KNOWN, "")
    assert [(finding.id, finding.level) for finding in found] == findings
    assert "12.2.0" in found[0].seen and found[0].expected == "g++ 11.3 or 13.3"
    assert judge(compilers("11.3.0"), offers, KNOWN, "") == []


@pytest.mark.parametrize(
    ("offers", "finding"),
    [
        (["libpython3.11-dev"], ("python-headers-to-install", "note")),
        ([], ("python-headers-to-install", "not checked")),
        (["g++"], ("python-headers-missing", "error")),
    ],
)
def test_preflight_says_whether_pythons_headers_can_be_had(offers: list[str], finding: tuple[str, str]) -> None:
    found = judge(compilers("11.3.0"), offers, KNOWN, "libpython3.11-dev")
    assert [(one.id, one.level) for one in found] == [finding]


def test_pythons_headers_are_looked_for_where_triton_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Python.h").touch()
    for place, package in ((tmp_path, ""), (tmp_path / "none", f"libpython3.{sys.version_info[1]}-dev")):
        monkeypatch.setattr("sysconfig.get_path", lambda name, place=place: str(place))
        assert python_headers() == package


def test_compilers_are_found_with_their_versions(tmp_path: Path) -> None:
    def program(name: str, answer: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)

    for name in ("g++", "g++-13", "g++-9"):
        program(name, f"echo {name.partition('-')[2] or 12}.3.0")
        program(name.replace("g++", "gcc"), "true")
    program("g++-14", "echo 14.2.0")  # Without its gcc.
    program("g++-15", "exit 1")
    program("gcc-15", "true")
    program("g++-mapper-server", "sleep 60")
    assert [Path(one.cxx).name for one in find(tmp_path)] == ["g++", "g++-9", "g++-13"]
    assert find(tmp_path)[2] == Compiler(f"{tmp_path}/gcc-13", f"{tmp_path}/g++-13", "13.3.0")


# The first is the answer for a name that this apt does not know.
POLICY = """\
dpkg:
  Installed: 1.21.23
  Candidate: 1.21.23
  Version table:
g++:
  Installed: 4:12.2.0-3
  Candidate: 4:12.2.0-3
  Version table:
g++-11:
  Installed: (none)
  Candidate: 11.3.0-12
  Version table:
g++-13:
  Installed: (none)
  Candidate: (none)
  Version table:
"""


def test_apt_offers_what_it_has_a_candidate_for() -> None:
    assert offered(run=lambda argv, timeout_s: Output(0, POLICY, "")) == ["g++", "g++-11"]
    assert offered(run=lambda argv, timeout_s: Output(0, "", "")) == []


class Apt:
    """An apt whose lists name g++-11 from the start, after an update, or never, and whose installs end as told."""

    def __init__(self, known_after: int, codes: list[int]) -> None:
        self.known_after, self.codes = known_after, codes
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], timeout_s: float) -> Output:
        if argv[0] == "apt-cache":
            return Output(0, POLICY if self.asked.count("update") >= self.known_after else "", "")
        self.asked.append(argv[4])
        return Output(self.codes.pop(0) if argv[4] == "install" else 0, "", "E: Failed to fetch it")


@pytest.mark.parametrize(
    ("apt", "asked", "refused"),
    [
        (Apt(0, [0]), ["install"], ""),
        (Apt(0, [100, 0]), ["install", "update", "install"], ""),
        (Apt(1, [0]), ["update", "install"], ""),
        (Apt(9, []), ["update"], "its lists do not name g++-11"),
        (Apt(0, [100, 100]), ["install", "update", "install"], "E: Failed to fetch it"),
    ],
)
def test_apt_gets_fresh_lists_only_when_the_old_ones_do_not_do(apt: Apt, asked: list[str], refused: str) -> None:
    assert install("g++-11", apt.run) == refused
    assert apt.asked == asked


def plugin() -> Any:
    spec = importlib.util.spec_from_file_location("stack_info", ROOT / "action_plugins/sglang_stack_info.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_stack_gets_the_package_of_the_distribution() -> None:
    stack = yaml.safe_load((ROOT / "stacks/sglang-0.5.11-cu130/stack.yml").read_text())
    info = plugin()
    assert info.known_compilers(stack, {"id": "debian", "version": "12"}) == KNOWN
    assert info.known_compilers(stack, {"id": "arch", "version": None})["package"] == ""
    assert info.known_compilers({}, {"id": "debian", "version": "12"}) == NOTHING
    stack["compilers"] = KNOWN
    there = {"found": [vars(one) for one in compilers("12.2.0")], "offers": ["g++"], "headers": ""}
    assert [finding.id for finding in info.judge_compilers(stack, there)] == ["compiler-missing"]
    assert info.judge_compilers({}, there) == info.judge_compilers(stack, None) == []


def run_module(*words: str, stack: Path, **arguments: object) -> str:
    """Run the module on this machine; its output."""
    argv = [str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local"]
    argv += ["-m", "cuda_home", "-e", f"ansible_python_interpreter={sys.executable}", *words]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(stack), "LANG": "C.UTF-8", "ANSIBLE_STDOUT_CALLBACK": "minimal"}
    environment["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
    argv += ["-a", json.dumps({"stack": str(stack), "toolkit": "/nonexistent", **arguments})]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(not find() or python_headers() != "", reason="here the module would install g++ or Python.h")
def test_the_module_shows_makes_keeps_and_removes(tmp_path: Path) -> None:
    stack = tmp_path / "stack"
    stack.mkdir()
    assert "CHANGED" in run_module("--check", stack=stack) and "no stack is installed there" in run_module(stack=stack)
    packages = cuda_kit.installed(stack)
    cuda_kit.pip_13(packages)
    # Whatever g++ this machine has counts as known good, so that nothing is installed.
    known = {"good": [one.version for one in find()]}
    shown = run_module("--check", "--diff", stack=stack, compilers=known)
    assert f"+include/curand.h -> {packages}/nvidia/cu13/include/curand.h" in shown and "+host/cc -> /usr/bin/" in shown
    assert not (stack / "cuda").exists()
    assert "CHANGED" in run_module(stack=stack, compilers=known)
    manifest = json.loads((stack / "cuda/manifest.json").read_text())
    assert manifest["compiler"]["version"] in known["good"] and "known to build" in manifest["compiler"]["why"]
    assert "SUCCESS" in run_module(stack=stack, compilers=known)
    shown = run_module("--check", "--diff", stack=stack, compilers=known, state="absent")
    assert "-include/curand.h -> " in shown and (stack / "cuda").is_dir()
    assert "CHANGED" in run_module(stack=stack, state="absent") and not (stack / "cuda").exists()
    (packages / "nvidia/cu13/include/curand.h").unlink()
    assert "error cuda-home-lacks: no include/curand.h" in run_module(stack=stack, compilers=known)
