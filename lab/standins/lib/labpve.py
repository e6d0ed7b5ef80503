"""What the `pct` and `pvesh` stand-ins share: where the node's containers are described and how they run.

Habits and wording of the real tools are taken as facts from Proxmox VE's pct.pm, LXC.pm, CLIHandler.pm, RESTHandler.pm
and JSONSchema.pm (pve-container 94f5585, pve-common f665029).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

NODE_DIR = Path(__file__).resolve().parent.parent
LXC_PATH = NODE_DIR.parent / "lxc"
PVE_LXC = NODE_DIR / "pve" / "lxc"  # a real node has it at /etc/pve/lxc

# Perl's `die` ends with errno or 255; 255 is what users report for a missing container (tteck/Proxmox#1225).
DIED = 255


class PveError(Exception):
    """A failure that the real tool reports on stderr before it exits with 255."""


class ParameterError(PveError):
    """A refused argument: the real tool prints `400`, the reason and the command's usage."""


def node_name() -> str:
    """The node's name is the machine's name up to the first dot, as on a real node."""
    return os.uname().nodename.partition(".")[0]


def check_vmid(value: str) -> str:
    if not re.fullmatch(r"-?[0-9]+", value):
        raise ParameterError(f"Parameter verification failed.\nvmid: type check ('integer') failed - got '{value}'")
    if not re.fullmatch(r"[1-9][0-9]{2,8}", value):
        raise ParameterError(
            "Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID"
        )
    return value


def config_file(vmid: str) -> Path:
    return PVE_LXC / f"{vmid}.conf"


def vmids() -> list[str]:
    return sorted((path.stem for path in PVE_LXC.glob("*.conf")), key=int)


def read_config(vmid: str) -> list[tuple[str, str]]:
    """The container's settings in the file's order; raw `lxc.*` lines keep their full key.

    Raises PveError when the node has no such container.
    """
    path = config_file(vmid)
    if not path.exists():
        raise PveError(f"Configuration file 'nodes/{node_name()}/lxc/{vmid}.conf' does not exist")
    settings = []
    for line in path.read_text().splitlines():
        if line.startswith("["):  # what follows belongs to a snapshot
            break
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            settings.append((key.strip(), value.strip()))
    return settings


def snapshots(vmid: str) -> list[dict]:
    names = re.findall(r"(?m)^\[([^\]:]+)\]", config_file(vmid).read_text())
    return [{"name": name} for name in names]


def lxc(tool: str, vmid: str, *arguments: str) -> list[str]:
    """The command line of one of LXC's tools for this container."""
    return [f"lxc-{tool}", "-P", str(LXC_PATH), "-n", vmid, *arguments]


def info(vmid: str) -> dict[str, str]:
    """What lxc-info says, with plain numbers: State, PID, 'Memory use' in bytes, ..."""
    output = subprocess.run(lxc("info", vmid, "--no-humanize"), capture_output=True, text=True, check=False).stdout
    pairs = (line.partition(":") for line in output.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def is_running(vmid: str) -> bool:
    state = subprocess.run(lxc("info", vmid, "--no-humanize", "--state"), capture_output=True, text=True, check=False)
    # The real one looks for the socket of the container's monitor (list_active_containers), which a frozen one has too.
    return state.stdout.strip() in ("RUNNING", "FROZEN")


def parse_arguments(
    arguments: list[str], options: dict[str, str], positional: list[str], rest: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Arguments as Getopt::Long reads them: one dash or two, anywhere before `--`.

    `options` maps a name to "boolean" or "string". `positional` names the required arguments; with `rest` any number
    may follow.
    Returns the named values (booleans as "1" or "0") and what follows the named arguments.
    Raises ParameterError for an unknown option and for too few or too many arguments.
    """
    named: dict[str, str] = {}
    plain: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if argument == "--":
            plain += queue
            break
        if not argument.startswith("-") or argument == "-":
            plain.append(argument)
            continue
        name, equals, value = re.sub("^--?", "", argument).partition("=")
        if name not in options:
            raise ParameterError("unable to parse option", f"Unknown option: {name}")
        may_take_next = bool(queue) and not queue[0].startswith("-")
        if not equals and may_take_next:
            value = queue.pop(0)
        elif not equals and options[name] != "boolean":
            raise ParameterError("unable to parse option", f"Option {name} requires an argument")
        named[name] = _boolean(name, value) if options[name] == "boolean" else value
    if len(plain) < len(positional):
        raise ParameterError("not enough arguments")
    if len(plain) > len(positional) and not rest:
        raise ParameterError("too many arguments")
    named.update(zip(positional, plain))
    return named, plain[len(positional) :]


def _boolean(name: str, value: str) -> str:
    if value.lower() in ("", "1", "on", "yes", "true"):
        return "1"
    if value.lower() in ("0", "off", "no", "false"):
        return "0"
    raise ParameterError(f"Parameter verification failed.\n{name}: type check ('boolean') failed - got '{value}'")
