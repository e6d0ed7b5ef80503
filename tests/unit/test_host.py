"""Facts of the container: this machine's real ones, and the files of other kinds of machine."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_pve import host
from sglang_pve.command import Output

GIB = 1024**3


def test_facts_of_this_machine(tmp_path: Path) -> None:
    facts = host.facts([str(tmp_path / "not/yet/there"), "/"])
    assert facts["python"] == platform.python_version()
    assert facts["glibc"] == platform.libc_ver()[1]
    assert facts["os"]["id"]
    usage = os.statvfs(tmp_path)
    assert facts["disks"][str(tmp_path / "not/yet/there")]["total_bytes"] == usage.f_blocks * usage.f_frsize
    assert facts["disks"]["/"]["mount"] == "/"
    assert facts["memory"]["total_bytes"] >= facts["memory"]["available_bytes"] > 0
    assert "rw" in facts["mounts"]["/tmp"]["flags"]


# --- memory


def machine(tmp_path: Path, self_cgroup: str, files: dict[str, str], total_gib: int = 64) -> dict:
    """memory() of a machine with 60 GiB available and these control group files."""
    proc, cgroup = tmp_path / "proc", tmp_path / "sys/fs/cgroup"
    (proc / "self").mkdir(parents=True)
    kib = GIB // 1024
    (proc / "meminfo").write_text(f"MemTotal: {total_gib * kib} kB\nMemFree: 9 kB\nMemAvailable: {60 * kib} kB\n")
    (proc / "self/cgroup").write_text(self_cgroup)
    for name, text in files.items():
        (cgroup / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroup / name).write_text(text)
    return host.memory(tmp_path)


def test_memory_without_a_limit(tmp_path: Path) -> None:
    found = machine(tmp_path, "0::/system.slice/x.service\n", {"memory.max": "max\n"})
    assert found == {
        "limit_bytes": None,
        "total_bytes": 64 * GIB,
        "available_bytes": 60 * GIB,
        "used_bytes": 4 * GIB,
    }


def test_memory_limit_of_a_parent_group_v2(tmp_path: Path) -> None:
    files = {
        "memory.max": f"{40 * GIB}\n",
        "memory.current": f"{30 * GIB}\n",
        # 12 GiB of files, of which 10 GiB lie in tmpfs and cannot be given back.
        "memory.stat": f"file {12 * GIB}\nshmem {10 * GIB}\nactive_file {1 * GIB}\ninactive_file {1 * GIB}\n",
        "system.slice/x.service/memory.max": "max\n",
    }
    found = machine(tmp_path, "0::/system.slice/x.service\n", files)
    assert (found["limit_bytes"], found["used_bytes"]) == (40 * GIB, 28 * GIB)
    assert found["available_bytes"] == 12 * GIB


def test_memory_limit_v1_and_its_word_for_none(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/lxc/memory.limit_in_bytes": f"{8 * GIB}\n",
        "memory/lxc/memory.usage_in_bytes": f"{7 * GIB}\n",
        "memory/lxc/memory.stat": f"active_file 0\ntotal_active_file {3 * GIB}\ntotal_inactive_file {1 * GIB}\n",
    }
    found = machine(tmp_path, "4:memory:/lxc\n1:name=systemd:/lxc\n0::/\n", files)
    assert (found["limit_bytes"], found["used_bytes"], found["available_bytes"]) == (8 * GIB, 3 * GIB, 5 * GIB)


def test_memory_limit_that_is_shown_as_total(tmp_path: Path) -> None:
    files = {
        "memory.max": f"{64 * GIB}",
        "memory.current": f"{2 * GIB}",
        "memory.stat": "active_file 0\ninactive_file 0\n",
    }
    assert machine(tmp_path, "0::/\n", files)["limit_bytes"] == 64 * GIB


# --- processors


def test_the_cpus_that_may_be_used_now() -> None:
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(all_of_them)})
    try:
        assert host.cpus() == str(max(all_of_them))
    finally:
        os.sched_setaffinity(0, all_of_them)
    assert host.cpus(Path("/nowhere")) is None


# --- mounts


def test_mounts() -> None:
    text = (
        "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "22 21 0:20 / /run rw,nosuid,nodev,noexec - tmpfs tmpfs rw,size=10%\n"
        "23 21 0:21 / /srv/two\\040words ro - ext4 /dev/vdb rw\n"
        "24 21 0:22 / /run rw,nosuid - tmpfs later rw\n"
    )
    mounts = host.parse_mountinfo(text)
    assert [mount["mount"] for mount in mounts] == ["/", "/run", "/srv/two words", "/run"]
    assert mounts[1] == {"mount": "/run", "fs": "tmpfs", "flags": ["rw", "nosuid", "nodev", "noexec"]}
    assert host._mount_of("/run", mounts)["flags"] == ["rw", "nosuid"], "the later mount is the one that is seen"
    assert host._mount_of("/runner", mounts)["mount"] == "/"


# --- listeners and servers


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_who_holds_a_port(family: int, address: str) -> None:
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        found = [entry for entry in host.listeners() if entry["port"] == port]
    assert [(entry["address"], entry["pid"]) for entry in found] == [(address, os.getpid())]
    assert "python" in found[0]["command"] or "pytest" in found[0]["command"]
    assert not [entry for entry in host.listeners() if entry["port"] == port]


def test_a_connection_is_no_listener() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   {}: {} 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 {} 1 0 100 0 0 10 0\n"
    text = head + line.format(0, "0100007F:7530", "0A", 11) + line.format(1, "0100007F:7531", "01", 12)
    assert host.parse_tcp(text) == {"11": ("127.0.0.1", 30000)}
    six = head + line.format(0, "0000000000000000FFFF00000100007F:0050", "0A", 13)
    assert host.parse_tcp(six) == {"13": ("127.0.0.1", 80)}
    assert host.parse_tcp("") == {}


def test_running_servers_without_their_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    environment = {"SGLANG_PVE_RELEASE": "r-123", "CUDA_VISIBLE_DEVICES": "GPU-abc", "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--api-key", "hunter2"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found = [server for server in host.servers() if server["release"] == "r-123"]
    finally:
        process.communicate("\n")
    assert [(server["pid"], server["gpu"]) for server in found] == [(process.pid, "GPU-abc")]
    assert "hunter2" not in found[0]["command"] and "--api-key ***" in found[0]["command"]


def test_command_lines_hide_secrets_and_stay_short(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    cmdline = tmp_path / "7/cmdline"
    cmdline.write_bytes(
        b"serve\0--api-key=one\0--admin-api-key\0two\0--hf_token\0three\0--port\x0030000\0" + b"x" * 500
    )
    line = host.command_line(7, tmp_path)
    assert line.startswith("serve --api-key=*** --admin-api-key *** --hf_token *** --port 30000 xxx")
    assert len(line) == 200
    cmdline.write_bytes(b"")
    (tmp_path / "7/comm").write_text("kworker/0:1\n")
    assert host.command_line(7, tmp_path) == "kworker/0:1"
    assert host.command_line(8, tmp_path) == ""


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/system-sglang.slice/sglang@3.service\n", "sglang@3.service"),
        ("0::/system.slice/sglang@3.service/worker.scope\n", "sglang@3.service"),
        ("9:name=systemd:/system.slice/ssh.service\n8:pids:/x\n0::/\n", "ssh.service"),
        ("0::/user.slice/user-0.slice/session-2.scope\n", "session-2.scope"),
        ("0::/init.scope\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_unit_of_a_process(text: str, unit: str | None) -> None:
    assert host.parse_unit(text) == unit


# --- units

RUNNING = """LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
MainPID=412
NRestarts=2
StateChangeTimestamp=Tue 2026-12-01 03:36:00 UTC
Result=success
ExecMainStatus=0
"""
ABSENT = """MainPID=0
NRestarts=0
ExecMainStatus=0
Result=success
StateChangeTimestamp=
LoadState=not-found
ActiveState=inactive
SubState=dead
UnitFileState=
"""


def test_unit_states_in_one_call() -> None:
    calls = []

    def systemctl(argv, timeout_s):
        calls.append(argv)
        return Output(0, f"{RUNNING}\n{ABSENT}", "")

    states = host.unit_states(["sglang@0.service", "sglang@1.service"], systemctl)
    assert [call[-3:] for call in calls] == [["--", "sglang@0.service", "sglang@1.service"]]
    assert states["sglang@0.service"] == {
        "load": "loaded",
        "active": "active",
        "sub": "running",
        "enabled": "enabled",
        "main_pid": 412,
        "restarts": 2,
        "since": "2026-12-01T03:36:00+00:00",
        "result": "success",
        "exit_status": 0,
        "job": 0,
    }
    absent = states["sglang@1.service"]
    assert (absent["load"], absent["since"], absent["enabled"]) == ("not-found", None, "")
    assert host.unit_states([], systemctl) == {}


@pytest.mark.parametrize(
    "script", ["echo 'System has not been booted with systemd' >&2; exit 1", f"printf '%s' '{RUNNING}'", None]
)
def test_units_that_cannot_be_read_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    if script:
        (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "systemctl").chmod(0o755)
    with pytest.raises(RuntimeError, match="expected systemd as process 1"):
        host.unit_states(["a.service", "b.service"])


def test_runs_on_the_containers_own_python() -> None:
    code = "from sglang_pve import host, gpus; host.facts(['/opt']); gpus.query()"
    environment = {"PYTHONPATH": str(Path(host.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("c++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\nCopyright (C) 2023 Free Software Foundation, Inc.\n", "g++ 13.3"),
        ("c++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.\n", "g++ 12.2"),
        ("clang version 18.1.3\nTarget: x86_64-pc-linux-gnu\n", "clang 18.1"),
        ("", None),
    ],
)
def test_the_compiler_is_asked_what_it_is(tmp_path, monkeypatch, said, name):
    path = tmp_path / "c++"
    path.write_text(f"#!/bin/sh\ncat <<'X'\n{said}X\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert host.compiler() == {"name": name, "path": str(path)}


def test_no_compiler_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.compiler() == {"name": "none", "path": None}
