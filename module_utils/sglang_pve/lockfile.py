"""A stack's lock: exact versions with the SHA-256 of every file that may be installed for them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

ID_LENGTH = 12


class LockError(ValueError):
    """The lock's text is not what a stack can be installed from."""


@dataclass(frozen=True)
class Locked:
    """One locked package: normalised name, exact version, SHA-256 of its files (hexadecimal)."""

    name: str
    version: str
    hashes: frozenset[str]

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def normal_name(name: str) -> str:
    """A package's name in the one form that compares (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str) -> list[Locked]:
    """Read a lock as ``uv pip compile --generate-hashes`` writes it, for one platform; sorted by name.

    Raises LockError, which names the line, for whatever would make an install depend on more than this text: a version
    that is not exact, a missing hash, an address, a marker, an option.
    """
    found: dict[str, Locked] = {}
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        pin = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)", words[0])
        hashes = [re.fullmatch(r"--hash=sha256:([0-9a-f]{64})", word) for word in words[1:]]
        if not pin or not hashes or not all(hashes):
            raise LockError(
                f"lock line {line.strip()[:80]!r}: expected name==version --hash=sha256:... and nothing else; "
                "resolve the lock again with hashes, for one platform, without an index address"
            )
        locked = Locked(normal_name(pin.group(1)), pin.group(2), frozenset(match.group(1) for match in hashes if match))
        if locked.name in found:
            raise LockError(f"lock names {locked.name} twice; resolve it again")
        found[locked.name] = locked
    if not found:
        raise LockError("lock is empty; expected one line name==version --hash=sha256:... for each package")
    return [found[name] for name in sorted(found)]


def lock_sha256(text: str) -> str:
    """The SHA-256 of what the lock says; comments, order and line ends do not count."""
    lines = (f"{locked.requirement} {' '.join(sorted(locked.hashes))}\n" for locked in parse_lock(text))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def stack_id(lock_text: str, python: str, uv_version: str) -> str:
    """Name a stack by what decides its content: the lock, Python's major.minor version, and the installer's version."""
    minor = ".".join(python.split(".")[:2])
    return hashlib.sha256(f"{lock_sha256(lock_text)} python {minor} uv {uv_version}\n".encode()).hexdigest()[:ID_LENGTH]
