"""NVIDIA's C++ headers (CUB, Thrust, libcu++; together CCCL): which version goes with which nvcc."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# The directories that belong to it and to nothing else.
NAMES = ("cub", "thrust", "cuda", "nv")
# flashinfer/data/include/flashinfer/sampling.cuh:42-48 of 0.6.8.post1: cuda::maximum from this nvcc on, cub::Max below.
# The first CCCL with cuda::maximum is 2.8, the first without cub::Max 3.0.
_MAXIMUM_SINCE, _FIRST_WITH_MAXIMUM = (12, 9), (2, 8)


@dataclass(frozen=True)
class Cccl:
    """One copy: ``directory`` holds NAMES, ``version`` is (2, 8, 2), ``has_max`` whether it declares cub::Max."""

    directory: Path
    version: tuple[int, ...]
    has_max: bool

    @property
    def text(self) -> str:
        return ".".join(map(str, self.version))


def read(root: Path) -> Cccl | None:
    """The copy below ``root``/include, where CUDA 13 has it in a directory of its own; None where there is none."""
    for directory in (root / "include/cccl", root / "include"):
        try:
            match = re.search(r"#define\s+CUB_VERSION\s+(\d+)", (directory / "cub/version.cuh").read_text())
            operators = (directory / "cub/thread/thread_operators.cuh").read_text()
        except OSError:
            continue
        if match:
            number = int(match.group(1))
            version = (number // 100000, number // 100 % 1000, number % 100)
            has_max = re.search(r"\b(?:struct|using)\s+Max\b", operators) is not None
            return Cccl(directory, version, has_max)
    return None


def fits(nvcc: Sequence[int], found: Cccl) -> bool:
    """Whether the kernels compile with this pair; ``nvcc`` is (12, 8)."""
    if tuple(nvcc[:2]) < _MAXIMUM_SINCE:
        return found.version[0] < 3 and found.has_max
    return found.version >= _FIRST_WITH_MAXIMUM


def wanted(nvcc: Sequence[int]) -> str:
    """What ``fits`` asks for, in words."""
    older = tuple(nvcc[:2]) < _MAXIMUM_SINCE
    return "a CCCL below 3 with cub::Max" if older else "CCCL 2.8 or later"
