"""SGLang servers of this container that are not ours: started by another unit, from tmux, with nohup, by another user.

Everything is read under /proc. What makes a server ours is its unit (``sglang@N.service``) together with
SGLANG_PVE_RELEASE in its environment; neither alone does.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import command, host, release
from .command import HungCommandError, MissingCommandError
from .masking import masked
from .server import process_environment

PROC = Path("/proc")
ROOT = Path("/opt/sglang")
OUR_UNIT = re.compile(r"sglang@\d+\.service")
# Units of ours that a file of another hand would be overwritten by.
OUR_FILES = ("sglang@.service", "sglang.target", "sglang-model.service")
MARK = "# Managed by sglang-pve"
# What may stand between a unit's main process and the server without being a program of its own (sshd, cron, tmux).
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish")
WRAPPERS = (*SHELLS, "env", "nice", "numactl", "runuser", "setpriv", "su", "sudo", "taskset", "timeout", "uv")
# The engine names its child processes so (srt/managers/scheduler.py and others, setproctitle).
PART = "sglang::"
DEFAULT_PORT = 30000
SIGHUP_BIT = 1


@dataclass(frozen=True)
class Process:
    """A process; ``started`` is in clock ticks since boot, as /proc has it: with the pid it names one process.

    ``state`` is its letter there, such as R, S or Z (dead, and nobody has waited for it).
    """

    pid: int
    parent: int
    started: str
    words: tuple[str, ...]
    state: str = ""

    @property
    def program(self) -> str:
        # A login shell has a dash before its name, tmux a colon behind it.
        return self.words[0].rpartition("/")[2].lstrip("-").split(":")[0].split(" ")[0] if self.words else ""


Table = Mapping[int, Process]


def read_process(pid: int) -> Process | None:
    """A process of now, None when it is gone."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return Process(pid, int(fields[1]), fields[19], tuple(words[:-1] if words[-1] == "" else words), fields[0])
    except (OSError, IndexError):
        return None


def processes() -> dict[int, Process]:
    """Every process of now by pid."""
    pids = (int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit())
    return {found.pid: found for found in map(read_process, pids) if found is not None}


def launches_server(words: Sequence[str]) -> bool:
    """True for the command line of a server's first process; not for a shell or tmux that was told to start one."""
    if not words or not words[0].rpartition("/")[2].startswith("python"):
        return False
    for at, word in enumerate(words[1:], 1):
        if word == "-m":
            return list(words[at + 1 : at + 2]) == ["sglang.launch_server"]
        # Two of Python's own options have a value of their own.
        if not word.startswith("-") and words[at - 1] not in ("-X", "-W"):
            return word.endswith("sglang/launch_server.py") or (
                word.rpartition("/")[2] == "sglang" and list(words[at + 1 : at + 2]) == ["serve"]
            )
    return False


def ancestors(pid: int, table: Table) -> list[Process]:
    """The processes above this one, nearest first, without process 1."""
    found: list[Process] = []
    here = table.get(pid)
    while here is not None and here.parent > 1 and here.parent in table and len(found) < len(table):
        here = table[here.parent]
        found.append(here)
    return found


def roots(table: Table) -> dict[int, str]:
    """First processes: pid -> "server", or "engine" for another program that has the engine's processes below it.

    A scheduler whose parent is gone is an engine of its own: it holds its card like any other.
    """
    found: dict[int, str] = {}
    for one in table.values():
        above = ancestors(one.pid, table)
        if any(launches_server(other.words) for other in above):
            continue
        if launches_server(one.words):
            found[one.pid] = "server"
        elif one.words and one.words[0].startswith(PART):
            outer = [other.pid for other in above if not other.words or not other.words[0].startswith(PART)]
            found.setdefault(outer[0] if outer else one.pid, "engine")
    return found


def is_orphan(pid: int, root: Path = ROOT) -> bool:
    """True when the process is proven to be what a server of ours left behind.

    It is in the control group of a server's unit that does not run, or in none and its parent is gone, while its
    environment names a release that is here and it was started from the stack of that release.
    """
    one, unit = read_process(pid), host.unit_of(pid)
    if one is None or launches_server(one.words):
        return False
    if unit is not None:
        ours = OUR_UNIT.fullmatch(unit)
        return bool(ours) and host.unit_states([unit])[unit]["active"] in ("inactive", "failed")
    name = process_environment(pid).get(host.RELEASE_VARIABLE, "")
    # Process 1 takes what lost its parent.
    if one.parent > 1 or not one.words or not re.fullmatch(r"[0-9a-f]{12}", name):
        return False
    try:
        stack = release.load(root / "releases" / name)["stack"]["id"]
    except release.ReleaseError:
        return False
    return os.path.normpath(one.words[0]).startswith(f"{root}/stacks/{stack}/")


