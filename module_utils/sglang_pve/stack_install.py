"""Install a stack: offline, in place, once, whatever was killed before."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .elf import ElfError, judge
from .findings import errors
from .lockfile import lock_sha256, normal_name
from .stack import (
    LANES,
    MARKER,
    SCHEMA,
    Stack,
    StackError,
    check_disk,
    check_host,
    free_gib,
    installed,
    look_in,
    python_version,
)
from .wheelhouse import Survey

ENGINE_PACKAGE = "sglang"
IMPORT_TIMEOUT_S = 600
# Longer than the slowest install seen; whoever waits gets the other one's result.
BUSY_WAIT_S = 900.0
# Prints one JSON line last; what the imports print comes before it. Each import counts alone, so the culprit is named.
PROBE = """
import importlib, json, sys
from importlib.metadata import distributions
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as exc:
        print("\\n" + json.dumps({"failed": name, "error": f"{type(exc).__name__}: {exc}"}))
        sys.exit(0)
print("\\n" + json.dumps({"packages": {d.metadata["Name"]: d.version for d in distributions()}}))
"""


def install(stack: Stack, wheelhouse: Path, root: Path, python: str, wait_s: float = BUSY_WAIT_S) -> bool:
    """Install the stack from the wheelhouse, offline; return whether anything changed.

    Whatever can be known is checked before the first file is written. An unfinished build of the same stack (killed,
    full disk) is removed and built again; a stack with a marker is never touched. Raises StackError and LockError.
    """
    if installed(stack, root):
        return False
    wheelhouse, root = wheelhouse.absolute(), root.absolute()
    with _os_errors(stack, root):
        version = check_host(stack, python)
        look = look_in(stack, wheelhouse, version)
        if look.lacking:
            raise StackError(
                "wheel-lacking",
                f"wheelhouse {wheelhouse} lacks {len(look.lacking)} of {len(stack.wanted)} wheels of {stack.name}: "
                + look.lacking_text(),
                "a file with a SHA-256 of the lock for each",
                "Fill the wheelhouse again from the lock; nothing was installed.",
            )
        with _umask(0o022), _only_one(root, wait_s) as lock_fd:
            if installed(stack, root):
                return False
            target = root / stack.id
            if target.exists():
                shutil.rmtree(target)
            check_disk(stack, root)
            try:
                _build(stack, wheelhouse, look, target, python, lock_fd)
            except BaseException:
                # Half a stack helps nobody, and may be what fills the disk.
                shutil.rmtree(target, ignore_errors=True)
                raise
    return True


def _build(stack: Stack, wheelhouse: Path, look: Survey, target: Path, python: str, lock_fd: int) -> None:
    uv = _unpack_uv(stack, look.found[stack.uv.requirement].path, target.parent.parent / "tools")
    scratch = target / "scratch"
    scratch.mkdir(parents=True)
    lock = target / "lock.txt"
    lock.write_text(stack.lock)
    venv = target / "venv"
    offline = ["--offline", "--no-config", "--cache-dir", str(scratch / "cache")]
    _run_uv([str(uv), "venv", "--quiet", "--no-project", *offline, "--python", python, str(venv)], scratch, lock_fd)
    # Hard links from a cache that is removed afterwards leave the same files as copies, at half the space and writes.
    sync = [str(uv), "pip", "sync", "--quiet", "--python", str(venv / "bin/python"), *offline, "--no-index"]
    sync += ["--find-links", str(wheelhouse), "--require-hashes", "--only-binary", ":all:"]
    sync += ["--compile-bytecode", "--link-mode", "hardlink", str(lock)]
    _run_uv(sync, scratch, lock_fd)
    _judge_libraries(stack, venv)
    packages = _probe(stack, venv, scratch, lock_fd)
    shutil.rmtree(scratch)
    # uv's own lock file may be written by everybody; nothing in a stack may.
    (venv / ".lock").unlink(missing_ok=True)
    _write_last(
        target / MARKER,
        {
            "schema": SCHEMA,
            "id": stack.id,
            "name": stack.name,
            "engine": stack.engine,
            "python": python_version(str(venv / "bin/python")),
            "packages": packages,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "lock_sha256": lock_sha256(stack.lock),
        },
    )


def _unpack_uv(stack: Stack, wheel: Path, tools: Path) -> Path:
    version = stack.uv.version
    uv = tools / f"uv-{version}" / "uv"
    uv.parent.mkdir(parents=True, exist_ok=True)
    fresh = uv.with_name(".uv")
    try:
        with zipfile.ZipFile(wheel) as archive, fresh.open("wb") as copy:
            copy.write(archive.read(f"uv-{version}.data/scripts/uv"))
        fresh.chmod(0o755)
        fresh.replace(uv)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise StackError(
            "uv-wheel", f"{wheel}: {exc}", "a wheel with the program uv in it", "Correct `uv` in its stack.yml."
        ) from exc
    finally:
        fresh.unlink(missing_ok=True)
    return uv


def _run_uv(argv: Sequence[str], scratch: Path, lock_fd: int) -> None:
    done = _run(argv, scratch, lock_fd)
    if done.returncode == 0:
        return
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise StackError(
        "uv-failed",
        f"`uv {' '.join(argv[1:3])}` ended with {done.returncode}: {' '.join(done.stderr.split())[-600:]}",
        "an offline install from the wheelhouse",
        "Read uv's words; the unfinished stack was removed.",
    )


def _run(
    argv: Sequence[str], scratch: Path, lock_fd: int, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    # A clean environment: no index, proxy or cache of the caller's, and no file outside the stack.
    # The child keeps the lock too: if this process is killed, nobody builds in the directory that it still writes to.
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C.UTF-8",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
    }
    return subprocess.run(
        argv,
        cwd=scratch,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        pass_fds=(lock_fd,),
        timeout=timeout_s,
        check=False,
    )


def _judge_libraries(stack: Stack, venv: Path) -> None:
    """Refuse libraries of another CUDA than the lane's before anything imports them."""
    if not stack.lane:
        return
    try:
        found = errors(
            finding
            for packages in venv.glob("lib/python3*/site-packages")
            for finding in judge(packages, LANES[stack.lane], stack.cuda_exceptions)
        )
    except ElfError as exc:
        cure = "Look at the wheel that brings it; the unfinished stack was removed."
        raise StackError("library-damaged", str(exc), "libraries that can be read", cure) from exc
    if found:
        first, more = found[0], f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise StackError(first.id, f"{first.where}{more} {first.seen}", first.expected, first.cure)


