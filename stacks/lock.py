"""Resolve a stack's lock: the same inputs give the same file, on every machine and from every mirror.

Reads stacks/NAME/: requirements.in, overrides.txt where there is one, and of stack.yml the date (`resolved`), the
Pythons, `glibc_min` and `elsewhere`. Writes lock.txt and says what changed. One lock serves every Python of the stack:
it is resolved for the oldest and must be what the others resolve to as well.

Wheels that PyPI has not (`elsewhere`) are resolved from what stack.yml says of them, so their indexes are not asked;
their published hashes go into the lock, and the wheelhouse compares each with the real file.

usage: lock.py NAME...
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

STACKS = Path(__file__).resolve().parent
sys.path.insert(0, str(STACKS.parent / "module_utils"))

from sglang_pve.lockfile import LockError, parse_lock
from sglang_pve.stack import StackError, check_meta
from sglang_pve.wheelhouse import parse_wheel, sha256_file

UV = ["uv", "pip", "compile", "--quiet", "--no-config", "--no-python-downloads", "--only-binary", ":all:"]
UV += ["--generate-hashes", "--no-header", "--no-annotate"]


def stand_in(directory: Path, entry: dict[str, Any]) -> str:
    """Write a wheel that holds nothing but the metadata that a resolver reads; its SHA-256."""
    wheel = parse_wheel(entry["file"])
    if wheel is None:
        sys.exit(f"elsewhere: {entry['file']!r} is no wheel's file name; correct stack.yml")
    name, version = entry["file"].split("-")[:2]
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in entry["requires"]]
    with zipfile.ZipFile(directory / entry["file"], "w") as archive:
        info = f"{name}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: false\n")
        archive.writestr(f"{info}/RECORD", "")
    return sha256_file(directory / entry["file"])


def compile_lock(stack: Path, meta: dict[str, Any], python: str, wheels: Path, *options: str) -> str:
    argv = [
        *UV,
        "--python-version",
        python,
        "--python-platform",
        f"x86_64-manylinux_{meta['glibc_min'].replace('.', '_')}",
    ]
    argv += ["--exclude-newer", meta["resolved"], *options, str(stack / "requirements.in")]
    if (stack / "overrides.txt").exists():
        argv += ["--override", str(stack / "overrides.txt")]
    if meta.get("elsewhere"):
        argv += ["--find-links", str(wheels)]
    # uv would take an existing output file for a wish; it is not given one.
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{stack.name}, Python {python}: uv cannot resolve requirements.in\n{done.stderr.strip()}")
    return done.stdout


def resolve(stack: Path) -> str:
    meta = check_meta(yaml.safe_load((stack / "stack.yml").read_text()), str(stack / "stack.yml"))
    lacking = {"resolved", "glibc_min"} - meta.keys()
    if lacking:
        sys.exit(f"{stack / 'stack.yml'} has no {' and no '.join(sorted(lacking))}; a lock is resolved for both")
    oldest, *others = sorted(meta["python"], key=lambda python: int(python.split(".")[1]))
    with tempfile.TemporaryDirectory() as work:
        published = {stand_in(Path(work), entry): entry for entry in meta.get("elsewhere", [])}
        lock = compile_lock(stack, meta, oldest, Path(work))
        pins = Path(work) / "pins.txt"
        pins.write_text(lock)
        for python in others:
            other = compile_lock(stack, meta, python, Path(work), "--constraint", str(pins))
            if other != lock:
                names = "\n".join(changes(lock, other))
                sys.exit(f"{stack.name}: Python {python} needs another lock than {oldest}:\n{names}")
    for digest, entry in published.items():
        if digest not in lock:
            sys.exit(f"{entry['file']} is not what the lock resolves to; pin its version in requirements.in")
        lock = lock.replace(digest, entry["sha256"])
    return lock


def changes(old: str, new: str) -> list[str]:
    """What differs between two locks, one package a line."""
    before, after = ({locked.name: locked for locked in parse_lock(text)} if text else {} for text in (old, new))
    lines = []
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a != b:
            versions = [locked.version if locked else "none" for locked in (a, b)]
            lines.append(f"  {name}: {' -> '.join(versions) if versions[0] != versions[1] else 'other files'}")
    return lines


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip().splitlines()[-1])
    for name in sys.argv[1:]:
        stack = STACKS / name
        target = stack / "lock.txt"
        try:
            new = resolve(stack)
            old = target.read_text() if target.exists() else ""
            differing = changes(old, new)
        except OSError as exc:
            sys.exit(f"stack {name!r}: {exc.filename}: {exc.strerror}; expected a directory in {STACKS}")
        except (StackError, LockError) as exc:
            sys.exit(str(exc))
        if new == old:
            print(f"{target.relative_to(STACKS.parent)}: unchanged, {len(parse_lock(new))} packages")
            continue
        fresh = target.with_name(".lock.txt")
        fresh.write_text(new)
        fresh.replace(target)
        print("\n".join([f"{target.relative_to(STACKS.parent)}: written, {len(parse_lock(new))} packages", *differing]))


if __name__ == "__main__":
    main()
