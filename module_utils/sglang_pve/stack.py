"""A stack: installed, locked versions in ``<root>/<id>/``; complete exactly when its ``stack.json`` is there.

Layout: ``venv/`` (built in place, a venv cannot be moved), ``lock.txt``, and ``stack.json``, written last.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .command import HungCommandError, MissingCommandError
from .command import run as run_command
from .findings import Finding
from .host import existing_parent, glibc_version
from .lockfile import Locked, lock_sha256, parse_lock, stack_id
from .wheelhouse import Survey, parse_wheel, survey

SCHEMA = 1
MARKER = "stack.json"


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+(\.\w+)*", value) is not None


def _is_python_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_version(v) and v.count(".") == 1 for v in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in value)


def _is_uv(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"wheel", "sha256"}
        and _is_texts(list(value.values()))
        and re.fullmatch("[0-9a-f]{64}", value["sha256"]) is not None
    )


def _is_reasons(value: Any) -> bool:
    return isinstance(value, dict) and _is_texts([*value.keys(), *value.values()])


def _is_compilers(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"good", "bad"} and all(map(_is_versions, value.values()))


def _is_versions(value: Any) -> bool:
    return isinstance(value, list) and all(_is_version(item) for item in value)


_KERNEL = {"module", "arch", "build", "launch"}
_PROOF: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("imports", "tools", "headers", "kernel_libraries"), _is_texts),
    "pip_exceptions": _is_reasons,
    "flashinfer": lambda value: _is_text(value) and value.count(":") == 1,
    "engine": lambda value: isinstance(value, dict) and set(value) == _KERNEL and _is_texts(list(value.values())),
}


def _is_proof(value: Any) -> bool:
    return isinstance(value, dict) and all(name in _PROOF and _PROOF[name](item) for name, item in value.items())


def _is_elsewhere(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(wheel, dict)
        and set(wheel) == {"file", "sha256", "page", "requires"}
        and _is_texts([wheel["file"], wheel["page"]])
        and re.fullmatch("[0-9a-f]{64}", str(wheel["sha256"])) is not None
        and _is_texts(wheel["requires"])
        for wheel in value
    )


# CUDA's major version in each lane; every library of a stack must need this one.
LANES = {"cu130": 13, "cu12": 12}

# What stack.yml may say: field -> (a test of its value, what is expected in words, whether it must be there).
_FIELDS: dict[str, tuple[Callable[[Any], bool], str, bool]] = {
    "engine": (_is_version, 'the engine\'s version in quotes, such as "0.5.11"', True),
    "flags": (_is_text, "the name of a flag table, such as sglang-0.5.11", True),
    "lane": (lambda value: value in LANES, " or ".join(LANES), False),
    "resolved": (_is_date, 'the date up to which the lock takes versions, in quotes, such as "2026-05-12"', False),
    "python": (_is_python_list, 'a list of Python versions in quotes, such as ["3.11", "3.12"]', True),
    "driver_min": (_is_number, "the driver's least major version, such as 580", False),
    "nvcc_min": (_is_version, 'a CUDA version in quotes, such as "13.0"', False),
    "arch_list_below": (_is_version, "the CUDA version below which FLASHINFER_CUDA_ARCH_LIST must be set", False),
    "compilers": (_is_compilers, 'good and bad: lists of g++ versions in quotes, such as ["11.3"]', False),
    "glibc_min": (_is_version, 'a glibc version in quotes, such as "2.34"', False),
    "glibc_max": (_is_version, 'the newest glibc whose headers the toolkit takes, such as "2.41"', False),
    "disk_gib": (_is_number, "GiB to be free before the install, such as 12", False),
    "cuda_exceptions": (_is_reasons, "a reason for each pattern of libraries that need another CUDA", False),
    "proof": (_is_proof, f"what the stack's proof looks at: {', '.join(_PROOF)}", False),
    "environment": (_is_reasons, "a table of variables that the servers of this stack get", False),
    "elsewhere": (_is_elsewhere, "a list of wheels with file, sha256, page and requires", False),
    "imports": (_is_texts, "a list of modules that must import", True),
    "uv": (_is_uv, "wheel (file name) and sha256 (64 hexadecimal digits)", True),
    "sources": (lambda value: isinstance(value, dict), "a source for each fact, by its field's name", False),
}


class StackError(Exception):
    """A stack that cannot be installed or used; ``finding`` says why and what to do."""

    def __init__(self, id: str, seen: str, expected: str, cure: str) -> None:
        self.finding = Finding(id, "error", seen, expected, cure)
        super().__init__(self.finding.sentence())


def check_meta(meta: Any, where: str) -> dict[str, Any]:
    """Return the content of a stack.yml as it is; raise StackError, which names ``where``, at the first wrong field."""
    cure = f"Correct {where}."
    if not isinstance(meta, dict):
        raise StackError("stack-meta", f"{where} holds {type(meta).__name__}", "a table of fields", cure)
    if meta.get("schema") != SCHEMA:
        raise StackError("stack-meta", f"{where} has schema {meta.get('schema')!r}", f"schema: {SCHEMA}", cure)
    for field in sorted(meta.keys() - _FIELDS.keys() - {"schema"}):
        raise StackError("stack-meta", f"{where} has the unknown field {field!r}", f"one of {', '.join(_FIELDS)}", cure)
    for field, (fits, expected, required) in _FIELDS.items():
        if field not in meta and required:
            raise StackError("stack-meta", f"{where} has no field {field!r}", expected, cure)
        if field in meta and not fits(meta[field]):
            raise StackError("stack-meta", f"{where} says {field}: {meta[field]!r}", expected, cure)
    return meta


@dataclass(frozen=True)
class Stack:
    """What is to be installed. ``pythons`` are the "major.minor" that the lock holds files for; empty means any.

    ``lane`` is one of LANES, or empty where no library of the stack is judged by its CUDA; ``cuda_exceptions`` as in
    elf.judge.
    """

    name: str
    id: str
    lock: str
    engine: str
    uv_wheel: str
    uv_sha256: str
    imports: Sequence[str] = ()
    pythons: Sequence[str] = ()
    glibc_min: str = ""
    disk_gib: float = 0
    lane: str = ""
    cuda_exceptions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def uv(self) -> Locked:
        """The installer's own wheel, as one more locked package. Raises StackError on another file name."""
        wheel = parse_wheel(self.uv_wheel)
        if wheel is None or wheel.name != "uv":
            raise StackError("uv-wheel", f"uv wheel {self.uv_wheel!r}", "uv-VERSION-...whl", "correct uv.wheel.")
        return Locked(wheel.name, wheel.version, frozenset([self.uv_sha256]))

    @property
    def wanted(self) -> list[Locked]:
        """Every file that the install needs from the wheelhouse. Raises LockError and StackError."""
        return [self.uv, *parse_lock(self.lock)]


