"""A release: what one kind of card runs for one checkpoint, small, immutable, named by its content.

A release is a directory with ``manifest.json`` (stack, model reference, plan), ``run`` and ``ready`` (what the unit
starts and waits for) and ``unit.conf`` (what the unit needs besides). Ports and GPU UUIDs are parameters outside it.
A release holds the plan of one card type, so that its id does not depend on which servers a run selected.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = 1
EXECUTABLE = ("run", "ready")
Manifest = dict[str, Any]


class ReleaseError(Exception):
    """A release is missing, was altered on disk or cannot be written; the message says which and what to do."""


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def manifest(stack: Mapping[str, Any], model: Mapping[str, Any], plan: Mapping[str, Any]) -> Manifest:
    """The manifest without its id: ``stack`` {id, name, engine}, ``model`` {path, source, digest, name} and the plan
    {profile, card, argv, env, pools} as the planner returned it."""
    return {
        "schema": SCHEMA,
        "stack": {key: stack[key] for key in ("id", "name", "engine")},
        "model": dict(model),
        "plan": {key: plan[key] for key in ("profile", "card", "argv", "env", "pools")},
    }


def release_id(content: Manifest, files: Mapping[str, str]) -> str:
    """12 hex digits over the manifest and the text of every file of the release."""
    body = {key: value for key, value in content.items() if key != "id"}
    return hashlib.sha256(canonical([body, dict(files)]).encode()).hexdigest()[:12]


def load(directory: Path) -> Manifest:
    """Read and prove a release. Raises ReleaseError when it is missing or its content does not give its name."""
    name = directory.name
    try:
        found: Manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        files = {
            entry.name: entry.read_text(encoding="utf-8")
            for entry in sorted(directory.iterdir())
            if entry.name != "manifest.json"
        }
    except FileNotFoundError as error:
        raise ReleaseError(
            f"release {name}: {error.filename} is missing; deploy again with playbooks/site.yml"
        ) from error
    except (OSError, ValueError) as error:
        raise ReleaseError(f"release {name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ReleaseError(f"release {name} cannot be read: its manifest is no JSON object")
    if found.get("schema") != SCHEMA:
        raise ReleaseError(f"release {name} has schema {found.get('schema')!r}, this version reads {SCHEMA}")
    actual = release_id(found, files)
    if not name == actual == found.get("id"):
        raise ReleaseError(
            f"release {name} was altered on disk: its content now gives {actual}. A release is never edited; "
            f"remove {directory} and deploy again, or roll back to another one"
        )
    return found


def write(root: Path, content: Manifest, files: Mapping[str, str], dry_run: bool = False) -> bool:
    """Write a release below ``root`` in one step and return whether it was new.

    One that is there already is proven, never overwritten.
    """
    name = release_id(content, files)
    directory = root / name
    if directory.exists():
        load(directory)
        return False
    if dry_run:
        return True
    root.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
    try:
        texts = {**files, "manifest.json": json.dumps({**content, "id": name}, indent=1, sort_keys=True) + "\n"}
        for file_name, text in texts.items():
            target = unfinished / file_name
            with target.open("w", encoding="utf-8") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
            target.chmod(0o755 if file_name in EXECUTABLE else 0o644)
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ReleaseError(f"release {name} could not be written to {root}: {error}") from error
    return True


def remove_unfinished(root: Path) -> list[str]:
    """Remove what an interrupted ``write`` left below ``root`` and return its names."""
    left = [entry for entry in root.glob(".*.*") if entry.is_dir()] if root.is_dir() else []
    for entry in left:
        shutil.rmtree(entry)
    return [entry.name for entry in left]


def read_all(root: Path) -> dict[str, dict[str, Any]]:
    """Every release below ``root``: id -> {"manifest": ... or None, "error": "" or why it cannot be used}."""
    found: dict[str, dict[str, Any]] = {}
    for directory in sorted(root.iterdir()) if root.is_dir() else []:
        if directory.name.startswith(".") or not directory.is_dir():
            continue
        try:
            found[directory.name] = {"manifest": load(directory), "error": ""}
        except ReleaseError as error:
            found[directory.name] = {"manifest": None, "error": str(error)}
    return found


def linked(server_directory: Path) -> str | None:
    """The id of the release that a server's link names (also when it points nowhere), or None without a link."""
    link = server_directory / "release"
    return link.readlink().name if link.is_symlink() else None
