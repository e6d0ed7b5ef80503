"""What this project put into a container, and its removal: exactly that, and nothing else that lies beside it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import attach, host, staging
from .fleet import MODELS, discover, read_models
from .foreign import OUR_FILES, is_ours
from .hold import RefusedError
from .retention import named, size_of
from .server import Server, remove, systemctl
from .stack import MARKER

RELEASE_FILES = ("manifest.json", "run", "ready", "unit.conf")
STACK_ENTRIES = ("venv", "lock.txt", MARKER)


@dataclass(frozen=True)
class Places:
    """Where everything of ours lies. ``prefix`` is / except in tests; ``models`` are checkpoints that servers use, and
    ``attached`` says whether those among them that a head was attached in go too."""

    prefix: Path = Path("/")
    user: str = "sglang"
    wheelhouse: Path = Path("/opt/sglang/wheelhouse")
    models: Sequence[Path] = ()
    attached: bool = False

    def at(self, path: str) -> Path:
        return self.prefix / path.lstrip("/")

    @property
    def root(self) -> Path:
        return self.at("/opt/sglang")

    @property
    def systemd(self) -> Path:
        return self.at("/etc/systemd/system")

    @property
    def own_directories(self) -> list[Path]:
        """Directories that are ours as a whole: whatever else lies there is foreign and is named."""
        own = [self.root, *(self.at(path) for path in ("/var/lib/sglang", "/var/cache/sglang", "/etc/sglang"))]
        inside = self.root in self.wheelhouse.parents
        return own if inside or not self.wheelhouse.is_dir() else [*own, self.wheelhouse]


@dataclass
class Listing:
    """What is ours (path -> bytes, a tree as one path), what lies beside it, and what else is to be undone.

    ``attached``: directory with a head of ours -> whether it goes.
    """

    ours: dict[Path, int] = field(default_factory=dict)
    foreign: list[Path] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)
    staged: list[Path] = field(default_factory=list)
    attached: dict[Path, bool] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    account: str = ""

    @property
    def empty(self) -> bool:
        return not (
            self.ours or self.servers or self.staged or any(self.attached.values()) or self.units or self.account
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "ours": [{"path": str(path), "bytes": size} for path, size in sorted(self.ours.items())],
            "foreign": [str(path) for path in self.foreign],
            "servers": [f"gpu{index}" for index in self.servers],
            "staged": [str(path) for path in self.staged],
            "attached": [
                {"path": str(path), "lost_sources": attach.lost_sources(path), "goes": goes}
                for path, goes in self.attached.items()
            ],
            "units": self.units,
            "account": self.account,
        }


def look(places: Places) -> Listing:
    """List it all. Reads only. A mount below one of our directories and what is on it are foreign."""
    found = Listing(servers=discover(places.root, places.systemd))
    mounts = {
        Path(entry["mount"]) for entry in host.parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="replace"))
    }
    for path in _ours(places, found.servers):
        if _is_there(path) and not any(mount == path or path in mount.parents for mount in mounts):
            found.ours[path] = size_of(path)
    staged = read_models(places.at(str(MODELS)))
    found.staged = [Path(model["target"]) for model in staged if Path(model["target"]).is_dir()]
    sources = {*places.models, *(Path(model["source"]) for model in staged)}
    found.attached = {path: places.attached for path in sorted(sources) if attach.is_attached(path)}
    found.units = [name for name in OUR_FILES if "@" not in name and places.systemd / name in found.ours]
    for directory in places.own_directories:
        found.foreign += _strangers(directory, found.ours.keys(), mounts)
    found.account = _account(places)
    return found


def carry_out(places: Places, listing: Listing) -> list[str]:
    """Stop our servers, remove what was listed, then directories of ours that are empty; return what stays, by name.

    Each step can be done again after an interruption; what names the rest (the staged copies' list) goes after it.
    """
    stay = [str(path) for path in listing.foreign]
    for index in listing.servers:
        remove(Server(index, places.root, places.systemd))
    if listing.units:
        systemctl("disable", "--now", "--quiet", *listing.units)
    for target in listing.staged:
        stay += [f"{target / name}" for name in staging.unstage(target, say=lambda line: None)]
    for path in (path for path, goes in listing.attached.items() if goes):
        try:
            stay += [f"{path / name}" for name in attach.detach(path, say=lambda line: None)[1]]
        except (RefusedError, OSError) as error:
            # Checkpoints may lie on storage that this container can only read: all else goes nevertheless.
            stay.append(f"{path}: {error}")
    for path in sorted(listing.ours, reverse=True):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for directory in (*places.own_directories, places.systemd / "sglang@.service.d"):
        _remove_empty(directory)
    for target in listing.staged:
        _remove_empty(target.parent)
    if listing.units or listing.servers:
        systemctl("daemon-reload")
        systemctl("try-restart", "systemd-journald.service")
    if listing.account:
        done = subprocess.run(["userdel", listing.account], capture_output=True, text=True, check=False)
        if done.returncode:
            stay.append(f"account {listing.account}: {done.stderr.strip()}")
    return stay


def _ours(places: Places, servers: Sequence[int]) -> Iterator[Path]:
    """Every path that we write, there or not."""
    root, systemd = places.root, places.systemd
    for release in named(root / "releases"):
        yield from (release / name for name in RELEASE_FILES)
    yield from (root / "releases").glob(".*.*")
    for index in servers:
        server = Server(index, root, systemd)
        yield from (server.directory / name for name in ("release", "server.env", ".release.new", ".server.env.new"))
        yield server.drop_in
        yield places.at(f"/var/lib/sglang/{server.name}")
    for stack in named(root / "stacks"):
        yield from (stack / name for name in STACK_ENTRIES)
    yield root / "stacks/.lock"
    yield from (root / "tools").glob("uv-*/uv")
    yield root / "libexec/sglang_pve"
    if not os.path.ismount(places.wheelhouse):
        yield from places.at(str(places.wheelhouse)).glob("*.whl")
    yield from named(places.at("/var/cache/sglang"))
    state = places.at("/var/lib/sglang")
    yield from (place / name for place in (root, state) for name in (".reserve", ".reserve.new"))
    yield from (state / "history.jsonl", *(state / "lent").glob("gpu*"), *(state / "checkpoints").glob("*.json"))
    yield places.at(str(MODELS))
    candidates = [systemd / name for name in OUR_FILES]
    candidates += [systemd / "sglang@.service.d/10-sandbox.conf", places.at("/etc/systemd/journald.conf.d/sglang.conf")]
    yield from (path for path in candidates if is_ours(path))


def _strangers(directory: Path, ours: Collection[Path], mounts: Collection[Path]) -> list[Path]:
    """What lies below a directory of ours and is not ours, each tree of strangers as one path."""
    found: list[Path] = []
    for path in sorted(directory.iterdir()) if directory.is_dir() and not directory.is_symlink() else []:
        if path in ours:
            continue
        if path in mounts:
            found.append(path)
        elif path.is_dir() and not path.is_symlink():
            found += _strangers(path, ours, mounts)
        else:
            found.append(path)
    return found


def _remove_empty(directory: Path) -> None:
    """Remove a directory and those below it, as far as they hold nothing. Never leaves the file system it is on."""
    if not directory.is_dir() or directory.is_symlink():
        return
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink() and not os.path.ismount(path):
            _remove_empty(path)
    if not any(directory.iterdir()) and not os.path.ismount(directory):
        directory.rmdir()


def _account(places: Places) -> str:
    """The service account, if it is the one we make: a system account whose home is the state directory."""
    try:
        account = pwd.getpwnam(places.user)
    except KeyError:
        return ""
    return places.user if account.pw_dir == "/var/lib/sglang" and places.prefix == Path("/") else ""


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()
