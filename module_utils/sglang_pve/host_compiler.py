"""The C++ compilers of the container, which of them builds the engine's own kernels, and Python's headers."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import command
from .command import HungCommandError, MissingCommandError, Runner
from .findings import Finding

TIMEOUT_S = 20.0
APT_TIMEOUT_S = 900.0
# What apt is asked for: the default and every series that nvcc 12.8 to 13.0 take.
PACKAGES = ("g++", *(f"g++-{major}" for major in range(9, 16)))


_NO_CACHE = ("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")


@dataclass(frozen=True)
class Compiler:
    """A g++ with its gcc; ``version`` is "11.3.0"."""

    cc: str
    cxx: str
    version: str


@dataclass(frozen=True)
class Choice:
    """The compiler to use, or the ``package`` to install first, or neither; and why, in a few words."""

    compiler: Compiler | None
    package: str
    why: str
    findings: Sequence[Finding]


def find(directory: Path = Path("/usr/bin"), run: Runner = command.run) -> list[Compiler]:
    """Every g++ or g++-N of ``directory`` that says its version and has its gcc beside it; the default first."""
    found = []
    for cxx in sorted(directory.glob("g++*"), key=lambda path: (len(path.name), path.name)):
        cc = cxx.with_name(cxx.name.replace("g++", "gcc"))
        if re.fullmatch(r"g\+\+(-\d+)?", cxx.name) and cc.exists():
            try:
                output = run([str(cxx), "-dumpfullversion"], TIMEOUT_S)
            except (MissingCommandError, HungCommandError):
                continue
            if re.fullmatch(r"\d+(\.\d+)+", output.out.strip()):
                found.append(Compiler(str(cc), str(cxx), output.out.strip()))
    return found


def offered(names: Sequence[str] = PACKAGES, run: Runner = command.run) -> list[str]:
    """Which of ``names`` apt could install, as far as its lists say; none where it has no lists or is not there."""
    try:
        # Without its caches apt only reads: a preflight changes nothing.
        output = run(["apt-cache", *_NO_CACHE, "policy", *names], TIMEOUT_S)
    except (MissingCommandError, HungCommandError):
        return []
    # A name that apt does not know counts as a pattern, so it may answer with other packages.
    named = re.findall(r"(?m)^(\S+):\n  Installed: .*\n  Candidate: \d", output.out)
    return [name for name in named if name in names]


def choose(found: Sequence[Compiler], known: Mapping[str, Any], newest: int | None = None) -> Choice:
    """Choose by what is known of the stack's kernels.

    ``known``: {"good", "bad": g++ versions such as "11.3", "package": what gives this distribution a good one, or ""}.
    A version counts for its whole series (11.4 for 11.3). One that nobody tried is taken where no good one is known or
    can be had, with a warning. ``newest``: the highest major that the nvcc takes.
    """
    good = next((one for one in found if _is(one, known["good"], 2)), None)
    if good:
        return Choice(good, "", f"g++ {good.version} is known to build the engine's kernels", [])
    near = next((one for one in found if _is(one, known["good"], 1) and not _is(one, known["bad"], 2)), None)
    if near:
        return Choice(near, "", f"g++ {near.version} is of the series of a known good one", [])
    seen = ", ".join(f"{one.cxx} {one.version}" for one in found) or "no g++ in the container"
    expected = f"g++ {' or '.join(known['good'])}" if known["good"] else "a g++ that the stack's nvcc takes"
    untried = [one for one in found if not _is(one, known["bad"], 1) and _major(one) <= (newest or _major(one))]
    helps = any(known["package"] == f"g++-{version.split('.')[0]}" for version in known["good"])
    if known["package"] and (helps or not untried):
        cure = f"Nothing: {known['package']} is installed with the stack, beside what is there."
        note = Finding("compiler-to-install", "note", seen, expected, cure)
        return Choice(None, known["package"], f"{seen}; expected {expected}", [note])
    if untried:
        first = untried[0]
        cure = "Install one that is known good, or look at the first start with care."
        warning = Finding("compiler-untried", "warning", f"{first.cxx} {first.version}", expected, cure)
        return Choice(first, "", f"g++ {first.version} was not tried with this stack", [warning])
    cure = "Install one of them in the container; the engine compiles kernels when it starts."
    return Choice(None, "", seen, [Finding("compiler-missing", "error", seen, expected, cure)])


def judge(found: Sequence[Compiler], offers: Sequence[str], known: Mapping[str, Any], headers: str) -> list[Finding]:
    """What preflight says: ``offers`` are the packages that apt's lists name, ``headers`` is of ``python_headers``."""
    choice = choose(found, known)
    findings = list(choice.findings)
    if choice.package:
        none_offered = (
            f"apt does not offer {choice.package}: give it a source that does, or install a good one yourself."
        )
        otherwise = [replace(one, cure=none_offered) for one in choose(found, {**known, "package": ""}).findings]
        findings = _obtainable(findings[0], choice.package, offers, otherwise)
    if headers:
        expected, cure = "the headers that Triton compiles with", f"Nothing: {headers} is installed with the stack."
        note = Finding("python-headers-to-install", "note", "no Python.h in the container", expected, cure)
        missing = replace(
            note, id="python-headers-missing", level="error", cure=f"apt does not offer {headers}: install it yourself."
        )
        findings += _obtainable(note, headers, offers, [missing])
    return findings


def _obtainable(note: Finding, package: str, offers: Sequence[str], otherwise: list[Finding]) -> list[Finding]:
    if offers:
        return [note] if package in offers else otherwise
    cure = f"Run apt-get update in the container, or install {package} yourself."
    return [replace(note, level="not checked", seen=f"{note.seen}; apt has no lists", cure=cure)]


def python_headers() -> str:
    """The package with the headers of this Python, which Triton compiles its launchers with; empty: they are there."""
    there = Path(sysconfig.get_path("include"), "Python.h").is_file()
    return "" if there else f"libpython{sys.version_info[0]}.{sys.version_info[1]}-dev"


def _major(one: Compiler) -> int:
    return int(one.version.split(".")[0])


def _is(one: Compiler, versions: Sequence[str], parts: int) -> bool:
    """Whether one of ``versions`` has the same first ``parts`` numbers."""
    return one.version.split(".")[:parts] in [version.split(".")[:parts] for version in versions]


def install(package: str, run: Runner = command.run) -> str:
    """Install a package with apt; the empty text, or why it could not be had."""
    refused = f"its lists do not name {package}"
    # Fresh lists only where the old ones do not do: a container without a mirror may have the package in its cache.
    for fresh in (False, True):
        if fresh:
            _apt(["update"], run)
        # Never a name that apt does not know: it would take it for a pattern, and clang-11 matches g++-11.
        if package in offered([package], run):
            refused = _apt(["install", "-y", "--no-install-recommends", package], run)
            if not refused:
                break
    return refused


def _apt(words: Sequence[str], run: Runner) -> str:
    """Run apt-get; the empty text, or its last words."""
    try:
        output = run(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", *words], APT_TIMEOUT_S)
    except (MissingCommandError, HungCommandError) as exc:
        return str(exc)
    return "" if output.rc == 0 else " ".join((output.err or output.out).split())[-400:] or f"it ended with {output.rc}"
