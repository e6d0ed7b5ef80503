# SPDX-License-Identifier: GPL-3.0-or-later
"""What action plugins share, on the controller alone: data of the project that several read, and how they answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display
from sglang_pve import journal
from sglang_pve.flags import FlagTable

PROJECT = Path(__file__).resolve().parent.parent
FLAGS = PROJECT / "stacks" / "flags"


def flag_table(engine: str, directory: Path = FLAGS) -> FlagTable:
    """An engine's table with the options that it renamed. Raises FlagTableError."""
    renames = yaml.safe_load((FLAGS / "renames.yml").read_text(encoding="utf-8"))
    return FlagTable.read(directory / f"sglang-{engine}.tsv", engine, renames)


def signatures() -> Mapping[str, Any]:
    """What failures look like. Raises journal.SignatureError."""
    return journal.check(yaml.safe_load((PROJECT / "signatures/sglang.yml").read_text(encoding="utf-8")))


def publish(answer: Mapping[str, Any], texts: Iterable[str], target: str | None) -> None:
    """Print ``texts``, or ``answer`` as JSON in their place where ``target`` is -; any other target is a file that gets
    the JSON beside them."""
    content = json.dumps(answer, indent=1)
    for text in [content] if target == "-" else texts:
        Display().display(text)
    if target not in (None, "", "-"):
        write(Path(target), content + "\n", 0o644)


def write(path: Path, text: str, mode: int) -> None:
    """Write a file, with ``mode`` where it is new."""
    try:
        path.touch(mode=mode, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AnsibleActionFail(f"{path} cannot be written: {error.strerror}") from error
