"""Copies checkpoints from durable storage into memory (or another disk), in one pass that hashes as it copies.

``python3 -m sglang_pve.staging --config /etc/sglang/models.json`` runs before every start of a server, so at every boot
too. A run that was killed is taken up where it stopped; a copy that is whole costs a look at its files' sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from . import checkpoint, room
from .copying import Progress, Say, copy_all
from .findings import Finding
from .hold import RefusedError, held
from .staged import Copied, File, StagingError, Target, part_of

SCHEMA = 1
PAGE = 4096


@dataclass(frozen=True)
class Model:
    source: Path
    target: Path


@dataclass(frozen=True)
class Plan:
    """What is to be done for one model: files to copy, files that stay, and our own files that have to go."""

    model: Model
    target: Target
    digest: str
    copy: list[File]
    keep: list[Copied]
    drop: list[str]

    @property
    def need(self) -> room.Need:
        places = [self.target.place / name for name in self.drop]
        places += [part_of(place) for place in places]
        return room.Need(
            copy=sum(-(-file.bytes // PAGE) * PAGE for file in self.copy),
            staged=sum(file.bytes for file in self.keep),
            stale=sum(place.lstat().st_blocks * 512 for place in places if place.exists()),
        )


def stage(models: Sequence[Model], say: Say = print, dry_run: bool = False) -> list[Model]:
    """Bring every target to what its source holds; returns the models whose target was not so before.

    Nothing is copied before all of them are known to fit. Raises RefusedError; with ``dry_run`` for the same reasons.
    """
    _check_places(models)
    with contextlib.ExitStack() as holds:
        if not dry_run:
            for root in sorted({model.target.parent for model in models}):
                holds.enter_context(held(root, lambda holder: say(f"waiting for {holder}, which stages here too")))
        plans = [plan for model in models for plan in [_plan(model, say)] if plan]
        _check_room(plans)
        if not dry_run:
            for plan in plans:
                _carry_out(plan, say)
    return [plan.model for plan in plans]


def unwhole(target: Path) -> list[str]:
    """Why ``target`` is not the whole copy that its marker says; empty when it is. The source is not looked at."""
    copy = Target(target)
    marker = copy.marker()
    if marker is None:
        return [f"{target}: not staged, or staging did not end"]
    return [
        f"{target / file.path}: {copy.size(file.path)} bytes, expected {file.bytes}"
        for file in marker["files"]
        if copy.size(file.path) != file.bytes
    ]


def verify(target: Path, source: Path) -> list[str]:
    """Why ``target`` is not a whole copy of ``source``, without reading weights; empty when it is one."""
    report = checkpoint.inspect(str(source))
    if not report["exists"]:
        return [f"{source} cannot be listed, so {target} cannot be compared with it"]
    return _differences(Target(target), source, report["digest"])


def unstage(target: Path, say: Say = print) -> list[str]:
    """Remove what staging made in ``target`` and nothing else; returns the names of foreign files that stay."""
    copy = Target(target)
    if not copy.place.exists():
        return []
    with held(target.parent, lambda holder: say(f"{target}: waiting for {holder}")):
        copy.check()
        return copy.clear()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: every model is staged (or, with the options, intact or removed); 1: messages say why not."""
    parser = argparse.ArgumentParser(prog="sglang_pve.staging", description="Stage checkpoints into memory.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--config", type=Path, help='{"schema": 1, "models": [{"source", "target"}]}')
    which.add_argument("--whole", type=Path, metavar="TARGET", help="change nothing; fail when this copy is not whole")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a model is not staged whole")
    parser.add_argument("--remove", action="store_true", help="remove the staged copies, foreign files stay")
    options = parser.parse_args(argv)
    try:
        if options.whole:
            return _report(unwhole(options.whole))
        models = _read_config(options.config)
        if options.check:
            return _report([line for model in models for line in verify(model.target, model.source)])
        if options.remove:
            return _report(
                [f"{m.target / name}: not ours, it stays" for m in models for name in unstage(m.target, _say)]
            )
    except (RefusedError, OSError) as error:
        _print(f"error: {error}", sys.stderr)
        return 1
    return _stage_each(models)


def _stage_each(models: Sequence[Model]) -> int:
    """Stage those that are not whole; one that cannot be staged does not keep the others from being served."""
    todo = [model for model in models if unwhole(model.target)]
    failed = 0
    for model in todo:
        try:
            stage([model], _say)
        except (RefusedError, OSError) as error:
            _print(f"error: {error}", sys.stderr)
            failed += 1
    _say(f"models={len(models)} staged={len(todo) - failed} unchanged={len(models) - len(todo)} failed={failed}")
    return 1 if failed else 0


def _print(line: str, stream: TextIO) -> None:
    # A file name need not be text.
    print(line.encode("utf-8", "backslashreplace").decode(), file=stream, flush=True)


def _say(line: str) -> None:
    _print(line, sys.stdout)


def _report(problems: list[str]) -> int:
    for problem in problems:
        _say(problem)
    return 1 if problems else 0


