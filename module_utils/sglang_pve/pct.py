"""How a command travels to a container through its node, and what it means when it does not arrive.

Pure text in, text out: the connection plugin ``pct`` runs what is built here and asks here what came back.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

# The environment of every command. Nothing of the node's own environment may change what a task does.
# One directory serves as TMPDIR and as Ansible's remote_tmp: /run is in memory, so a full disk does not lock us out.
TMPDIR = "/run/ansible"
TOO_LATE = "nothing began in time"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# $1 is the mark, $2 the command. The command's status travels in the end mark and the wrapper itself ends with 0, so
# any other status comes from ssh, pct or a death on the way: their 255 cannot be taken for the command's.
# $3 is the time (seconds since 1970) from which on it must not begin: when a frozen container thaws, nobody waits for
# it any more, and sshd does not close its stderr. Node and container have one clock.
# The byte \036 is written by printf only: a process list that shows this text shows no mark.
# 1777 on TMPDIR, as on /tmp: become_user needs it too.
WRAPPER = f"""umask 022
export HOME=/root PATH={PATH} LANG=C.UTF-8 TMPDIR={TMPDIR}
cd /root 2>/dev/null || cd /
[ -d {TMPDIR} ] || mkdir -m 1777 {TMPDIR} 2>/dev/null
[ "$(date +%s)" -lt "$3" ] || {{ echo "{TOO_LATE}" >&2; exit 1; }}
printf "\\036%s start\\036\\n" "$1" >&2
/bin/sh -c "$2"
printf "\\036%s %d\\036\\n" "$1" $? >&2"""

# $1 target, $2 SHA-256 of what is sent, $3 a name nobody guesses. Written beside the target, so that the last step is
# a rename: the target is the old file or the whole new one. Files are private, as what Ansible sends may hold secrets.
# PIPE is ignored, since after a dropped connection the first word on stderr would kill the shell before it cleans up.
_PUT = """umask 077
case $1 in */*) part=${1%/*}/.part-$3 ;; *) part=./.part-$3 ;; esac
if [ -d "$1" ]; then echo "it is a directory" >&2; exit 1; fi
trap "rm -f -- \\"\\$part\\"" EXIT
trap "" PIPE
cat >"$part" || exit 1
sum=$(sha256sum <"$part") || exit 1
if [ "${sum%% *}" != "$2" ]; then echo "what arrived is not what was sent (SHA-256 ${sum%% *})" >&2; exit 1; fi
mv -f -- "$part" "$1\""""

# $1 source. The length is taken once, so that a log which grows meanwhile still has one checksum.
FETCH_NO_FILE = 44
_FETCH = f"""if [ ! -e "$1" ]; then exit {FETCH_NO_FILE}; fi
if [ ! -f "$1" ]; then echo "it is not a regular file" >&2; exit 1; fi
size=$(wc -c <"$1") || exit 1
head -c "$size" -- "$1" || exit 1
head -c "$size" -- "$1" | sha256sum >&2"""

NODES = "/etc/pve/nodes"  # on every node of a cluster: the files of all nodes, for root
MAX_ARGUMENT = (128 << 10) - 1  # bytes; MAX_ARG_STRLEN of Linux without its final zero byte


def check_vmid(vmid: str) -> str:
    """The VMID without blanks. Raises ValueError for what Proxmox VE does not take as one (100 to 999999999)."""
    text = str(vmid).strip()
    if not re.fullmatch(r"[1-9][0-9]{2,8}", text):
        raise ValueError(f"{vmid!r} is no VMID: expected a whole number from 100 to 999999999, as `pct list` shows")
    return text


def command_line(
    vmid: str, command: str, mark: str, pct: str = "pct", sudo: bool = False, start_timeout: int = 60
) -> str:
    """The one line for the node's login shell that runs ``command`` (a shell command line) in container ``vmid``.

    It runs within ``start_timeout`` seconds or not at all.
    ``mark`` must be new for each call and not to be guessed. Raises ValueError for a bad VMID and for text that is
    not UTF-8: pct decodes its arguments by the locale and would silently change such bytes (PVE::JSONSchema,
    get_options). The locale is set here for the same reason, and so that pct and sudo report in English.
    Also raises ValueError for a line that is too long for one argument of a program, which it is to ssh and to a shell.
    """
    argv = ["sudo", "-n"] if sudo else []
    argv += [pct, "exec", check_vmid(vmid), "--keep-env", "0", "--", "/bin/sh", "-c", WRAPPER, "pct", mark, command]
    line = f"LC_ALL=C.UTF-8 {shlex.join(argv)} $(($(date +%s) + {int(start_timeout)}))"
    try:
        size = len(line.encode("utf-8"))
    except UnicodeEncodeError as error:
        part = line[max(0, error.start - 30) : error.end + 30]
        raise ValueError(f"{part!r} is not UTF-8 text: pct cannot carry it; rename the file it is about") from error
    if size > MAX_ARGUMENT:
        raise ValueError(
            f"the command has {size} bytes with its quotes, and one argument of a program holds {MAX_ARGUMENT}:"
            " send its data as a file (copy, template, script) instead"
        )
    return line


def put_command(path: str, sha256: str, name: str) -> str:
    """Command that writes its stdin to ``path``: checked against ``sha256`` (hex), then renamed into place."""
    return shlex.join(["/bin/sh", "-c", _PUT, "put", path, sha256, name])


def fetch_command(path: str) -> str:
    """Command that writes ``path`` to stdout and its ``sha256sum`` line to stderr; status 44: no such file."""
    return shlex.join(["/bin/sh", "-c", _FETCH, "fetch", path])


@dataclass(frozen=True)
class Marked:
    """stderr of a call, taken apart at its marks."""

    before: bytes
    """What ssh, sudo and pct said before the command began; everything when it never began."""
    started: bool
    status: int | None
    """Exit status of the command (0 to 255), None when its end was not seen."""
    stderr: bytes
    """What the command itself wrote, byte for byte."""


def start_mark(mark: str) -> bytes:
    """What the wrapper writes to stderr right before the command begins."""
    return f"\x1e{mark} start\x1e\n".encode()


def read_marks(stderr: bytes, mark: str) -> Marked:
    token = re.escape(mark.encode())
    before, start, rest = stderr.partition(start_mark(mark))
    if not start:
        return Marked(before, False, None, b"")
    end = re.search(b"\x1e" + token + rb" ([0-9]{1,3})\x1e\n", rest)
    if not end:
        return Marked(before, True, None, rest)
    return Marked(before, True, int(end.group(1)), rest[: end.start()] + rest[end.end() :])


@dataclass(frozen=True)
class Cause:
    """A known reason for which a command did not start: ``says`` is searched in each line of stderr.

    ``retry`` is true where the command has not been sent and the same call may well work a moment later.
    """

    id: str
    says: str
    what: str
    cure: str
    retry: bool = False


# The first cause that fits is taken. Messages of pct: proxmox/pve-container src/PVE/CLI/pct.pm and
# proxmox/pve-guest-common src/PVE/AbstractConfig.pm; of ssh: OpenSSH 9.2.
CAUSES = (
    Cause(
        "silent",
        f"^{TOO_LATE}$",
        "nothing began in container {vmid} on node {node} within ansible_pct_start_timeout",
        "Is it frozen by a backup (`lxc-info -n {vmid} -s` on the node says FROZEN), or the node too busy?"
        " The command will not run later.",
    ),
    Cause(
        "cluster-down",
        r"^ipcc_send_rec.* failed",
        "the cluster file system of node {node} is down, so pct knows no container",
        "Look at it on the node: `systemctl status pve-cluster`.",
    ),
    Cause(
        "container-stopped",
        r"^container '\d+' not running|^CT \d+ not running|Failed to get init pid|not running\?\)",
        "container {vmid} on node {node} is not running",
        "Start it on the node: `pct start {vmid}`.",
    ),
    # Before "missing": what find_command found is added to what pct says.
    Cause(
        "container-moved",
        r"^/.*/[^*/]+/lxc/\d+\.conf$",
        "container {vmid} is not on node {node} any more, it was migrated",
        "Set sglang_node of the container to the node in this path.",
    ),
    Cause(
        "container-missing",
        r"^Configuration file '.*' does not exist",
        "container {vmid} does not exist on node {node}",
        "`pct list` on the node shows what it has; correct the VMID or the node in the inventory.",
    ),
    Cause(
        "container-locked",
        r"^CT is locked|^can't lock file",
        "container {vmid} on node {node} is locked by another task",
        "Wait until that task ends (`pct config {vmid}` shows the lock); `pct unlock {vmid}` only if it died.",
    ),
    Cause(
        "pct-old",
        r"Unknown option: keep-env",
        "pct on node {node} does not know --keep-env",
        "Update the package pve-container on the node to 5.0.9 or later.",
    ),
    Cause(
        "pct-missing",
        r"pct.*: (command )?not found|pct.*: No such file or directory",
        "there is no pct on node {node}",
        "Is it a Proxmox VE node? If pct is not in the PATH of that account, set ansible_pct_executable.",
    ),
    Cause(
        "pct-not-allowed",
        r"^please run as root|^sudo: |sudo: (command )?not found|^Sorry, user|pct.*: Permission denied",
        "the account on node {node} may not run pct",
        "Log in as root, or set ansible_pct_sudo and let sudoers allow `pct exec {vmid}` without a password:"
        " docs/transport.md has the line.",
    ),
    Cause(
        "host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "node {node} shows another SSH host key than the known one",
        "If it was reinstalled, replace the key in known_hosts (`ssh-keygen -R` removes the old one); if not, find out"
        " who answers.",
    ),
    Cause(
        "host-key-unknown",
        r"^Host key verification failed",
        "the SSH host key of node {node} is not known here",
        "Log in once by hand, or add the key with `ssh-keyscan` to known_hosts after checking its fingerprint.",
    ),
    Cause(
        "key-unusable",
        r"^Load key .*: |^no such identity: |UNPROTECTED PRIVATE KEY FILE|^Identity file .* not accessible",
        "the private SSH key for node {node} cannot be used",
        "Check that ansible_ssh_private_key_file names a readable private key of mode 0600.",
    ),
    Cause(
        "key-refused",
        r"Permission denied( \(|, please)|Too many authentication failures",
        "node {node} refused the login",
        "Check user and key; the public key belongs into authorized_keys of that user on the node.",
    ),
    Cause(
        "name-unknown",
        r"^ssh: Could not resolve hostname",
        "the name of node {node} cannot be resolved",
        "Correct ansible_host of the node, or DNS.",
        retry=True,
    ),
    Cause(
        "node-refuses",
        r"^ssh: connect to host .*: Connection refused",
        "node {node} is up but nothing listens on its SSH port",
        "Check the port in the inventory and `systemctl status ssh` on the node.",
        retry=True,
    ),
    Cause(
        "node-down",
        r"^ssh: connect to host|^Connection timed out during banner exchange|^Connection to .* port \d+ timed out",
        "node {node} does not answer",
        "Check that it is switched on and reachable from here on its SSH port.",
        retry=True,
    ),
    Cause(
        "node-hangs-up",
        r"^kex_exchange_identification|^Connection (closed|reset) by .* port \d+",
        "node {node} closed the connection before the login",
        "Look into the log of its sshd; where many log in at the same time, raise MaxStartups there.",
        retry=True,
    ),
    Cause(
        "node-lost",
        r"^ssh said nothing$|not responding|Connection to .* closed|Connection reset by|Broken pipe|timed out",
        "the connection to node {node} broke before anything was heard from container {vmid}",
        "Whether the command ran is not known: check the network and the node, then run the play again.",
    ),
)


