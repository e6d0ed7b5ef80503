"""Stand-in for Proxmox VE's `pct`, over real LXC tools. COMMANDS lists what it knows."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import labpve
from labpve import ParameterError, PveError

FILE_OPTIONS = {"user": "string", "group": "string", "perms": "string"}
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000


def execute(named: dict[str, str], command: list[str]) -> None:
    vmid = named["vmid"]
    require_running(vmid, f"container '{vmid}' not running!")
    if not command:
        raise PveError("missing command")
    # PVE::CLIHandler sets this PATH; pct.pm drops the two variables, which name files of the node.
    os.environ["PATH"] = "/sbin:/bin:/usr/sbin:/usr/bin"
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        os.environ.pop(name, None)
    environment = "--keep-env" if named.get("keep-env", "1") == "1" else "--clear-env"
    attach = labpve.lxc("attach", vmid, environment, "--", *command)
    os.execvp(attach[0], attach)


def status(named: dict[str, str], _rest: list[str]) -> None:
    vmid = named["vmid"]
    settings = dict(labpve.read_config(vmid))
    state = "running" if labpve.is_running(vmid) else "stopped"
    if named.get("verbose") == "1":
        print(f"name: {settings['hostname']}")
    print(f"status: {state}")
    if named.get("verbose") == "1":
        print(f"vmid: {vmid}")


def config(named: dict[str, str], _rest: list[str]) -> None:
    settings = labpve.read_config(named["vmid"])
    for key, value in sorted(pair for pair in settings if not pair[0].startswith("lxc.")):
        print(f"{key}: {value}")
    for key, value in settings:
        if key.startswith("lxc."):
            print(f"{key}: {value}")


def start(named: dict[str, str], _rest: list[str]) -> None:
    vmid = named["vmid"]
    labpve.read_config(vmid)
    if labpve.is_running(vmid):
        raise PveError(f"CT {vmid} already running")
    if subprocess.run(labpve.lxc("start", vmid, "--daemon"), stdin=subprocess.DEVNULL, check=False).returncode:
        raise PveError(f"startup for container '{vmid}' failed")


def stop(named: dict[str, str], _rest: list[str]) -> None:
    vmid = named["vmid"]
    require_running(vmid, f"CT {vmid} not running")
    subprocess.run(labpve.lxc("stop", vmid, "--kill"), check=True)


def reboot(named: dict[str, str], _rest: list[str]) -> None:
    vmid = named["vmid"]
    require_running(vmid, f"CT {vmid} not running")
    asked = subprocess.run(labpve.lxc("stop", vmid, "--timeout", named.get("timeout", "60")), check=False)
    if asked.returncode:
        raise PveError(f"reboot of container '{vmid}' failed")
    start(named, [])


def list_containers(_named: dict[str, str], _rest: list[str]) -> None:
    line = "{:<10} {:<10} {:<12} {:<20}"
    for row, vmid in enumerate(labpve.vmids()):
        if row == 0:
            print(line.format("VMID", "Status", "Lock", "Name"))
        state = "running" if labpve.is_running(vmid) else "stopped"
        print(line.format(vmid, state, "", dict(labpve.read_config(vmid))["hostname"]))


def push(named: dict[str, str], _rest: list[str]) -> None:
    require_running(named["vmid"], "can only push files to a running CT")
    unprivileged = dict(labpve.read_config(named["vmid"])).get("unprivileged") == "1"

    def copy() -> None:
        try:
            source = os.open(named["file"], os.O_RDONLY)
        except OSError:
            raise PveError(f"failed to open {named['file']} for reading") from None
        # Opened from inside: names of users are the container's, and no symbolic link leads out of it.
        enter_container(named["vmid"], with_users=unprivileged)
        with os.fdopen(source, "rb") as reader, create_file(named["destination"], named) as writer:
            shutil.copyfileobj(reader, writer)

    run_apart(copy)


def pull(named: dict[str, str], _rest: list[str]) -> None:
    require_running(named["vmid"], "can only pull files from a running VM")

    def copy() -> None:
        with create_file(named["destination"], named) as writer:
            enter_container(named["vmid"], with_users=False)
            try:
                source = os.open(named["path"], os.O_RDONLY)
            except OSError as error:
                raise PveError(f"failed to open {named['path']}: {error.strerror}") from None
            with os.fdopen(source, "rb") as reader:
                shutil.copyfileobj(reader, writer)

    run_apart(copy)


def require_running(vmid: str, otherwise: str) -> None:
    labpve.read_config(vmid)
    if not labpve.is_running(vmid):
        raise PveError(otherwise)


def run_apart(action) -> None:
    """Run `action` in a child, since entering namespaces cannot be undone."""
    child = os.fork()
    if child == 0:
        os._exit(guarded(action))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        sys.exit(labpve.DIED)


def enter_container(vmid: str, with_users: bool) -> None:
    init = labpve.info(vmid)["PID"]
    namespaces = [(os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY), CLONE_NEWNS)]
    if with_users:
        namespaces.append((os.open(f"/proc/{init}/ns/user", os.O_RDONLY), CLONE_NEWUSER))
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor, kind in namespaces:
        if libc.setns(descriptor, kind) != 0:
            raise PveError("failed to enter the container's namespaces: " + os.strerror(ctypes.get_errno()))
    os.chdir("/")
    if with_users:
        os.setgid(0)
        os.setuid(0)


def create_file(path: str, named: dict[str, str]):
    """Open `path` for writing: a new file gets `perms` or 0666 less the umask, an old one keeps what is not given."""
    user = resolve(named.get("user"), lambda name: pwd.getpwnam(name).pw_uid, "uid")
    group = resolve(named.get("group"), lambda name: grp.getgrnam(name).gr_gid, "gid")
    perms = named.get("perms")
    if perms is not None and not re.fullmatch("0[xX][0-9a-fA-F]+|[0-7]+", perms):
        raise PveError(f"invalid mode: '{perms}'")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if perms else 0o666)
    except OSError as error:
        raise PveError(f"failed to create file: {path}: {error.strerror}") from None
    if perms is not None:
        os.fchmod(descriptor, int(perms, 16 if perms.lower().startswith("0x") else 8))
    if user is not None or group is not None:
        os.fchown(descriptor, -1 if user is None else user, -1 if group is None else group)
    return os.fdopen(descriptor, "wb")


def resolve(name: str | None, look_up, kind: str) -> int | None:
    if name is None or name.isdigit():
        return None if name is None else int(name)
    try:
        return look_up(name)
    except KeyError:
        raise PveError(f"failed to get {kind} for: {name}") from None


# name: what it does, its required arguments, its options, and whether more arguments may follow
COMMANDS = {
    "config": (config, ["vmid"], {"current": "boolean", "snapshot": "string"}, ""),
    "exec": (execute, ["vmid"], {"keep-env": "boolean"}, "[<extra-args>]"),
    "list": (list_containers, [], {}, ""),
    "pull": (pull, ["vmid", "path", "destination"], FILE_OPTIONS, ""),
    "push": (push, ["vmid", "file", "destination"], FILE_OPTIONS, ""),
    "reboot": (reboot, ["vmid"], {"timeout": "string"}, ""),
    "start": (start, ["vmid"], {"debug": "boolean", "skiplock": "boolean"}, ""),
    "status": (status, ["vmid"], {"verbose": "boolean"}, ""),
    "stop": (stop, ["vmid"], {"skiplock": "boolean", "overrule-shutdown": "boolean"}, ""),
}


def usage(command: str) -> str:
    _, positional, options, rest = COMMANDS[command]
    words = ["pct", command, *(f"<{name}>" for name in positional), rest, "[OPTIONS]" if options else ""]
    return " ".join(word for word in words if word)


def guarded(action) -> int:
    """Run `action` and report its failure as the real tool does; return the exit status."""
    try:
        action()
        sys.stdout.flush()
    except ParameterError as error:
        print(*error.args[1:], f"400 {error.args[0]}", usage(sys.argv[1]), sep="\n", file=sys.stderr)
        return labpve.DIED
    except PveError as error:
        print(error, file=sys.stderr)
        return labpve.DIED
    return 0


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        reason = f"unknown command 'pct {sys.argv[1]}'" if len(sys.argv) > 1 else "no command specified"
        print(f"ERROR: {reason}\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]\n", file=sys.stderr)
        for command in COMMANDS:
            print(f"       {usage(command)}", file=sys.stderr)
        sys.exit(labpve.DIED)
    action, positional, options, rest = COMMANDS[sys.argv[1]]

    def run() -> None:
        named, following = labpve.parse_arguments(sys.argv[2:], options, positional, rest)
        if "vmid" in named:
            labpve.check_vmid(named["vmid"])
        action(named, following)

    sys.exit(guarded(run))


main()
