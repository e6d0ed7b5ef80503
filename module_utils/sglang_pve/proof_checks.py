"""The checks of a stack's proof: as the service user, in exactly a server's environment, by the stack's own Python."""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import fatbin, proof_probe
from .command import HungCommandError, MissingCommandError, run_as
from .elf import ElfError
from .findings import Finding
from .lockfile import normal_name, parse_lock

LOOK_TIMEOUT_S = 120.0
# Twelve times the longest step seen: a kernel on two busy cores.
STEP_TIMEOUT_S = 900.0
# Kernels are compiled now, not found in the servers' cache, which may be of files that are gone. The lock is the
# servers': while it is held, none that starts with another toolkit takes the directory away.
KERNEL_SCRIPT = """\
mkdir -p "$cache"/.proof
exec 9>"$cache"/.held
flock -s 9
export FLASHINFER_WORKSPACE_BASE="$cache"/.proof TVM_FFI_CACHE_DIR="$cache"/.proof TMPDIR="$cache"/.proof
"""
# What a server gives by itself, so that its words are whole.
SERVER_WORDS = ("--host", "127.0.0.1", "--port", "30000", "--nccl-port", "31000", "--numa-node", "0")


@dataclass(frozen=True)
class Plan:
    """What is proven: the plan of one card type. ``sm`` is "12.0", ``gpus`` the UUIDs of its cards here.

    ``environment`` is the shell text of templates/release/environment.j2; it sets ``cache`` and what servers get.
    """

    card: str
    sm: str
    argv: Sequence[str]
    environment: str
    gpus: Sequence[str]


@dataclass(frozen=True)
class Subject:
    """The installed stack in ``directory``; ``uv`` is the installer, ``rules`` what its stack.yml says.

    Of ``rules`` count ``imports``, ``compilers``, ``nvcc_min``, ``arch_list_below`` and ``proof`` (imports that need a
    driver, tools, headers, flashinfer, engine, kernel_libraries, pip_exceptions). A check without data is none.
    """

    directory: Path
    lock: str
    uv: Path
    rules: Mapping[str, Any]
    user: str
    driver: str = ""

    def data(self, name: str) -> Any:
        """What stack.yml says under ``proof``; None where it says nothing."""
        return self.rules.get("proof", {}).get(name)


@dataclass
class Proof:
    """What came out: ``checks`` [{check, result, seconds, detail}] in their order, and the findings."""

    new: bool
    checks: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def program() -> str:
    return inspect.getsource(proof_probe)


