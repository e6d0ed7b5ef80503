"""pve_passthrough on a node's files: what it writes, keeps, and restarts; and its playbook in the lab."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab_fixture import PROJECT, Lab
from tests.unit.test_pve_node import CONFIG, Node

PVESH = '#!/bin/sh\necho \'{"status": "%s", "pid": %d}\'\n'
PCT = '#!/bin/sh\necho "$@" >>"${0%%/*}/calls"\nexit %d\n'
NEW = CONFIG.replace(
    "dev0: /dev/nvidia0\n",
    "dev0: /dev/nvidia0,mode=0666\ndev1: /dev/nvidia1,mode=0666\ndev2: /dev/nvidia-uvm,mode=0666\n"
    "dev3: /dev/nvidiactl,mode=0666\n",
)


class Place(Node):
    """A node whose container has the devices of this machine, so none of the driver."""

    @property
    def file(self):
        return self.dir / "node/pve/lxc/207.conf"

    @property
    def calls(self):
        path = self.dir / "node/bin/calls"
        return path.read_text() if path.exists() else ""

    def state(self, status="running", reboot=0):
        self.write("bin/pvesh", PVESH % (status, os.getpid()))
        self.write("bin/pct", PCT % reboot)

    def run(self, *options, **more):
        arguments = {"vmid": 207, "root": str(self.root), "backup_dir": str(self.dir / "kept"), **more}
        ansible = str(Path(sys.executable).with_name("ansible"))
        command = [ansible, "-m", "pve_passthrough", "-a", json.dumps(arguments), "-o", "-i", "localhost,", "localhost"]
        python = f"ansible_python_interpreter={sys.executable}"
        done = subprocess.run(
            [*command, "-c", "local", "-e", python, *options], cwd=PROJECT, capture_output=True, text=True, check=False
        )
        return json.loads(done.stdout[done.stdout.index("{") :].splitlines()[0])


@pytest.fixture
def place(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")
    monkeypatch.setenv("PATH", f"{tmp_path}/node/bin:{os.environ['PATH']}")
    made = Place(tmp_path)
    made.state()
    return made


def test_check_mode_shows_it_and_a_run_writes_it_once_and_keeps_the_file(place):
    shown = place.run("--check")
    assert (shown["changed"], shown["restart_needed"], shown["backup_file"]) == (True, True, "")
    assert place.file.read_text() == CONFIG and not (place.dir / "kept").exists()
    done = place.run()
    assert (done["changed"], done["restarted"], done["restart_needed"]) == (True, False, True)
    assert place.file.read_text() == NEW
    assert Path(done["backup_file"]).read_text() == CONFIG
    assert sorted(path.name for path in place.file.parent.iterdir()) == ["207.conf"]
    # The file is as it should be now; the container that runs is not.
    again = place.run()
    assert (again["changed"], again["backup_file"], again["restart_needed"]) == (False, "", True)
    assert place.calls == ""


def test_a_restart_only_where_asked_and_needed(place):
    place.run()
    assert place.run("--check", restart=True)["restarted"] is True
    assert place.calls == ""
    done = place.run(restart=True)
    assert (done["changed"], done["restarted"], done["restart_needed"]) == (True, True, False)
    assert place.calls == "reboot 207\n"
    place.state("stopped")
    assert (place.run(restart=True)["restarted"], place.calls) == (False, "reboot 207\n")


@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        ("lock: backup\n", {}, "stays as it was: the configuration has the lock backup"),
        (CONFIG, {"cards": [6]}, "the node has no /dev/nvidia6"),
        (CONFIG, {"vmid": 999}, "expected container 999 on this node"),
    ],
)
def test_what_it_refuses_leaves_the_file(place, config, more, words):
    place.file.write_text(config)
    refused = place.run(**more)
    assert words in refused["msg"]
    assert place.file.read_text() == config and not (place.dir / "kept").exists()


def test_a_restart_that_fails_is_told(place):
    place.state(reboot=5)
    assert "the file is written, but pct reboot 207 ended with 5" in place.run(restart=True)["msg"]
    assert place.file.read_text() == NEW


@pytest.mark.container
def test_the_playbook_writes_only_where_it_may(lab: Lab):
    tool = str(Path(sys.executable).with_name("ansible-playbook"))

    def run(*options, **extra):
        command = [tool, "-i", str(lab.inventory), "playbooks/passthrough.yml", "-e", json.dumps(extra), *options]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        return done.returncode, " ".join(done.stdout.split())

    file = lab.dir / f"node/pve/lxc/{lab.vmid}.conf"
    before = file.read_text()
    try:
        file.write_text(before.replace("dev5: /dev/nvidia5,mode=0666\n", ""))
        status, said = run()
        assert status == 2 and "sglang_manage_passthrough is false" in said
        status, said = run("--check", "--diff", sglang_manage_passthrough=True)
        assert status == 0 and "+dev5: /dev/nvidia5,mode=0666" in said
        assert "dev5:" not in file.read_text()
        status, said = run(sglang_manage_passthrough=True)
        assert status == 0 and "must be restarted" in said
        assert sorted(file.read_text().splitlines()) == sorted(before.splitlines())
        status, said = run(sglang_manage_passthrough=True)
        assert status == 0 and "changed=0" in said and "must be restarted" not in said
    finally:
        file.write_text(before)
        for copy in Path("/var/backups/sglang-pve").glob(f"{lab.vmid}.conf.*"):
            copy.unlink()
