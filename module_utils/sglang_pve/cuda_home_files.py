"""The overlay of cuda_home.py on disk: made, changed and removed, each link by its name in the manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import command
from .command import HungCommandError, MissingCommandError, Runner
from .cuda_home import Overlay
from .findings import Finding
from .host_compiler import Compiler

SCHEMA = 1
MANIFEST = "manifest.json"
STUB = "lib64/stubs/libcuda.so"
COMPILE_TIMEOUT_S = 60.0


class CudaHomeError(Exception):
    """An overlay that cannot be made; ``finding`` says why and what to do."""

    def __init__(self, id: str, seen: str, expected: str, cure: str) -> None:
        self.finding = Finding(id, "error", seen, expected, cure)
        super().__init__(self.finding.sentence())


def links_of(overlay: Overlay, compiler: Compiler) -> dict[str, str]:
    """Every link of the overlay, those to the host compiler too."""
    host = {"cc": compiler.cc, "gcc": compiler.cc, "c++": compiler.cxx, "g++": compiler.cxx}
    return {**overlay.links, **{f"host/{name}": target for name, target in host.items()}}


def read_manifest(home: Path) -> dict[str, Any] | None:
    """What was made, or None. Raises CudaHomeError where the manifest cannot be read as one."""
    try:
        manifest = json.loads((home / MANIFEST).read_text())
        if manifest["schema"] == SCHEMA and isinstance(manifest["links"], dict) and isinstance(manifest["files"], dict):
            return dict(manifest)
        seen = f"{home / MANIFEST} has schema {manifest['schema']!r}"
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as exc:
        seen = f"{home / MANIFEST}: {exc!r}"
    cure = f"Look at it, then remove {home} yourself and run again."
    raise CudaHomeError("cuda-home-manifest", seen, f"a manifest of schema {SCHEMA}", cure)


def listing(manifest: Mapping[str, Any] | None) -> str:
    """The manifest's links and files, a line each, for a diff."""
    if manifest is None:
        return ""
    compiler = manifest["compiler"]
    lines = [f"nvcc {manifest['nvcc']}, CCCL {manifest['cccl']}, {compiler['cxx']} {compiler['version']}"]
    lines += [f"{path} -> {target}" for path, target in sorted(manifest["links"].items())]
    lines += [f"{path} (made here)" for path in sorted(manifest["files"])]
    return "\n".join(lines) + "\n"


def manifest_of(overlay: Overlay, compiler: Compiler, why: str) -> dict[str, Any]:
    """The manifest that ``write`` leaves. ``files``: path -> SHA-256 of the header that it is made from."""
    header = overlay.target("include/cuda.h")
    made = {} if STUB in overlay.links or header is None else {STUB: hashlib.sha256(header.read_bytes()).hexdigest()}
    return {
        "schema": SCHEMA,
        "nvcc": overlay.nvcc,
        "cccl": overlay.cccl,
        "compiler": {**asdict(compiler), "why": why},
        "links": links_of(overlay, compiler),
        "files": made,
    }


def is_made(home: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether exactly this is there."""
    return (
        read_manifest(home) == manifest
        and all(_leads_to(home / path, target) for path, target in manifest["links"].items())
        and all((home / path).is_file() for path in manifest["files"])
    )


def write(home: Path, manifest: Mapping[str, Any], header: Path, run: Runner = command.run) -> None:
    """Make the overlay what ``manifest`` says; ``header`` is the cuda.h that a stub is made from.

    What is in a place and was not made here is left, and nothing is changed then. Killed in the middle, it can be run
    again: a link is in the manifest for as long as it is there. Raises CudaHomeError and OSError.
    """
    before = read_manifest(home) or {"links": {}, "files": {}}
    for path in (*manifest["links"], *manifest["files"]):
        _require_ours(home, path, before)
    _take_away(home, before, manifest)
    home.mkdir(exist_ok=True)
    _write_whole(home / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for path, target in manifest["links"].items():
        if not _leads_to(home / path, target):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).symlink_to(target)
    for path in manifest["files"]:
        if not (home / path).is_file():
            _make_stub(home / path, header, manifest["compiler"]["cc"], run)


def remove(home: Path, dry_run: bool = False) -> bool:
    """Remove exactly what the manifest names, and the directories that are empty then; return whether it was there."""
    manifest = read_manifest(home)
    if manifest is not None and not dry_run:
        _take_away(home, manifest, {"links": {}, "files": {}})
        (home / MANIFEST).unlink()
        with contextlib.suppress(OSError):
            home.rmdir()
    return manifest is not None


def _leads_to(path: Path, target: str) -> bool:
    return path.is_symlink() and str(path.readlink()) == target


def _require_ours(home: Path, path: str, before: Mapping[str, Any]) -> None:
    place = home / path
    for parent in [place, *place.parents]:
        if parent == home:
            return
        name = str(parent.relative_to(home))
        ours = name in before["links"] and _leads_to(parent, before["links"][name])
        made = name in before["files"] and parent.is_file()
        if os.path.lexists(parent) and not (ours or made or (parent != place and _is_directory(parent))):
            raise CudaHomeError(
                "cuda-home-foreign",
                f"{parent} is there and was not made by this module",
                "a place of its own for every link",
                f"Move it away, or remove {home} yourself; nothing was changed.",
            )


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _take_away(home: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for path, target in before["links"].items():
        if after["links"].get(path) != target and _leads_to(home / path, target):
            (home / path).unlink()
    for path, made_from in before["files"].items():
        if after["files"].get(path) != made_from and (home / path).is_file():
            (home / path).unlink()
    folders = {folder for path in (*before["links"], *before["files"]) for folder in (home / path).parents}
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        # Not empty: something of it stays, or belongs to somebody else.
        with contextlib.suppress(OSError):
            if home in folder.parents:
                folder.rmdir()


def _make_stub(path: Path, header: Path, cc: str, run: Runner) -> None:
    """Make the library that kernels are linked against: the driver's name, and every function that cuda.h declares."""
    names = sorted(set(re.findall(r"\bcu[A-Z]\w*", header.read_text())))
    code = "".join(f".globl {name}\n.type {name}, @function\n{name}:\n" for name in names) + "ud2\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        source, made = Path(scratch, "stub.s"), Path(scratch, path.name)
        source.write_text(f'.text\n{code}.section .note.GNU-stack,"",@progbits\n')
        argv = [cc, "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-o", str(made), str(source)]
        try:
            output = run(argv, COMPILE_TIMEOUT_S)
        except (MissingCommandError, HungCommandError) as exc:
            raise CudaHomeError("cuda-stub", str(exc), "a compiler that links a library", f"Repair {cc}.") from exc
        if output.rc != 0:
            seen = f"{cc} ended with {output.rc}: {' '.join(output.err.split())[-300:]}"
            raise CudaHomeError("cuda-stub", seen, "a linked libcuda.so", f"Repair {cc} and its binutils.")
        made.replace(path)


def _write_whole(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(text)
    fresh.replace(path)
