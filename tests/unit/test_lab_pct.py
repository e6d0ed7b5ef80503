"""The lab's pct over a real container: words, exit statuses, environment and copied files, as the real pct has them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab_fixture import Lab

pytestmark = pytest.mark.container


@pytest.fixture
def vmid(lab: Lab) -> str:
    return str(lab.vmid)


def test_container_is_unprivileged_with_systemd_and_its_own_address(lab: Lab, vmid: str) -> None:
    assert lab.pct("exec", vmid, "--", "cat", "/proc/1/comm").stdout == "systemd\n"
    assert lab.pct("exec", vmid, "--", "systemctl", "is-system-running").stdout == "running\n"
    first_id = lab.pct("exec", vmid, "--", "cat", "/proc/self/uid_map").stdout.split()[1]
    assert int(first_id) >= 100000
    assert lab.pct("exec", vmid, "--", "hostname").stdout == f"ct{vmid}\n"
    assert f"10.77.{lab.vmid % 256}.2/24" in lab.pct("exec", vmid, "--", "ip", "-4", "address", "show", "eth0").stdout
    assert lab.pct("exec", vmid, "--", "ip", "route", "show", "default").stdout == ""


def test_units_can_be_run(lab: Lab, vmid: str) -> None:
    done = lab.pct("exec", vmid, "--", "systemd-run", "--wait", "--pipe", "--quiet", "sh", "-c", "echo here; exit 3")
    assert (done.returncode, done.stdout) == (3, "here\n")


@pytest.mark.parametrize("status", [0, 7, 255])
def test_exec_hands_the_exit_status_through(lab: Lab, vmid: str, status: int) -> None:
    assert lab.pct("exec", vmid, "--", "sh", "-c", f"exit {status}").returncode == status


def test_exec_of_a_killed_and_of_a_missing_command(lab: Lab, vmid: str) -> None:
    assert lab.pct("exec", vmid, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert lab.pct("exec", vmid, "--", "no-such-command").returncode == 127


def test_exec_passes_arguments_and_stdin_untouched(lab: Lab, vmid: str) -> None:
    words = ["two words", "$HOME", "a'b\"c", "line\nbreak", "--", "-x", ""]
    done = lab.pct("exec", vmid, "--", "printf", "<%s>", *words)
    assert done.stdout == "".join(f"<{word}>" for word in words)
    assert lab.pct("exec", vmid, "--", "cat", stdin="a\0b\n").stdout == "a\0b\n"


def test_exec_keeps_the_nodes_environment_unless_told_otherwise(lab: Lab, vmid: str) -> None:
    def seen(*options: str) -> dict[str, str]:
        done = subprocess.run(
            [lab.dir / "node/bin/pct", "exec", vmid, *options, "--", "env", "-0"],
            env={**os.environ, "FROM_NODE": "yes", "SSL_CERT_FILE": "/node/only"},
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(pair.partition("=")[::2] for pair in done.stdout.split("\0"))

    kept = seen()
    assert kept["FROM_NODE"] == "yes"
    assert kept["PATH"] == "/sbin:/bin:/usr/sbin:/usr/bin"
    assert "SSL_CERT_FILE" not in kept
    for options in (["--keep-env", "0"], ["--keep-env=0"], ["-keep-env", "no"]):
        cleared = seen(*options)
        assert "FROM_NODE" not in cleared
        assert "HOME" not in cleared
        assert cleared["container"] == "lxc"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "ERROR: no command specified\n"),
        (["frobnicate"], "ERROR: unknown command 'pct frobnicate'\n"),
        (["exec"], "400 not enough arguments\npct exec <vmid> [<extra-args>] [OPTIONS]\n"),
        (["exec", "VMID"], "missing command\n"),
        (["exec", "VMID", "ls", "-l"], "Unknown option: l\n400 unable to parse option\n"),
        (["status", "VMID", "more"], "400 too many arguments\npct status <vmid> [OPTIONS]\n"),
        (["status", "ct"], "400 Parameter verification failed.\nvmid: type check ('integer') failed - got 'ct'\n"),
        (["status", "99"], "vmid: invalid format - value does not look like a valid VM ID\n"),
        (["start", "VMID"], "CT VMID already running\n"),
        (["push", "VMID", "/no/such", "/root/x"], "failed to open /no/such for reading\n"),
        (["push", "VMID", "/etc/hostname", "/no/x"], "failed to create file: /no/x: No such file or directory\n"),
        (["push", "VMID", "/etc/hostname", "/root/x", "--user", "nix"], "failed to get uid for: nix\n"),
        (["push", "VMID", "/etc/hostname", "/root/x", "--perms", "rwx"], "invalid mode: 'rwx'\n"),
        (["pull", "VMID", "/no/such", "/dev/null"], "failed to open /no/such: No such file or directory\n"),
    ],
)
def test_refusals_exit_with_255_in_the_real_words(lab: Lab, vmid: str, arguments: list[str], words: str) -> None:
    done = lab.pct(*(vmid if word == "VMID" else word for word in arguments))
    assert done.returncode == 255
    assert words.replace("VMID", vmid) in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", [["status"], ["config"], ["start"], ["stop"], ["exec", "--", "true"]])
def test_missing_container(lab: Lab, command: list[str]) -> None:
    done = lab.pct(command[0], "99999", *command[1:])
    assert done.returncode == 255
    assert done.stderr == f"Configuration file 'nodes/{os.uname().nodename}/lxc/99999.conf' does not exist\n"


def test_config_is_sorted_and_in_proxmox_form(lab: Lab, vmid: str) -> None:
    pairs = [line.split(": ", 1) for line in lab.pct("config", vmid).stdout.splitlines()]
    assert pairs == sorted(pairs)
    settings = dict(pairs)
    assert settings["unprivileged"] == "1"
    assert settings["hostname"] == f"ct{vmid}"
    assert settings["dev7"] == "/dev/nvidia7,mode=0666"
    assert {"cores", "memory", "features", "net0", "rootfs", "ostype"} <= settings.keys()


def test_devices_of_the_config_exist_in_the_container(lab: Lab, vmid: str) -> None:
    lines = lab.pct("config", vmid).stdout.splitlines()
    devices = [line.split(": ")[1].split(",")[0] for line in lines if line.startswith("dev")]
    assert len(devices) == 11
    done = lab.pct("exec", vmid, "--", "stat", "--format", "%F", *devices)
    assert done.stdout.splitlines() == ["character special file"] * len(devices)


def test_raw_lxc_lines_come_last_and_snapshots_are_left_out(lab: Lab, vmid: str) -> None:
    path = lab.dir / f"node/pve/lxc/{vmid}.conf"
    original = path.read_text()
    path.write_text(f"{original}lxc.environment: A=b\n[before]\nmemory: 1\n")
    try:
        lines = lab.pct("config", vmid).stdout.splitlines()
    finally:
        path.write_text(original)
    assert lines[-1] == "lxc.environment: A=b"
    assert [line for line in lines if line.startswith("memory")] == ["memory: 262144"]


def test_list(lab: Lab, vmid: str) -> None:
    heading, row = lab.pct("list").stdout.splitlines()
    assert heading.split() == ["VMID", "Status", "Lock", "Name"]
    assert row.split() == [vmid, "running", f"ct{vmid}"]


def test_status_verbose(lab: Lab, vmid: str) -> None:
    assert lab.pct("status", vmid).stdout == "status: running\n"
    assert f"vmid: {vmid}\n" in lab.pct("status", vmid, "--verbose").stdout


@pytest.fixture
def inside(lab: Lab, vmid: str) -> Iterator[str]:
    """A directory of the container for one test."""
    made = lab.pct("exec", vmid, "--", "mktemp", "-d").stdout.strip()
    yield made
    lab.pct("exec", vmid, "--", "rm", "-r", made)


def test_pushed_file_belongs_to_the_containers_users(lab: Lab, vmid: str, inside: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(300_000))
    done = lab.pct("push", vmid, str(source), f"{inside}/a b", "--user", "www-data", "--group", "adm", "--perms", "640")
    assert done.returncode == 0, done.stderr
    assert lab.pct("exec", vmid, "--", "stat", "-c", "%a %U %G", f"{inside}/a b").stdout == "640 www-data adm\n"
    back = tmp_path / "back"
    done = lab.pct("pull", vmid, f"{inside}/a b", str(back), "--perms", "0x180")
    assert done.returncode == 0, done.stderr
    assert back.read_bytes() == source.read_bytes()
    assert back.stat().st_mode & 0o7777 == 0x180


def test_push_keeps_mode_and_owner_of_an_existing_file(lab: Lab, vmid: str, inside: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("long enough to be cut")
    assert lab.pct("push", vmid, str(source), f"{inside}/file").returncode == 0
    assert lab.pct("exec", vmid, "--", "stat", "-c", "%a %U", f"{inside}/file").stdout == "644 root\n"
    lab.pct("exec", vmid, "--", "chmod", "600", f"{inside}/file")
    source.write_text("short")
    assert lab.pct("push", vmid, str(source), f"{inside}/file").returncode == 0
    assert lab.pct("exec", vmid, "--", "stat", "-c", "%a %s", f"{inside}/file").stdout == "600 5\n"


def test_push_does_not_follow_a_link_out_of_the_container(lab: Lab, vmid: str, inside: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("the node's")
    lab.pct("exec", vmid, "--", "ln", "-s", str(outside), f"{inside}/link")
    done = lab.pct("push", vmid, "/etc/hostname", f"{inside}/link")
    assert done.returncode == 255
    assert outside.read_text() == "the node's"


def test_stopped_container(lab: Lab, vmid: str, tmp_path: Path) -> None:
    assert lab.pct("stop", vmid).returncode == 0
    try:
        assert lab.pct("status", vmid).stdout == "status: stopped\n"
        assert lab.pct("list").stdout.splitlines()[1].split()[1] == "stopped"
        for arguments, words in (
            (["exec", vmid, "--", "true"], f"container '{vmid}' not running!\n"),
            (["stop", vmid], f"CT {vmid} not running\n"),
            (["push", vmid, "/etc/hostname", "/root/x"], "can only push files to a running CT\n"),
            (["pull", vmid, "/etc/hostname", str(tmp_path / "x")], "can only pull files from a running VM\n"),
        ):
            done = lab.pct(*arguments)
            assert (done.returncode, done.stdout, done.stderr) == (255, "", words)
        assert not (tmp_path / "x").exists()
    finally:
        started = lab.ssh(f"pct start {vmid}")
    assert (started.returncode, started.stdout + started.stderr) == (0, "")
    lab.pct("exec", vmid, "--", "sh", "-c", "until systemctl is-system-running --wait; do sleep 0.2; done")
    assert lab.pct("exec", vmid, "--", "systemctl", "is-system-running").stdout == "running\n"
