"""The container's CUDA toolkit, asked from its own compiler."""

from __future__ import annotations

import re
from pathlib import Path

from . import command
from .command import HungCommandError, MissingCommandError, Runner

NVCC_TIMEOUT_S = 20.0


def nvcc_version(cuda_home: Path, run: Runner = command.run) -> str | None:
    """The version of ``cuda_home``/bin/nvcc as "13.0"; None where there is none, or it does not say."""
    try:
        output = run([str(cuda_home / "bin/nvcc"), "--version"], NVCC_TIMEOUT_S)
    except (MissingCommandError, HungCommandError):
        return None
    match = re.search(r"\brelease (\d+\.\d+)", output.out)
    return match.group(1) if match else None