def tree(pid: int, table: Table) -> list[int]:
    """The process and all below it."""
    return sorted(one for one in table if one == pid or any(other.pid == pid for other in ancestors(one, table)))


def option(words: Sequence[str], *names: str) -> str:
    """The value of an option, given under any of its names; empty where it is not given."""
    value = ""
    for at, word in enumerate(words):
        name, equals, behind = word.partition("=")
        if name in names:
            value = behind if equals else "".join(words[at + 1 : at + 2])
    return value


def _number(text: str, default: int) -> int:
    return int(text) if text.isdigit() else default


def asked_cards(words: Sequence[str], visible: str | None, cards: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cards that a server's flags and its CUDA_VISIBLE_DEVICES (None: not set) give to it.

    As CUDA does it: everything from the first name on that is no card counts as nothing.
    """
    seen = list(cards)
    if visible is not None:
        seen = []
        for name in (entry.strip() for entry in visible.split(",")):
            match = [
                card
                for card in cards
                if name == str(card["index"]) or (name.startswith("GPU-") and str(card["uuid"]).startswith(name))
            ]
            if len(match) != 1:
                break
            seen += match
    count = 1
    for names in (
        ("--tensor-parallel-size", "--tp-size", "--tp"),
        ("--pipeline-parallel-size", "--pp-size", "--pp"),
        ("--data-parallel-size", "--dp-size", "--dp"),
    ):
        count *= max(_number(option(words, *names), 1), 1)
    first, step = _number(option(words, "--base-gpu-id"), 0), max(_number(option(words, "--gpu-id-step"), 1), 1)
    return [{"index": card["index"], "uuid": card["uuid"]} for card in seen[first::step][:count]]


def user_of(pid: int) -> str:
    """Name of the user that a process runs as, its number where it has no name, empty when the process is gone."""
    try:
        uid = (PROC / str(pid)).stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def since(started: str) -> str:
    """A start in clock ticks since boot as ISO 8601 in UTC."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))


def unit_facts(unit: str) -> dict[str, str]:
    """MainPID, Transient and UnitFileState of a unit; empty where systemd does not answer."""
    argv = ["systemctl", "show", "--property=MainPID,Transient,UnitFileState", "--", unit]
    try:
        text = command.run(argv, host.SYSTEMCTL_TIMEOUT_S).out
    except (MissingCommandError, HungCommandError):
        return {}
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def owning_unit(pid: int, table: Table) -> str:
    """The system's unit whose main process the server is, or a shell or the like above it; empty without one.

    A process that somebody started from a login or from cron is in the control group of ssh.service or cron.service:
    that unit does not own it, and must never be stopped for it.
    """
    unit = host.unit_of(pid) or ""
    if not unit.endswith(".service") or unit.startswith("user@"):
        return ""
    main = _number(unit_facts(unit).get("MainPID", ""), 0)
    for one in [table[pid], *ancestors(pid, table)]:
        if one.pid == main:
            return unit
        above = table.get(one.parent)
        if above is None or above.program not in WRAPPERS:
            return ""
    return ""


def by_hand(pid: int, table: Table) -> str:
    """How a process without a unit of its own was started, as far as it shows."""
    for one in ancestors(pid, table):
        if one.program.lower() in ("tmux", "screen"):
            return f"by hand ({one.program.lower()})"
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        status = ""
    ignored = re.search(r"^SigIgn:\s+([0-9a-f]+)", status, re.MULTILINE)
    return "by hand (nohup)" if ignored and int(ignored.group(1), 16) & SIGHUP_BIT else "by hand"


def kept_by(text: str) -> str:
    """Read /proc/PID/cgroup: what would start the process again behind our back, in words.

    That is the user's own systemd, or a container in the container.
    """
    unit = re.search(r"/user@\d+\.service/.*?([^/]+\.service)", text)
    inner = re.search(r"/((?:docker|libpod|crio|cri-containerd|nspawn)[-/.][^/\s]*)", text)
    if unit:
        return f"it belongs to {unit.group(1)} of its user's own systemd, which would start it again"
    return f"it runs in a container of its own ({inner.group(1)[:40]})" if inner else ""


def _control_group(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ""


def _blocked(server: Mapping[str, Any], neighbours: int) -> str:
    """Why adopt.yml cannot take this server over, "" when it can."""
    if server["kind"] == "engine":
        return "it is an engine inside another program, not a server"
    if not server["gpus"]:
        return "its GPU cannot be told"
    if len(server["gpus"]) > 1:
        return f"it uses the GPUs {', '.join(str(card['index']) for card in server['gpus'])} together"
    if OUR_UNIT.fullmatch(server["unit"]):
        return f"its unit has the name of one of ours ({server['unit']}), whose file would be overwritten"
    if server["unit"] and neighbours > 1:
        return f"{server['unit']} runs {neighbours} servers, which would all stop with it"
    return "" if server["unit"] else kept_by(_control_group(server["pid"]))


def read(
    cards: Sequence[Mapping[str, Any]],
    listeners: Iterable[Mapping[str, Any]],
    on_cards: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Every SGLang server that is not ours, by pid.

    ``cards``: the GPUs of gpus.query; ``listeners``: of host.listeners; ``on_cards``: of holders.named. Each is
    {"pid", "started" (clock ticks since boot), "since", "kind" (server or engine), "user", "unit" ("" without one of
    its own), "how" (in words), "address", "port" (None while it listens on none), "ports", "gpus" [{"index", "uuid"}],
    "argv" (secrets masked), "pids" (its whole tree), "blocked" (why it cannot be taken over, or "")}.
    """
    table = processes()
    listeners, on_cards = list(listeners), list(on_cards)
    found = []
    for pid, kind in sorted(roots(table).items()):
        environ = process_environment(pid)
        if host.RELEASE_VARIABLE in environ and OUR_UNIT.fullmatch(host.unit_of(pid) or ""):
            continue
        if kind == "engine" and is_orphan(pid):
            continue
        one, pids = table[pid], tree(pid, table)
        unit = owning_unit(pid, table)
        heard = {item["port"]: item["address"] for item in listeners if item["pid"] in pids}
        wanted = _number(option(one.words, "--port"), DEFAULT_PORT)
        own = sorted(item["port"] for item in listeners if item["pid"] == pid)
        port = wanted if wanted in heard else next(iter(own), None)
        measured = {row["uuid"] for row in on_cards if row["pid"] in pids}
        asked = asked_cards(one.words, environ.get("CUDA_VISIBLE_DEVICES"), cards) if kind == "server" else []
        seen = [{"index": card["index"], "uuid": card["uuid"]} for card in cards if card["uuid"] in measured]
        found.append(
            {
                "pid": pid,
                "started": one.started,
                "since": since(one.started),
                "kind": kind,
                "user": user_of(pid),
                "unit": unit,
                "how": f"by {unit}" if unit else by_hand(pid, table),
                "address": heard.get(port) if port is not None else None,
                "port": port,
                "ports": sorted(heard),
                "gpus": seen or asked,
                "argv": masked(one.words),
                "pids": pids,
            }
        )
    units = [item["unit"] for item in found]
    return [{**item, "blocked": _blocked(item, units.count(item["unit"]))} for item in found]


def unit_files(systemd: Path) -> list[str]:
    """Files of other hands where ours go: deploying would overwrite them, or they would change our units."""
    paths = [systemd / name for name in OUR_FILES] + sorted(systemd.glob("sglang@[0-9]*.service"))
    return [str(path) for path in dict.fromkeys(paths) if path.is_file() and not is_ours(path)]


def is_ours(path: Path) -> bool:
    try:
        return path.read_text(errors="replace").startswith(MARK)
    except OSError:
        return False


def sentence(server: Mapping[str, Any]) -> str:
    """One server in words: pid, user, how it was started, port and GPU."""
    port = f"port {server['port']}" if server["port"] else "no port yet"
    indexes = ", ".join(str(card["index"]) for card in server["gpus"]) or "unknown"
    what = "an SGLang server" if server["kind"] == "server" else "an SGLang engine"
    return f"pid {server['pid']} ({what} of user {server['user']}, started {server['how']}, on {port}, GPU {indexes})"
