"""A wheelhouse: a directory of wheels, and what a lock finds in it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from .lockfile import Locked, normal_name

MISSING = "missing"
ALTERED = "altered"
UNFIT = "for another Python or machine"
READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Wheel:
    """What a wheel's file name tells: ``name-version[-build]-python-abi-platform.whl``, tags joined by dots."""

    name: str
    version: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]

    def fits(self, python: str, machine: str) -> bool:
        """Whether CPython ``python`` ("3.11") on glibc Linux of this ``machine`` ("x86_64") can install it."""
        minor = int(python.split(".")[1])
        on_machine = (p.startswith(("linux_", "manylinux")) and p.endswith("_" + machine) for p in self.platforms)
        return ("any" in self.platforms or any(on_machine)) and any(
            _tag_fits(tag, abi, minor) for tag in self.pythons for abi in self.abis
        )


def _tag_fits(python: str, abi: str, minor: int) -> bool:
    match = re.fullmatch(r"(cp|py)3(\d*)", python)
    if not match:
        return False
    least = int(match.group(2) or 0)
    if match.group(1) == "py" or abi == "abi3":
        return least <= minor
    return least == minor and abi in (f"cp3{minor}", "none")


def parse_wheel(file_name: str) -> Wheel | None:
    """Read a wheel's file name; None for another file."""
    match = re.fullmatch(r"([^-]+)-([^-]+)(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl", file_name)
    if not match:
        return None
    name, version, pythons, abis, platforms = match.groups()
    return Wheel(normal_name(name), version, *(tuple(tags.split(".")) for tags in (pythons, abis, platforms)))


@dataclass(frozen=True)
class Lacking:
    """A locked package that the wheelhouse cannot give, why, and the file that was looked at ("" for none)."""

    requirement: str
    reason: str
    file: str = ""


class Found(NamedTuple):
    """A file whose SHA-256 the lock knows."""

    path: Path
    sha256: str


@dataclass
class Survey:
    """What a lock finds in a wheelhouse: requirement -> its verified file, and what is lacking."""

    found: dict[str, Found] = field(default_factory=dict)
    lacking: list[Lacking] = field(default_factory=list)

    def lacking_dicts(self) -> list[dict[str, str]]:
        return [asdict(lacking) for lacking in self.lacking]

    def lacking_text(self) -> str:
        """Every lacking package, by reason: ``missing: a==1, b==2; altered: c-3-py3-none-any.whl``."""
        by_reason: dict[str, list[str]] = {}
        for lacking in self.lacking:
            shown = lacking.file if lacking.reason == ALTERED else lacking.requirement
            by_reason.setdefault(lacking.reason, []).append(shown)
        return "; ".join(f"{reason}: {', '.join(names)}" for reason, names in by_reason.items())


def survey(wanted: Sequence[Locked], directory: Path, python: str, machine: str) -> Survey:
    """Look for a fitting file of each wanted package whose SHA-256 is in the lock. Only candidates are read.

    Raises OSError where the directory cannot be read.
    """
    candidates: dict[tuple[str, str], list[tuple[Path, bool]]] = {}
    for path in sorted(directory.iterdir()):
        wheel = parse_wheel(path.name)
        if wheel and path.is_file():
            candidates.setdefault(_key(wheel), []).append((path, wheel.fits(python, machine)))
    by_package = {locked: candidates.get(_key(locked), []) for locked in wanted}
    fitting = [path for files in by_package.values() for path, fits in files if fits]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = dict(zip(fitting, pool.map(sha256_file, fitting)))
    result = Survey()
    for locked, files in by_package.items():
        good = next((path for path, fits in files if fits and hashes[path] in locked.hashes), None)
        if good:
            result.found[locked.requirement] = Found(good, hashes[good])
            continue
        altered = next((path.name for path, fits in files if fits), "")
        unfit = next((path.name for path, _ in files), "")
        reason = ALTERED if altered else UNFIT if unfit else MISSING
        result.lacking.append(Lacking(locked.requirement, reason, altered or unfit))
    return result


def count_lacking(wanted: Iterable[Locked], file_names: Iterable[str], python: str, machine: str) -> int:
    """How many of the wanted packages have no fitting file of their version, by name alone: nothing is read."""
    wheels = (parse_wheel(name) for name in file_names)
    there = {_key(wheel) for wheel in wheels if wheel and wheel.fits(python, machine)}
    return sum(_key(locked) not in there for locked in wanted)


def nothing_found(wanted: Sequence[Locked]) -> Survey:
    """What a wheelhouse gives that is not there."""
    return Survey(lacking=[Lacking(locked.requirement, MISSING) for locked in wanted])


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _key(package: Wheel | Locked) -> tuple[str, str]:
    return package.name, _version(package.version)


def _version(text: str) -> str:
    # A file name may spell 2024.01 what an index calls 2024.1.
    return re.sub(r"(?<![0-9a-z])0+(?=\d)", "", text.lower())
