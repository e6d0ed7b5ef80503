"""Fill a wheelhouse: every wheel that stacks need, and the installer's own, each with a SHA-256 of its lock.

Needs a network. Can be stopped at any time and run again: what is there and whole stays, an altered file is named and
fetched again. A file appears under its name only when it is whole.

usage: wheelhouse.py DIRECTORY PYTHONS STACK...   (PYTHONS: the containers', such as 3.11,3.12)
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

STACKS = Path(__file__).resolve().parent
sys.path[:0] = [str(STACKS.parent), str(STACKS.parent / "module_utils")]

from sglang_pve.lockfile import Locked, LockError
from sglang_pve.stack import StackError
from sglang_pve.wheelhouse import ALTERED, survey

from action_plugins.sglang_stack_info import as_stack, read_stack

MACHINE = "x86_64"
DOWNLOADS_AT_ONCE = 4
# The platforms that a glibc of 2.34 takes, newest first.
GLIBC_MINORS = (34, 31, 28, 27, 26, 25, 24, 18, 17, 12, 5)
PLATFORMS = [f"manylinux_2_{minor}_{MACHINE}" for minor in GLIBC_MINORS]
PLATFORMS += [f"manylinux{name}_{MACHINE}" for name in ("2014", "2010", "1")]


class Missing:
    """One locked package that the wheelhouse lacks for one Python, and where it is to be had."""

    def __init__(self, locked: Locked, python: str, elsewhere: list[dict[str, Any]]) -> None:
        self.locked, self.python = locked, python
        self.elsewhere = [entry for entry in elsewhere if entry["sha256"] in locked.hashes]

    def fetch(self, directory: Path) -> Path:
        """Download the wheel; its path in ``directory``. Raises RuntimeError with pip's last words."""
        with tempfile.TemporaryDirectory(prefix=".part-", dir=directory) as work:
            requirement = Path(work) / "wanted.txt"
            hashes = (f" --hash=sha256:{digest}" for digest in sorted(self.locked.hashes))
            requirement.write_text(self.locked.requirement + "".join(hashes) + "\n")
            argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            argv += ["--only-binary", ":all:", "--python-version", self.python, "--implementation", "cp"]
            argv += [word for platform in PLATFORMS for word in ("--platform", platform)]
            argv += [word for entry in self.elsewhere for word in ("--find-links", entry["page"])]
            argv += ["--dest", f"{work}/wheel", "--requirement", str(requirement)]
            # A lock leaves nothing for a machine's own constraints to say.
            env = {**os.environ, "PIP_CONSTRAINT": os.devnull}
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                raise RuntimeError(" ".join(errors) or done.stderr[-400:].strip())
            (wheel,) = Path(work, "wheel").iterdir()
            self.check(wheel)
            return wheel.replace(directory / wheel.name)

    def check(self, wheel: Path) -> None:
        """A wheel that PyPI has not must require what stack.yml says, from which the lock was resolved."""
        said = next((entry["requires"] for entry in self.elsewhere if entry["file"] == wheel.name), None)
        if said is None:
            return
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = email.message_from_bytes(archive.read(name))
        real = [plain(line) for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
        if sorted(real) != sorted(map(plain, said)):
            raise RuntimeError(f"it requires {sorted(real)}, stack.yml says {sorted(said)}; correct it and lock again")


def plain(requirement: str) -> str:
    """A requirement without marker, blanks and brackets around its version, its conditions sorted."""
    text = requirement.partition(";")[0].replace(" ", "").replace("(", "").replace(")", "")
    return ",".join(sorted(text.split(",")))


def missing(directory: Path, name: str, python: str) -> list[Missing]:
    """What the wheelhouse lacks of a stack; altered files are removed."""
    stack = read_stack(STACKS, name, python)
    wanted = {locked.requirement: locked for locked in as_stack(stack).wanted}
    look = survey(list(wanted.values()), directory, python, MACHINE)
    for lacking in look.lacking:
        if lacking.reason == ALTERED:
            print(f"{lacking.file}: altered or cut short, fetched again", flush=True)
            (directory / lacking.file).unlink()
    print(f"{name}, Python {python}: {len(look.found)} of {len(wanted)} wheels are there", flush=True)
    return [Missing(wanted[lacking.requirement], python, stack.get("elsewhere", [])) for lacking in look.lacking]


def fetch_all(todo: list[Missing], directory: Path) -> list[str]:
    """Download everything, a line for each; what failed."""
    failed = []
    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        jobs = {pool.submit(item.fetch, directory): item for item in todo}
        for number, job in enumerate(as_completed(jobs), 1):
            item = jobs[job]
            try:
                wheel = job.result()
                text = f"{wheel.name}  {wheel.stat().st_size / 1e6:,.1f} MB"
            except (RuntimeError, OSError) as exc:
                failed.append(f"{item.locked.requirement} for Python {item.python}: {exc}")
                text = f"{item.locked.requirement}: failed"
            print(f"[{number:>3}/{len(todo)}] {text}", flush=True)
    return failed


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit((__doc__ or "").strip().splitlines()[-1])
    directory, pythons, names = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(".part-*"):
        shutil.rmtree(left)
    failed: list[str] = []
    try:
        for name in names:
            for python in pythons:
                failed += fetch_all(missing(directory, name, python), directory)
    except (StackError, LockError) as exc:
        sys.exit(str(exc))
    size = sum(wheel.stat().st_size for wheel in directory.glob("*.whl")) / 1024**3
    if failed:
        sys.exit("\n".join([f"{len(failed)} wheels are still missing; run again to go on from here:", *failed]))
    print(f"{directory}: complete, {size:.1f} GiB")


if __name__ == "__main__":
    main()