def _probe(stack: Stack, venv: Path, scratch: Path, lock_fd: int) -> dict[str, str]:
    """Import what must import, check the engine's version, and return the installed packages' versions."""
    argv = [str(venv / "bin/python"), "-I", "-c", PROBE, *stack.imports]
    expected = f"{', '.join(stack.imports) or 'Python'} to import in the new stack"
    cure = "Resolve the lock again, or correct `imports` in its stack.yml; the unfinished stack was removed."
    try:
        done = _run(argv, scratch, lock_fd, IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired as exc:
        raise StackError("stack-import", f"no end of the imports within {IMPORT_TIMEOUT_S} s", expected, cure) from exc
    try:
        result = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        seen = f"the imports ended with {done.returncode}: {' '.join(done.stderr.split())[-600:]}"
        raise StackError("stack-import", seen, expected, cure) from None
    if "failed" in result:
        raise StackError("stack-import", f"import {result['failed']}: {result['error'][:600]}", expected, cure)
    packages = {normal_name(name): version for name, version in sorted(result["packages"].items())}
    if packages.get(ENGINE_PACKAGE) != stack.engine:
        raise StackError(
            "stack-engine",
            f"{ENGINE_PACKAGE} {packages.get(ENGINE_PACKAGE, 'not installed')} in the new stack",
            f"{stack.engine}, as stack {stack.name} says",
            "Correct `engine` in its stack.yml, or resolve the lock again; the unfinished stack was removed.",
        )
    return packages


def _write_last(path: Path, state: Mapping[str, Any]) -> None:
    fresh = path.with_name(f".{path.name}")
    with fresh.open("w") as stream:
        json.dump(state, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


@contextlib.contextmanager
def _only_one(root: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock of all installs under ``root``; yield its file descriptor."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / ".lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise StackError(
                        "stack-busy",
                        f"another install has held {path} for {wait_s:g} s",
                        "one install at a time",
                        f"Wait for it, or see who holds it: `fuser -v {path}`.",
                    ) from None
                time.sleep(0.2)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    """The service user must be able to read a stack, whatever the umask of whoever installs it."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _os_errors(stack: Stack, root: Path) -> Iterator[None]:
    """Turn what the file system refuses into a finding."""
    try:
        yield
    except OSError as exc:
        where = exc.filename or root
        if exc.errno == errno.ENOSPC:
            raise StackError(
                "disk-full",
                f"the disk of {root} was full in the middle of the install; {free_gib(root):.1f} GiB are free now",
                f"{stack.disk_gib:g} GiB for stack {stack.name}",
                "Free space in the container, or enlarge its disk; the unfinished stack was removed.",
            ) from exc
        raise StackError(
            "stack-unwritable",
            f"{where}: {exc.strerror}",
            f"a directory for stacks that this user may write: {root}",
            "Check the mount and its owner in the container.",
        ) from exc
