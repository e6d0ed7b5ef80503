"""Which of an engine's stacks a container can run: by driver, toolkit, glibc, Python and the wheels at hand.

A lane is the CUDA that a stack's libraries are built for. ``choose`` never raises: where no stack fits, the first comes
with a finding for each thing that stands against each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .findings import Finding
from .lockfile import parse_lock
from .stack import LANES

AUTO = "auto"
# The package that brings a compiler into the stack; without it the container's own toolkit has to compile.
NVCC_PACKAGE = "nvidia-cuda-nvcc"
Meta = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """What is known of a container; None is what could not be read.

    ``python`` is "3.12" or longer, ``lacking`` the number of wheels that neither the container nor the controller has,
    by stack; 0 for one that is installed.
    """

    driver: str | None
    nvcc: str | None
    glibc: str | None
    python: str
    lacking: Mapping[str, int]


@dataclass(frozen=True)
class Choice:
    """The stack's name, one line that says why, and what stands against it (nothing: it fits)."""

    name: str
    reason: str
    findings: Sequence[Finding]


def choose(stacks: Sequence[Meta], place: Place) -> Choice:
    """Choose among the stacks of one engine, at least one. CUDA 13 comes first: it was run.

    A stack that fits and whose wheels are there is taken before one that fits without them.
    """
    ordered = sorted(stacks, key=lambda meta: (-LANES[meta["lane"]], meta["name"]))
    against = {meta["name"]: judge(meta, place) for meta in ordered}
    fitting = [meta for meta in ordered if not against[meta["name"]]]
    if not fitting:
        return Choice(
            ordered[0]["name"],
            f"no stack of SGLang {ordered[0]['engine']} fits this container",
            [finding for findings in against.values() for finding in findings],
        )
    best = min(fitting, key=lambda meta: place.lacking.get(meta["name"], 0) > 0)
    passed_over = ordered[: ordered.index(best)]
    reasons = [f"lane {meta['lane']} {_drawback(meta, against[meta['name']], place)}" for meta in passed_over]
    return Choice(best["name"], "; ".join([why(best, place), *reasons]), [])


def _drawback(meta: Meta, against: Sequence[Finding], place: Place) -> str:
    if against:
        return f"does not fit: {against[0].seen}, expected {against[0].expected}"
    return f"fits, and lacks {place.lacking[meta['name']]} wheels"


def why(meta: Meta, place: Place) -> str:
    """``sglang-0.5.11-cu130 (lane cu130): driver 580.65 (580 or later), its own nvcc, glibc 2.39 (2.34 to 2.41)``."""
    facts = [f"driver {place.driver or 'unknown'} ({meta.get('driver_min', 'any')} or later)"]
    facts.append("its own nvcc" if has_nvcc(meta) else f"nvcc {place.nvcc or 'unknown'} ({_nvcc_range(meta)})")
    facts.append(f"glibc {place.glibc or 'unknown'} ({_glibc_range(meta)})")
    lacking = place.lacking.get(meta["name"], 0)
    facts.append(f"{lacking} wheels lacking" if lacking else "all wheels at hand")
    return f"{meta['name']} (lane {meta['lane']}): {', '.join(facts)}"


def has_nvcc(meta: Meta) -> bool:
    """Whether the stack brings a compiler of its own."""
    return any(locked.name == NVCC_PACKAGE for locked in parse_lock(meta["lock"]))


def judge(meta: Meta, place: Place) -> list[Finding]:
    """What makes this stack impossible in this container, each with both numbers and a cure."""
    where = f"lane {meta['lane']}"

    def impossible(id: str, seen: str, expected: str, cure: str) -> Finding:
        source = str(meta.get("sources", {}).get({"driver-too-old": "driver_min"}.get(id, ""), ""))
        return Finding(id, "error", seen, expected, cure, where, source)

    found = []
    minor = ".".join(place.python.split(".")[:2])
    if minor not in meta["python"]:
        expected = f"one of {', '.join(meta['python'])}, for which {meta['name']} is locked"
        found.append(impossible("lane-python", f"Python {minor}", expected, "Take a container that has one of them."))
    driver, least = _numbers(place.driver), meta.get("driver_min", 0)
    if driver and driver[0] < least:
        cure = f"Update the driver on the node and in the container to {least} or later."
        found.append(impossible("driver-too-old", f"driver {place.driver}", f"{least} or later", cure))
    glibc = _numbers(place.glibc)
    if glibc and not _numbers(meta.get("glibc_min")) <= glibc <= (_numbers(meta.get("glibc_max")) or glibc):
        cure = "Take a container of Ubuntu 24.04 (glibc 2.39) or Debian 12 (2.36)."
        found.append(impossible("lane-glibc", f"glibc {place.glibc}", _glibc_range(meta), cure))
    if not has_nvcc(meta) and "nvcc_min" in meta:
        nvcc, major = _numbers(place.nvcc), LANES[meta["lane"]]
        if not nvcc or nvcc[0] != major or nvcc < _numbers(meta["nvcc_min"]):
            version = meta.get("arch_list_below", meta["nvcc_min"])
            cure = (
                f"Install cuda-toolkit-{version.replace('.', '-')} in the container and point sglang_cuda_home at it."
            )
            seen = f"nvcc {place.nvcc}" if nvcc else "no nvcc in sglang_cuda_home"
            found.append(impossible("lane-nvcc", seen, _nvcc_range(meta), cure))
    return found


def _glibc_range(meta: Meta) -> str:
    least, most = meta.get("glibc_min"), meta.get("glibc_max")
    return f"{least or 'any'} to {most}" if most else f"{least} or later" if least else "any"


def _nvcc_range(meta: Meta) -> str:
    return f"{meta.get('nvcc_min', 'any')} or later of CUDA {LANES[meta['lane']]}"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
