"""State that a newer version of this project wrote: it is refused before anything is touched.

Every kind of state on disk carries the version of its form. What carries none was written by the first version.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import adopt, cuda_home_files, history, integrity, lock, proof, release, server, stack, staged, staging


def newer(base: Path = Path("/")) -> list[str]:
    """What this version does not know, one phrase a file; empty when all of it can be used. ``base`` is / except in
    tests."""
    return [
        f"{path} has schema {found}, this version knows {known} at most"
        for path, found, known in _versions(base)
        if isinstance(found, int) and found > known
    ]


def refusal(found: Sequence[str]) -> str:
    """Why nothing may be touched where ``newer`` found this; empty when nothing speaks against it."""
    return (
        f"Nothing was touched. A newer version of this project was here: {'; '.join(found)}. "
        "Use the version that wrote it, or a later one."
        if found
        else ""
    )


def _versions(base: Path) -> Iterator[tuple[Path, Any, int]]:
    """(file, its schema, the newest that is known). What cannot be read is the business of who needs it."""
    opt, state, models = base / "opt/sglang", base / "var/lib/sglang", base / "etc/sglang/models.json"
    yield state / "history.jsonl", max(_lines(state / "history.jsonl"), default=None), history.SCHEMA
    for path in sorted(opt.glob("releases/*/manifest.json")):
        yield path, _field(path), release.SCHEMA
    for path in sorted(opt.glob(f"stacks/*/{stack.MARKER}")):
        yield path, _field(path), stack.SCHEMA
    for path in sorted(opt.glob(f"stacks/*/cuda/{cuda_home_files.MANIFEST}")):
        yield path, _field(path), cuda_home_files.SCHEMA
    for path in sorted(opt.glob(f"stacks/*/{proof.FILE}")):
        yield path, _field(path), proof.SCHEMA
    for path in sorted(opt.glob("servers/gpu*/server.env")):
        found = re.search(r"^# schema (\d+)$", _text(path), re.MULTILINE)
        yield path, int(found[1]) if found else None, server.SCHEMA
    for path in sorted(state.glob("lent/gpu*")):
        yield path, _field(path), server.SCHEMA
    yield models, _field(models), staging.SCHEMA
    for path in _markers(models):
        yield path, _field(path), staged.SCHEMA
    for path in sorted(state.glob("checkpoints/*.json")):
        yield path, _field(path), integrity.SCHEMA
    for path in sorted(base.glob("run/sglang-pve/adopt/gpu*")):
        yield path, _field(path), adopt.SCHEMA
    lock_file = base / "run/sglang-pve/lock.json"
    yield lock_file, _field(lock_file), lock.SCHEMA


def _markers(models: Path) -> Iterable[Path]:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return [Path(entry["target"]) / staged.MARKER for entry in json.loads(_text(models))["models"]]
    return []


def _lines(path: Path) -> Iterator[int]:
    for line in _text(path).splitlines():
        # A crash may have cut a line short.
        with contextlib.suppress(ValueError, AttributeError):
            found = json.loads(line).get("schema")
            if isinstance(found, int):
                yield found


def _field(path: Path) -> Any:
    try:
        return json.loads(_text(path))["schema"]
    except (ValueError, KeyError, TypeError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