def _sh(subject: Subject, plan: Plan, script: str, words: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Exit code, output and errors of ``script`` behind the servers' environment."""
    text = f"set -eu\n{plan.environment}\n{script}"
    done = run_as(subject.user, ["/bin/sh", "-c", text, "sh", *words], timeout_s)
    return done.rc, done.out, done.err


def ask(
    subject: Subject, plan: Plan, check: str, timeout_s: float = STEP_TIMEOUT_S, **arguments: Any
) -> dict[str, Any]:
    """The probe's answer; ``error`` where there is none."""
    script = (KERNEL_SCRIPT if check in ("flashinfer", "engine", "gpu") else "") + 'exec "$@"'
    python = subject.directory / "venv/bin/python"
    words = [str(python), "-c", program(), check, json.dumps(arguments)]
    try:
        rc, out, err = _sh(subject, plan, script, words, timeout_s)
        answer = json.loads(out.splitlines()[-1])
        return dict(answer)
    except (MissingCommandError, HungCommandError) as exc:
        return {"error": str(exc).partition("\n")[0][-300:]}
    except (ValueError, IndexError):
        return {"error": f"ended with {rc}: {' '.join(err.split())[-600:] or 'no words'}"}


class Checks:
    """One proof from its first check to its last."""

    def __init__(self, subject: Subject, plan: Plan) -> None:
        self.subject, self.plan = subject, plan
        self.seen: dict[str, Any] = {}
        self.proof = Proof(True)

    def look(self) -> dict[str, Any]:
        """What the proof depends on; nothing, and a finding, where the environment or the Python does not run."""
        tools = self.subject.data("tools") or []
        seen = ask(self.subject, self.plan, "look", timeout_s=LOOK_TIMEOUT_S, tools=tools)
        if "error" in seen:
            cure = "Read its words; where the stack is not there, run the play with --tags stack."
            self._fail("proof-environment", telling(seen["error"]), "the stack's Python to run as a server does", cure)
            return {}
        self.seen = seen
        return seen

    def run(self) -> Proof:
        """Every check, the quick ones first; ``look`` went before. One that fails does not end the others."""
        data = self.subject.data
        self._step("the service user cannot write the stack", self._place)
        self._step("exact versions", self._packages)
        self._step("pip check", self._pip)
        for pattern in data("kernel_libraries") or []:
            self._step(f"targets of {pattern}", self._targets, pattern)
        for name in [*self.subject.rules.get("imports", []), *(data("imports") or [])]:
            self._step(f"import {name}", self._import, name)
        self._step("planned words", self._words)
        if data("tools"):
            self._step("programs", self._tools)
        if data("headers"):
            self._step("headers", self._headers)
        if data("flashinfer") and data("engine"):
            self._kernels(data("flashinfer"), data("engine"))
        return self.proof

    def _kernels(self, flashinfer: str, engine: Mapping[str, str]) -> None:
        clear = 'rm -rf "$cache"/.proof'
        _sh(self.subject, self.plan, clear, [], LOOK_TIMEOUT_S)
        self._step("a kernel of flashinfer compiles", self._compile, "flashinfer", function=flashinfer)
        self._step("a kernel of the engine compiles", self._compile, "engine", kernel=engine)
        for uuid in self.plan.gpus:
            self._step(f"the engine's kernel on {uuid}", self._gpu, engine, uuid)
        _sh(self.subject, self.plan, clear, [], LOOK_TIMEOUT_S)

    def _step(self, check: str, judge: Any, *arguments: Any, **more: Any) -> None:
        """Run one check. ``judge`` returns a detail for the record, raises _NotShownError, or adds findings."""
        before, begin, detail = len(self.proof.findings), time.monotonic(), ""
        try:
            detail = judge(*arguments, **more) or ""
            result = "failed" if len(self.proof.findings) > before else "ok"
        except _NotShownError as exc:
            result, detail = "not checked", str(exc)
        seconds = round(time.monotonic() - begin, 1)
        self.proof.checks.append({"check": check, "result": result, "seconds": seconds, "detail": detail})

    def _fail(self, id: str, seen: str, expected: str, cure: str, where: str = "") -> None:
        self.proof.findings.append(Finding(id, "error", seen, expected, cure, where))

    def _answer(
        self, check: str, id: str, expected: str, cure: str, where: str = "", **arguments: Any
    ) -> dict[str, Any]:
        """The probe's answer, of which an error is a finding."""
        answer = ask(self.subject, self.plan, check, **arguments)
        if "cannot" in answer:
            raise _NotShownError(answer["cannot"])
        if "error" in answer:
            self._fail(id, telling(answer["error"]), expected, cure, where)
        return answer

    def _place(self) -> None:
        directory = str(self.subject.directory)
        again = f"Remove {directory} while nothing runs of it, and run the play again."
        answer = self._answer(
            "place", "stack-unreadable", "a stack that the service user reads", again, stack=directory
        )
        writable = answer.get("writable", [])
        if writable:
            expected = f"nothing of the stack writable for {self.subject.user}"
            self._fail("stack-writable", f"{', '.join(writable)} is", expected, again)

    def _packages(self) -> str:
        locked = {package.name: package.version for package in parse_lock(self.subject.lock)}
        cure = "Stacks are never changed in place: remove this one while nothing runs of it, and run the play again."
        answer = self._answer("packages", "stack-packages", "packages that can be listed", cure)
        found = {normal_name(name): version for name, version in answer.get("packages", {}).items()}
        for name in sorted(locked.keys() | found.keys()) if "packages" in answer else []:
            if locked.get(name) != found.get(name):
                expected = f"{locked.get(name, 'none')}, as the lock says"
                self._fail("package-version", found.get(name, "not installed"), expected, cure, name)
        return f"{len(found)} packages"

    def _pip(self) -> str:
        """Whether what packages ask of each other holds, but for what stack.yml gives a reason for."""
        python = str(self.subject.directory / "venv/bin/python")
        words = [str(self.subject.uv), "pip", "check", "--no-cache", "--no-config", "--offline", "--python", python]
        try:
            rc, out, err = _sh(self.subject, self.plan, 'exec "$@"', words, STEP_TIMEOUT_S)
        except (MissingCommandError, HungCommandError) as exc:
            rc, out, err = 127, "", str(exc)
        complaints = [line for line in (out + err).splitlines() if line.startswith("The package `")]
        reasons = self.subject.data("pip_exceptions") or {}
        excused = [line for line in complaints if any(_excuses(pair, line) for pair in reasons)]
        cure = "Resolve the lock again, or give a reason under proof.pip_exceptions in stack.yml."
        for line in complaints:
            if line not in excused:
                self._fail("pip-check", line, "what every package asks of the others", cure)
        if rc and not complaints:
            self._fail(
                "pip-check", f"uv ended with {rc}: {telling(err)}", "an answer of `uv pip check`", "Read its words."
            )
        return f"{len(excused)} excused"

    def _targets(self, pattern: str) -> str:
        sm = int(self.plan.sm.replace(".", ""))
        found: list[Path] = sorted(self.subject.directory.glob(f"venv/lib/python3*/site-packages/{pattern}"))
        cure = "Take a stack whose kernels are built for this card, or correct proof.kernel_libraries in stack.yml."
        if not found:
            self._fail("kernel-library", "no such library", "the library that servers load", cure, pattern)
        names: set[str] = set()
        for path in found:
            try:
                targets = fatbin.targets(path)
            except (ElfError, OSError) as exc:
                self._fail("kernel-library", str(exc), "a library that can be read", cure, pattern)
                continue
            names |= {target.name for target in targets}
            if not any(target.runs_on(sm) for target in targets):
                seen = f"code for {', '.join(sorted(names)) or 'no GPU'}"
                self._fail("kernel-target", seen, f"code that runs on SM {self.plan.sm}", cure, path.name)
        return ", ".join(sorted(names))

    def _import(self, name: str) -> None:
        cure = "Read its words; a library that is missing is to be installed in the container, or locked."
        self._answer("import", "stack-import", f"{name} to import", cure, name, name=name)

    def _words(self) -> str:
        cure = "Correct the flag in the profile or inventory; the flag table may be of another version: `make flags`."
        expected = "words that the engine's own parser takes, each option exact"
        self._answer("parse", "argv-refused", expected, cure, argv=[*self.plan.argv, *SERVER_WORDS])
        return " ".join(self.plan.argv)

    def _tools(self) -> str:
        for name, path in self.seen["tools"].items():
            if not path:
                cure = f"Install what brings {name}, in the container."
                self._fail(
                    "tool-missing", f"not in PATH={self.seen['path']}", "a program that servers find", cure, name
                )
        self._toolkit(self.seen["nvcc"])
        compilers = self.subject.rules.get("compilers", {"good": [], "bad": []})
        version = self.seen["cxx_version"]
        if not version:
            cure = "Install a host compiler in the container."
            self._fail("compiler-missing", telling(self.seen["says"]["cxx"]), "g++", cure, self.seen["cxx"])
        if any(_is_version(version, bad) for bad in compilers["bad"]):
            good = " or ".join(compilers["good"]) or "another one"
            cure = "Install such a g++ in the container."
            self._fail(
                "compiler-bad", f"g++ {version}", f"g++ {good}, known to build the kernels", cure, self.seen["cxx"]
            )
        return f"nvcc {self.seen['nvcc']} in {self.seen['cuda_home']}, {self.seen['cxx']} {version}"

    def _toolkit(self, nvcc: str) -> None:
        least, arch_below = (self.subject.rules.get(name, "") for name in ("nvcc_min", "arch_list_below"))
        home = self.seen["cuda_home"]
        if not nvcc:
            self._fail("nvcc-missing", telling(self.seen["says"]["nvcc"]), "nvcc", "Set sglang_cuda_home.", home)
            return
        if least and _numbers(nvcc) < _numbers(least):
            cure = f"Take a toolkit {least} or later."
            self._fail("nvcc-old", f"nvcc {nvcc}", f"{least} or later", cure, home)
        needs_list = self.plan.sm.startswith("12.") and bool(arch_below) and _numbers(nvcc) < _numbers(arch_below)
        if needs_list and not self.seen["arch_list"]:
            seen = f"nvcc {nvcc} and no FLASHINFER_CUDA_ARCH_LIST: flashinfer refuses SM {self.plan.sm}"
            cure = f"Take such a toolkit, or set FLASHINFER_CUDA_ARCH_LIST: {self.plan.sm}a in sglang_environment."
            self._fail("arch-list-missing", seen, f"nvcc {arch_below} or later, or the list", cure, home)

    def _headers(self) -> str:
        names = self.subject.data("headers")
        cure = "Install the toolkit's package that holds it (Python.h: python3-dev)."
        answer = self._answer("headers", "header-search", "nvcc to look for headers", cure, names=names)
        for name in answer.get("lacking", []):
            home = self.seen["cuda_home"]
            self._fail("header-missing", "not found by nvcc", f"it in {home}/include", cure, name)
        return ", ".join(names)

    def _compile(self, check: str, **arguments: Any) -> str:
        by = f"nvcc {self.seen['nvcc']} with {self.seen['cxx']} {self.seen['cxx_version']}"
        cure = (
            "Read the compiler's words; docs/stacks.md names toolkits and host compilers that are known to build them."
        )
        expected = f"a kernel for SM {self.plan.sm} from {by}"
        self._answer(check, "kernel-failed", expected, cure, check, sm=self.plan.sm, **arguments)
        return f"SM {self.plan.sm}, {by}"

    def _gpu(self, kernel: Mapping[str, str], uuid: str) -> None:
        cure = "See `dmesg` and `nvidia-smi` on the node; compare the driver's version there and in the container."
        self._answer("gpu", "gpu-launch", "the results of the CPU", cure, uuid, kernel=dict(kernel), uuid=uuid)


class _NotShownError(Exception):
    """This machine cannot show it, for want of a driver or of room on a card."""


def telling(text: str) -> str:
    """The lines of a program's words that say what is wrong, on one line, 700 characters at most."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if re.search(r"\berror: |cannot find|not found|undefined reference", line)]
    return " | ".join((wrong or lines)[:3])[:700] or "no words"


def _excuses(pair: str, complaint: str) -> bool:
    """Whether "sglang cuda-python" is about ``The package `sglang` requires `cuda-python>=13.0`, but ...``."""
    package, _, requirement = pair.partition(" ")
    words = complaint.split("`")
    asked = words[3] if len(words) > 3 else ""
    return words[1] == package and asked.startswith(requirement) and not asked[len(requirement) :][:1].isalnum()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _is_version(version: str, known: str) -> bool:
    return bool(version) and _numbers(version)[: len(_numbers(known))] == _numbers(known)
