"""What stands in the way of a start, shown by real listeners and processes; and which process is an orphan of ours."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sglang_pve import foreign, host, occupied, release
from sglang_pve.server import Server

STACK = "0123456789ab"
MANIFEST = {
    "schema": 1,
    "stack": {"id": STACK, "name": "lab", "engine": "0.5.11"},
    "model": {"path": "/m", "source": "/m", "digest": "d", "name": "m"},
    "plan": {"profile": "batch", "card": "c", "argv": [], "env": {}, "pools": {}},
}
SLEEP = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"


@pytest.fixture
def root(tmp_path):
    """Where a release and its stack are, whose python is this one."""
    files = {"run": "#!/bin/sh\n", "ready": "#!/bin/sh\n", "unit.conf": ""}
    release.write(tmp_path / "releases", MANIFEST, files)
    python = tmp_path / f"stacks/{STACK}/venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    return tmp_path


def name_of(root):
    return next((root / "releases").iterdir()).name


@pytest.fixture
def left_behind(root):
    """Start a program whose parent ends at once; its pid."""
    pids = []

    def start(program, **environment):
        note = root / f"pid{len(pids)}"
        code = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n{SLEEP}"
        command = ["setsid", "--fork", program, "-c", code]
        subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, check=True)
        while not note.exists() or not note.read_text():
            time.sleep(0.02)
        pids.append(int(note.read_text()))
        if foreign.read_process(pids[-1]).parent != 1 or host.unit_of(pids[-1]):
            pytest.skip("what loses its parent here does not come to process 1, or belongs to a unit")
        return pids[-1]

    yield start
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


def test_orphan_is_proven_by_its_release_and_stack(root, left_behind):
    python = str(root / f"stacks/{STACK}/venv/bin/python")
    assert foreign.is_orphan(left_behind(python, SGLANG_PVE_RELEASE=name_of(root)), root)
    assert not foreign.is_orphan(left_behind(python), root), "no release in its environment"
    assert not foreign.is_orphan(left_behind(python, SGLANG_PVE_RELEASE="ffffffffffff"), root), "no such release"
    assert not foreign.is_orphan(left_behind(python, SGLANG_PVE_RELEASE="../releases"), root)
    assert not foreign.is_orphan(left_behind(sys.executable, SGLANG_PVE_RELEASE=name_of(root)), root), "another program"


def test_child_of_somebody_is_no_orphan(root):
    python = str(root / f"stacks/{STACK}/venv/bin/python")
    environment = {**os.environ, "SGLANG_PVE_RELEASE": name_of(root)}
    with subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as child:
        assert not foreign.is_orphan(child.pid, root)
        child.communicate(b"\n")


def test_orphan_that_does_not_listen_is_killed(root, left_behind, monkeypatch):
    monkeypatch.setattr(occupied, "END_S", 0.5)
    pid, other = left_behind(sys.executable), left_behind(sys.executable)
    occupied.end([pid])
    end = time.monotonic() + 10
    while (one := foreign.read_process(pid)) is not None and one.state != "Z":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert foreign.read_process(other).state != "Z"


def test_ports_of_others_are_named():
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        found = occupied._ports(Server(3), {"port": str(port), "nccl_port": "1"})
        assert [pid for pid, _ in found] == [os.getpid()]
        assert found[0][1].startswith(f"port {port} is held by pid {os.getpid()}")
        assert occupied.misplaced(Server(3), port, "GPU-x").startswith(f"port {port} is answered by pid {os.getpid()}")
        assert occupied._ports(Server(3), {"port": "1"}) == []