def find_command(vmid: str) -> str:
    """Command for the node that names the file of container ``vmid`` on whichever node of the cluster has it."""
    return f"echo {NODES}/*/lxc/{check_vmid(vmid)}.conf"


@dataclass(frozen=True)
class Failure:
    """Why a call has no trustworthy result: ``id`` of a Cause, or "dropped", "killed" or "unknown"."""

    id: str
    message: str
    retry: bool


def find_failure(status: int, marked: Marked, vmid: str, node: str) -> Failure | None:
    """None when the command ran to its end and all of its output is here; ``status`` is the ssh client's (0 to 255)."""
    if status == 0 and marked.status is not None:
        return None
    names = {"vmid": vmid, "node": node}
    if marked.started:
        # Never run again by itself: what the command has done is not known.
        if status in (0, 255):
            what = "the connection to node {node} dropped while a command ran in container {vmid}"
            cure = "Whether it finished is not known: check the network and the node, then run the play again."
            return Failure("dropped", _sentence(what, "", cure, names), retry=False)
        what = f"a command in container {{vmid}} on node {{node}} was killed with its shell (status {status})"
        cure = "Was the container stopped, or out of memory? `pct status {vmid}` and `dmesg` on the node tell."
        return Failure("killed", _sentence(what, "", cure, names), retry=False)
    said = (line.strip() for line in marked.before.decode("utf-8", "replace").splitlines())
    lines = [line for line in said if line and not re.match("debug[123]: ", line)]
    if status == 255 and not lines:
        lines = ["ssh said nothing"]
    for cause in CAUSES:
        for line in lines:
            if re.search(cause.says, line):
                return Failure(cause.id, _sentence(cause.what, line, cause.cure, names), cause.retry)
    what = "the command for container {vmid} did not start on node {node}"
    cure = f"ssh ended with status {status}; try `pct exec {{vmid}} -- true` on the node by hand."
    return Failure("unknown", _sentence(what, " / ".join(lines[-3:]), cure, names), retry=False)


def _sentence(what: str, seen: str, cure: str, names: dict[str, str]) -> str:
    # Only our own words are templates: a line from the node may hold braces.
    middle = f" ({seen})" if seen else ""
    return f"{what.format(**names)}{middle}. {cure.format(**names)}"
