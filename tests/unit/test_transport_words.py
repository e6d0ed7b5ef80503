"""Transport without a connection: quoting, marks, causes, and the two file scripts under a real shell."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_pve import pct

MARK = "0123456789abcdef0123456789abcdef"
START = f"\x1e{MARK} start\x1e\n".encode()


def end(status: int) -> bytes:
    return f"\x1e{MARK} {status}\x1e\n".encode()


# -- the command line ---------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_command_is_one_argument_whatever_it_holds(command: str) -> None:
    line, deadline = pct.command_line("200", command, MARK).rsplit(" $((", 1)
    words = shlex.split(line)
    assert deadline == "$(date +%s) + 60))"
    assert words[:8] == ["LC_ALL=C.UTF-8", "pct", "exec", "200", "--keep-env", "0", "--", "/bin/sh"]
    assert words[-2:] == [MARK, command]


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_text_survives_the_shell_of_the_node_and_of_the_container(text: str) -> None:
    line = pct.command_line("200", shlex.join(["printf", "%s", text]), MARK, pct="run_after_dashes")
    shell = f'run_after_dashes() {{ shift 5; "$@"; }}\n{line}'
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout == text.encode()
    assert pct.read_marks(done.stderr, MARK) == pct.Marked(b"", True, 0, b"")


def test_sudo_stands_before_pct_and_another_executable_is_taken() -> None:
    words = shlex.split(pct.command_line("200", "true", MARK, pct="/opt/pve/pct", sudo=True))
    assert words[:5] == ["LC_ALL=C.UTF-8", "sudo", "-n", "/opt/pve/pct", "exec"]


def test_a_command_that_no_program_can_take_is_refused_before_it_is_sent() -> None:
    """What Linux takes as one argument is asked of Linux itself."""
    longest = pct.MAX_ARGUMENT - len(pct.command_line("200", "", MARK)) + len("''")
    line = pct.command_line("200", "x" * longest, MARK)
    subprocess.run(["/bin/true", line], check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true", f"{line}x"], check=False)
    with pytest.raises(ValueError, match=f"has {pct.MAX_ARGUMENT + 1} bytes .*send its data as a file"):
        pct.command_line("200", "x" * (longest + 1), MARK)


def test_bytes_that_pct_would_change_are_refused() -> None:
    with pytest.raises(ValueError, match="not UTF-8"):
        pct.command_line("200", "rm caf\udce9", MARK)


@pytest.mark.parametrize("vmid", ["200", "100", "999999999", " 200\n", 200])
def test_vmids_of_proxmox_pass(vmid: str) -> None:
    assert pct.check_vmid(vmid) == str(vmid).strip()


@pytest.mark.parametrize("vmid", ["", "99", "0200", "ct200", "200; reboot", "-1", "1000000000", "\uff12\uff10\uff10"])
def test_everything_else_is_refused(vmid: str) -> None:
    with pytest.raises(ValueError, match="is no VMID"):
        pct.check_vmid(vmid)


# -- marks --------------------------------------------------------------------------------------------------------


@given(before=st.binary(), inside=st.binary(), status=st.integers(0, 255), after=st.binary())
def test_stderr_comes_out_byte_for_byte(before: bytes, inside: bytes, status: int, after: bytes) -> None:
    marked = pct.read_marks(before + START + inside + end(status) + after, MARK)
    assert marked == pct.Marked(before, True, status, inside + after)


def test_a_process_list_that_shows_the_wrapper_shows_no_mark() -> None:
    listing = pct.command_line("200", "ps -ef", MARK).encode()
    assert pct.read_marks(START + listing + end(0), MARK) == pct.Marked(b"", True, 0, listing)
    assert not pct.read_marks(listing, MARK).started


def test_marks_of_another_call_are_text() -> None:
    other = b"\x1effff start\x1e\n"
    assert pct.read_marks(other + START + other + end(3), MARK) == pct.Marked(other, True, 3, other)


def test_a_half_end_mark_is_no_end() -> None:
    assert pct.read_marks(START + b"x" + end(0)[:-2], MARK).status is None


# -- causes -------------------------------------------------------------------------------------------------------

# What the programs write, as read in their sources or seen in runs; several lines where one cause hides another.
SEEN = [
    (1, "perl: warning: Setting locale failed.\nnothing began in time", "silent"),
    (255, "container '200' not running!", "container-stopped"),
    (
        1,
        "lxc-attach: 200: ../src/lxc/attach.c: get_attach_context: 405 Connection refused - Failed to get init pid",
        "container-stopped",
    ),
    (2, "Configuration file 'nodes/pve1/lxc/200.conf' does not exist", "container-missing"),
    (
        2,
        "/etc/pve/nodes/*/lxc/200.conf\nConfiguration file 'nodes/pve1/lxc/200.conf' does not exist",
        "container-missing",
    ),
    (
        2,
        "/etc/pve/nodes/pve2/lxc/200.conf\nConfiguration file 'nodes/pve1/lxc/200.conf' does not exist",
        "container-moved",
    ),
    (
        111,
        "ipcc_send_rec[1] failed: Connection refused\nConfiguration file 'nodes/pve1/lxc/200.conf' does not exist",
        "cluster-down",
    ),
    (255, "CT is locked (backup)", "container-locked"),
    (255, "can't lock file '/run/lock/lxc/pve-config-200.lock' - got timeout", "container-locked"),
    (255, "Unknown option: keep-env\n400 unable to parse option\npct exec <vmid> [<extra-args>]", "pct-old"),
    (127, "bash: line 1: pct: command not found", "pct-missing"),
    (127, "sh: 1: pct: not found", "pct-missing"),
    (127, "bash: line 1: /opt/pct: No such file or directory", "pct-missing"),
    (1, "sudo: pct: command not found", "pct-missing"),
    (1, "sudo: a password is required", "pct-not-allowed"),
    (127, "bash: line 1: sudo: command not found", "pct-not-allowed"),
    (1, "Sorry, user ansible is not allowed to execute '/usr/sbin/pct exec 200' as root on pve1.", "pct-not-allowed"),
    (1, "please run as root", "pct-not-allowed"),
    (126, "bash: line 1: /usr/sbin/pct: Permission denied", "pct-not-allowed"),
    (
        255,
        "@  WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!  @\r\nHost key verification failed.\r\n",
        "host-key-changed",
    ),
    (
        255,
        "No ED25519 host key is known for pve1 ...\r\nHost key verification failed.\r\n",
        "host-key-unknown",
    ),
    (255, "no such identity: /k: No such file or directory\nroot@pve1: Permission denied (publickey).", "key-unusable"),
    (255, 'Load key "/k": invalid format\nroot@pve1: Permission denied (publickey).', "key-unusable"),
    (255, "root@pve1: Permission denied (publickey).", "key-refused"),
    (5, "Permission denied, please try again.", "key-refused"),
    (255, "Received disconnect from 192.0.2.10 port 22:2: Too many authentication failures", "key-refused"),
    (255, "ssh: Could not resolve hostname pve1: Name or service not known", "name-unknown"),
    (255, "ssh: connect to host pve1 port 22: Connection refused", "node-refuses"),
    (255, "ssh: connect to host pve1 port 22: Connection timed out", "node-down"),
    (255, "ssh: connect to host pve1 port 22: No route to host", "node-down"),
    (255, "ssh: connect to host pve1 port 22: Network is unreachable", "node-down"),
    (255, "Connection timed out during banner exchange\r\nConnection to 192.0.2.10 port 22 timed out", "node-down"),
    (255, "Timeout, server pve1 not responding.", "node-lost"),
    (255, "client_loop: send disconnect: Broken pipe", "node-lost"),
    (255, "Connection to pve1 closed by remote host.", "node-lost"),
    (255, "", "node-lost"),
    (255, "kex_exchange_identification: read: Connection reset by peer", "node-hangs-up"),
    (255, "Connection closed by 192.0.2.10 port 22", "node-hangs-up"),
]


@pytest.mark.parametrize(("status", "stderr", "cause"), SEEN)
def test_what_is_seen_has_its_cause(status: int, stderr: str, cause: str) -> None:
    failure = pct.find_failure(status, pct.read_marks(stderr.encode(), MARK), "200", "pve1")
    assert failure is not None
    assert failure.id == cause
    assert "pve1" in failure.message
    assert "{" not in failure.message


def test_every_cause_has_been_seen() -> None:
    assert {cause.id for cause in pct.CAUSES} == {cause for _, _, cause in SEEN}


def test_a_stopped_container_is_told_with_its_cure() -> None:
    failure = pct.find_failure(255, pct.read_marks(b"container '200' not running!\n", MARK), "200", "192.0.2.10")
    assert failure == pct.Failure(
        "container-stopped",
        "container 200 on node 192.0.2.10 is not running (container '200' not running!)."
        " Start it on the node: `pct start 200`.",
        retry=False,
    )


@pytest.mark.parametrize("status", [0, 3, 127, 137, 255])
def test_a_command_that_ended_is_no_failure_whatever_its_status_and_words(status: int) -> None:
    stderr = START + b"container '200' not running!\nConnection refused\n" + end(status)
    assert pct.find_failure(0, pct.read_marks(stderr, MARK), "200", "pve1") is None


@pytest.mark.parametrize(
    ("status", "rest", "cause"),
    [(255, b"", "dropped"), (0, b"", "dropped"), (255, end(0), "dropped"), (137, b"", "killed")],
)
def test_what_began_and_did_not_end_is_never_retried(status: int, rest: bytes, cause: str) -> None:
    """Also when the end was seen and the connection broke after it: stdout may be cut."""
    failure = pct.find_failure(status, pct.read_marks(START + rest, MARK), "200", "pve1")
    assert failure is not None
    assert (failure.id, failure.retry) == (cause, False)


def test_only_what_was_never_sent_is_retried() -> None:
    """Where the connection broke after the login, the start mark may have been lost on its way here."""
    retried = {cause.id for cause in pct.CAUSES if cause.retry}
    assert retried == {"name-unknown", "node-refuses", "node-down", "node-hangs-up"}


def test_status_0_without_a_mark_is_a_failure() -> None:
    """A forced command in authorized_keys answers so."""
    failure = pct.find_failure(0, pct.read_marks(b"only backups here {}\n", MARK), "200", "pve1")
    assert failure is not None
    assert (failure.id, failure.retry) == ("unknown", False)
    assert "only backups here {}" in failure.message


def test_what_ssh_says_under_v_is_no_cause() -> None:
    """ansible_ssh_verbosity adds lines such as this, with the command in them."""
    stderr = b"debug1: Sending command: pct: not found\r\nroot@pve1: Permission denied (publickey).\r\n"
    failure = pct.find_failure(255, pct.read_marks(stderr, MARK), "200", "pve1")
    assert failure is not None
    assert failure.id == "key-refused"


# -- the scripts that move files ----------------------------------------------------------------------------------

DATA = bytes(range(256)) * 20
SHA = hashlib.sha256(DATA).hexdigest()


def put(path: str, data: bytes = DATA, sha256: str = SHA, before: str = "") -> subprocess.CompletedProcess[bytes]:
    command = before + pct.put_command(path, sha256, "n1")
    return subprocess.run(["/bin/sh", "-c", command], input=data, capture_output=True, check=False)


def test_put_writes_a_private_file_and_nothing_else(tmp_path: Path) -> None:
    assert put(f"{tmp_path}/new").returncode == 0
    assert [(p.name, p.read_bytes(), p.stat().st_mode & 0o777) for p in tmp_path.iterdir()] == [("new", DATA, 0o600)]


@pytest.mark.parametrize(
    ("sent", "before", "says"),
    [
        (DATA[:-1], "", b"not what was sent"),
        (DATA, "ulimit -f 1; ", b""),
    ],
    ids=["cut on the way", "no room"],
)
def test_put_that_fails_leaves_the_old_file_and_no_part(tmp_path: Path, sent: bytes, before: str, says: bytes) -> None:
    old = tmp_path / "file"
    old.write_text("old")
    done = put(str(old), sent, before=before)
    assert done.returncode not in (0, None)
    assert says in done.stderr
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "old")]


def test_put_does_not_move_a_file_into_a_directory(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = put(f"{tmp_path}/there")
    assert (done.returncode, done.stderr) == (1, b"it is a directory\n")
    assert not list((tmp_path / "there").iterdir())


def fetch(path: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["/bin/sh", "-c", pct.fetch_command(path)], capture_output=True, check=False)


def test_fetch_gives_the_data_and_its_checksum(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    done = fetch(f"{tmp_path}/file")
    assert (done.returncode, done.stdout, done.stderr) == (0, DATA, f"{SHA}  -\n".encode())


def test_fetch_tells_a_missing_file_from_a_directory(tmp_path: Path) -> None:
    assert fetch(f"{tmp_path}/none").returncode == pct.FETCH_NO_FILE
    done = fetch(str(tmp_path))
    assert (done.returncode, done.stderr) == (1, b"it is not a regular file\n")
