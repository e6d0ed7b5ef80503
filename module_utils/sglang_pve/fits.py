"""How many running requests would have fitted, after an engine said that its pools do not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import memory
from .flags import options_of

# Free memory before and after the weights, in the engine's own words (GiB, though it says GB).
AVAILABLE = re.compile(r"Load weight (begin|end)\..*?avail mem=([0-9.]+) GB")


def running(lines: Iterable[str], engine: str, argv: Sequence[str], config: Mapping[str, Any]) -> int | None:
    """The most running requests, less than asked for, with which one request of full length still has its KV tokens.

    By the formulas of ``engine`` (memory.py) and the free memory that it logged; None where something is not known.
    """
    free = {match[1]: float(match[2]) for match in map(AVAILABLE.search, lines) if match}
    if len(free) < 2 or engine not in memory.ENGINES:
        return None
    given = options_of(argv)
    try:
        geometry = memory.Geometry.from_config(config)
        asked = memory.MemoryFlags.read(given, geometry).running or 1
        for number in range(asked - 1, 0, -1):
            flags = memory.MemoryFlags.read({**given, "max-running-requests": number}, geometry)
            pools = memory.ENGINES[engine].pools(geometry, free["begin"], free["end"], flags)
            if pools.tokens >= flags.context and pools.running >= number:
                return number
    except ValueError:
        pass
    return None


def of_release(directory: Path, lines: Iterable[str]) -> int | None:
    """``running`` for a release's directory; None where it or its checkpoint's config.json cannot be read."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        config = json.loads((Path(manifest["model"]["path"]) / "config.json").read_text(encoding="utf-8"))
        return running(lines, manifest["stack"]["engine"], manifest["plan"]["argv"], config)
    except (OSError, ValueError, KeyError, TypeError):
        return None