def installed(stack: Stack, root: Path) -> bool:
    """Whether the stack is complete. Cheap: reads one small file. Raises StackError where a marker does not fit."""
    marker = root / stack.id / MARKER
    try:
        state = json.loads(marker.read_text())
        fits = state["schema"] == SCHEMA and state["id"] == stack.id and state["lock_sha256"] == lock_sha256(stack.lock)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        _refuse_marked(marker, "its content is not this stack's")
    if not os.access(root / stack.id / "venv/bin/python", os.X_OK):
        _refuse_marked(marker, "its venv/bin/python does not run")
    return True


def look_in(stack: Stack, wheelhouse: Path, python: str) -> Survey:
    """Say what the stack finds in a wheelhouse directory of this machine; ``python`` is "major.minor".

    Raises StackError where the directory cannot be read.
    """
    try:
        return survey(stack.wanted, wheelhouse, python, platform.machine())
    except OSError as exc:
        raise StackError(
            "wheelhouse-missing",
            f"wheelhouse {wheelhouse}: {exc.strerror}",
            "a directory with the wheels of the lock",
            "Fill it on a connected machine and mount or copy it there.",
        ) from exc


def check_host(stack: Stack, python: str) -> str:
    """Return the "major.minor" of the interpreter ``python`` after checking it and glibc. Raises StackError."""
    version = python_version(python)
    if stack.pythons:
        require_python(stack.name, stack.pythons, version)
    if stack.id != stack_id(stack.lock, version, stack.uv.version):
        raise StackError(
            "stack-id",
            f"stack id {stack.id} does not follow from this lock, Python {version} and uv {stack.uv.version}",
            f"{stack_id(stack.lock, version, stack.uv.version)}",
            "Run the play from its start, so that the id is computed from the container's Python.",
        )
    glibc = glibc_version()
    if stack.glibc_min and (glibc is None or _numbers(glibc) < _numbers(stack.glibc_min)):
        raise StackError(
            "glibc-old",
            f"glibc {glibc or 'not found'} in the container",
            f"{stack.glibc_min} or later, which the wheels of {stack.name} need",
            "Use a container of Debian 12, Ubuntu 22.04 or later.",
        )
    return version


def require_python(name: str, pythons: Sequence[str], version: str) -> None:
    """Raise StackError where the container's Python ``version`` is none that the stack is locked for."""
    if ".".join(version.split(".")[:2]) not in pythons:
        raise StackError(
            "python-unsupported",
            f"Python {version} in the container",
            f"one of {', '.join(pythons)}, for which stack {name} is locked",
            "Install one of them in the container, or take another stack.",
        )


def check_disk(stack: Stack, root: Path) -> None:
    """Raise StackError where ``root`` has less free space than the stack asks for."""
    free = free_gib(root)
    if free < stack.disk_gib:
        raise StackError(
            "disk-short",
            f"{free:.1f} GiB free for {root}",
            f"{stack.disk_gib:g} GiB for stack {stack.name}",
            "Free space in the container (old stacks?), or enlarge its disk.",
        )


def free_gib(root: Path) -> float:
    """GiB free on the file system that ``root`` is or would be on."""
    return shutil.disk_usage(existing_parent(str(root))).free / 1024**3


def python_version(python: str) -> str:
    """The "major.minor" of an interpreter. Raises StackError where it does not run."""
    try:
        output = run_command([python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], 30)
    except (MissingCommandError, HungCommandError) as exc:
        raise StackError(
            "python-missing",
            str(exc),
            "a Python interpreter",
            "Install python3 in the container (apt install python3).",
        ) from exc
    if output.rc != 0 or not re.fullmatch(r"3\.\d+\n", output.out):
        seen = f"{python} ended with {output.rc}: {(output.err or output.out).strip()[-300:]}"
        raise StackError("python-missing", seen, "a Python 3 interpreter", "Repair python3 in the container.")
    return output.out.strip()


def _refuse_marked(marker: Path, why: str) -> None:
    raise StackError(
        "stack-damaged",
        f"{marker} is there, but {why}",
        "a complete stack, or none",
        f"Stop the servers that use it, remove {marker.parent} and run again; it is never removed on its own.",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