def _read_config(path: Path) -> list[Model]:
    expected = (
        'expected {"schema": 1, "models": [{"source": "/...", "target": "/..."}]}. Run site.yml to write it again'
    )
    try:
        config = json.loads(path.read_bytes())
        models = [Model(Path(entry["source"]), Path(entry["target"])) for entry in config["models"]]
        schema = config["schema"]
    except (ValueError, TypeError, KeyError) as error:
        raise StagingError(f"{path} cannot be used ({error!r}); {expected}") from error
    if schema != SCHEMA:
        raise StagingError(f"{path} has schema {schema!r}; {expected}")
    if not all(place.is_absolute() for model in models for place in (model.source, model.target)):
        raise StagingError(f"{path} has a relative path; {expected}")
    return models


def _check_places(models: Sequence[Model]) -> None:
    for number, model in enumerate(models):
        target = model.target.resolve()
        others = [*(m.source for m in models), *(m.target for m in models[:number])]
        for other in (place.resolve() for place in others):
            if other == target or other in target.parents or target in other.parents:
                raise StagingError(f"target {target} and {other} lie in each other. Name directories apart")


def _plan(model: Model, say: Say) -> Plan | None:
    """What is to be done; None when the target is whole already."""
    report = checkpoint.inspect(str(model.source))
    for finding in report["findings"]:
        if finding["level"] == "error":
            raise StagingError(f"{model.source} is not a whole checkpoint: {Finding(**finding).sentence()}")
    target = Target(model.target)
    target.check()
    if not _differences(target, model.source, report["digest"]):
        say(f"{model.target}: staged already")
        return None
    owned = target.owned()
    foreign = target.foreign(owned)
    if foreign:
        raise StagingError(
            f"{target.place} holds files that staging did not make: {', '.join(foreign[:5])}. "
            "They are left as they are; move them away or name another target"
        )
    copy, keep = [], []
    for file in _files(model.source):
        done = owned.get(file.path)
        if done and done.is_copy_of(file) and target.size(file.path) == file.bytes:
            keep.append(done)
        else:
            copy.append(file)
    return Plan(model, target, report["digest"], copy, keep, sorted(owned.keys() - {file.path for file in keep}))


def _differences(target: Target, source: Path, digest: str) -> list[str]:
    marker = target.marker()
    if marker is None:
        return [f"{target.path}: never staged, or staging did not end"]
    if marker["digest"] != digest:
        return [f"{target.path}: {source} is another checkpoint than the one that was staged"]
    staged = {file.path: file for file in marker["files"]}
    wanted = {file.path: file for file in _files(source)}
    problems = [f"{target.path / path}: new in {source}" for path in sorted(wanted.keys() - staged.keys())]
    for path, file in staged.items():
        if path not in wanted or not file.is_copy_of(wanted[path]):
            problems.append(f"{target.path / path}: changed in or gone from {source}")
        elif target.size(path) != file.bytes:
            problems.append(f"{target.path / path}: {target.size(path)} bytes, expected {file.bytes}")
    return problems


def _files(source: Path) -> list[File]:
    """Every regular file, links followed, but for hidden names: .git and .cache may hold the weights a second time."""
    found = []
    for directory, inner, names in os.walk(source, onerror=_raise):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for path in (Path(directory) / name for name in sorted([*names, *inner])):
            if path.is_symlink() and path.is_dir():
                raise StagingError(f"{path} is a link to a directory, expected files. Put a directory in its place")
            # A link to nothing is the checkpoint report's business: it is an error where the engine needs the file.
            if path.is_file() and not path.name.startswith("."):
                info = path.stat()
                found.append(File(str(path.relative_to(source)), info.st_size, info.st_mtime_ns))
    return found


def _raise(error: OSError) -> None:
    raise StagingError(f"{error.filename} cannot be listed ({error.strerror}). Let root of the container read it")


def _check_room(plans: Iterable[Plan]) -> None:
    """Raise StagingError unless all copies together fit their file systems, and those in memory the memory."""
    places: dict[int, list[Plan]] = {}
    for plan in plans:
        places.setdefault(room.device(plan.model.target), []).append(plan)
    in_memory = [plan for group in places.values() if room.in_memory(group[0].model.target) for plan in group]
    short = [_shortage(group, room.free_bytes(group[0].model.target), None) for group in places.values()]
    if in_memory:
        short.append(_shortage(in_memory, None, room.read_memory()))
    for sentence in filter(None, short):
        raise StagingError(f"{sentence}. Free some, give the container more, or stage fewer models; nothing was copied")


def _shortage(plans: list[Plan], free: int | None, memory: room.Memory | None) -> str | None:
    need = sum((plan.need for plan in plans), room.Need(0))
    return room.shortage(", ".join(str(plan.model.target) for plan in plans), need, free, memory)


def _carry_out(plan: Plan, say: Say) -> None:
    source, target = plan.model.source, plan.target
    progress = Progress(target.path, plan.copy, plan.keep, say)
    try:
        target.start(plan.keep, plan.drop)
        copied = copy_all(source, target, plan.copy, progress)
        if {checkpoint.inspect(str(place))["digest"] for place in (source, target.work)} != {plan.digest}:
            raise StagingError(f"{source} changed while it was copied. Run again when nothing writes to it")
        target.finish(source, plan.digest, [*plan.keep, *copied])
    except OSError as error:
        raise StagingError(
            f"copying {source} to {target.path} failed after {progress.copied} bytes: {error}. "
            "Mend that and run again; what was copied whole is kept"
        ) from error
    progress.end()


if __name__ == "__main__":
    sys.exit(main())
