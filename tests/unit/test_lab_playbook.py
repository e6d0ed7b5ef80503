"""playbooks/lab.yml: a second run changes nothing, an interrupted one can be repeated, and removal leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab_fixture import Lab, absent, own_lab, present

pytestmark = pytest.mark.container

PROJECT = Path(__file__).resolve().parents[2]
MODELS = ("qwen3.6-lab", "qwen3.6-lab-no-mtp")


@pytest.fixture
def unmade() -> Iterator[Lab]:
    """A lab that is not made yet and that the test may spoil."""
    with own_lab(first_vmid=301) as lab:
        yield lab


def changes(run: subprocess.CompletedProcess[str]) -> list[str]:
    """The names of the tasks of a successful run that changed something."""
    assert run.returncode == 0, run.stdout + run.stderr
    tasks = run.stdout.split("\nTASK [")[1:]
    return [task.partition("]")[0] for task in tasks if "\nchanged: " in task]


def traces(lab: Lab) -> list[str]:
    """Whatever of a lab can be found on this machine."""
    found = [str(path) for path in (lab.dir, Path(f"/run/lxc/lock{lab.dir}")) if path.exists()]
    links = (f"sglab{lab.vmid}", f"veth{lab.vmid}i0")
    found += [name for name in links if Path("/sys/class/net", name).exists()]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(lab.dir) in line]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/sglang-lab-{lab.vmid}")]
    first_id = 100000 + 65536 * (lab.vmid - 200)
    for grants in ("/etc/subuid", "/etc/subgid"):
        found += [f"{grants}: {line}" for line in Path(grants).read_text().splitlines() if str(first_id) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (process / "cgroup").read_text()
        except OSError:  # it has ended
            continue
        if f"{lab.dir}/" in command or f"sglang-lab-{lab.vmid}/" in groups:
            found.append(f"process {process.name}: {command}")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", lab.ssh_port)) == 0:
            found.append(f"port {lab.ssh_port}")
    return found


def interrupt(lab: Lab, state: str, at: Path) -> None:
    """Start making (or removing) the lab; kill Ansible with all its children as soon as `at` exists (or does not)."""
    command = lab.playbook_command("-e", f"lab_state={state}")
    tool = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, cwd=PROJECT)
    try:
        while at.exists() != (state == "present"):
            assert tool.poll() is None, "the playbook ended before it could be interrupted"
            time.sleep(0.01)
    finally:
        os.killpg(tool.pid, signal.SIGKILL)
        tool.communicate()


def test_second_run_changes_nothing(lab: Lab) -> None:
    assert changes(lab.playbook()) == []


def test_wheelhouse_and_stack_hold_what_a_deployment_needs(lab: Lab) -> None:
    names = sorted(path.name for path in (lab.dir / "wheelhouse").iterdir())
    assert names[0] == "sglang-0.5.11-py3-none-any.whl"
    assert re.fullmatch(r"uv-[\d.]+-py3-none-manylinux.*\.whl", names[1])
    inside = lab.pct("exec", str(lab.vmid), "--", "stat", "-c", "%U %n", "/models/qwen3.6-lab/config.json")
    assert inside.stdout == "root /models/qwen3.6-lab/config.json\n"
    indexes = [(lab.rootfs / "models" / name / "model.safetensors.index.json").read_text() for name in MODELS]
    assert [("mtp.fc.weight" in index) for index in indexes] == [True, False]


def test_removal_leaves_no_trace_of_a_lab_in_use(unmade: Lab) -> None:
    present(unmade)
    assert len(traces(unmade)) > 5
    session = subprocess.Popen(unmade.ssh_command(f"pct exec {unmade.vmid} -- sleep 1000"), stdin=subprocess.DEVNULL)
    log = unmade.dir / "node/remote-commands.log"
    while not log.exists():
        assert session.poll() is None
        time.sleep(0.05)
    removed = unmade.playbook("-e", "lab_state=absent")
    assert len(changes(removed)) > 5
    assert traces(unmade) == []
    assert session.wait(timeout=60) != 0
    assert changes(unmade.playbook("-e", "lab_state=absent")) == []


def test_interrupted_run_can_be_repeated(unmade: Lab) -> None:
    container = unmade.dir / "lxc" / str(unmade.vmid)
    interrupt(unmade, "present", container / "rootfs.new/etc")
    assert not (container / "rootfs").exists()
    present(unmade)
    assert unmade.ssh(f"pct exec {unmade.vmid} -- systemctl is-system-running").stdout == "running\n"
    assert not (container / "rootfs.new").exists()


@pytest.mark.parametrize("at", [".sglang-pve-lab/bridge", "lxc/{vmid}/config", "node/sshd.pid"])
def test_half_made_lab_is_removed_even_at_the_second_attempt(unmade: Lab, at: str) -> None:
    interrupt(unmade, "present", unmade.dir / at.format(vmid=unmade.vmid))
    interrupt(unmade, "absent", unmade.dir / at.format(vmid=unmade.vmid))
    absent(unmade)
    assert traces(unmade) == []


def test_directory_of_somebody_else_is_left_alone(unmade: Lab, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("precious")
    for state in ("present", "absent"):
        refused = unmade.playbook("-e", f"lab_dir={theirs}", "-e", f"lab_state={state}")
        assert refused.returncode != 0
        assert "no lab made it and nothing was touched" in re.sub(r"\s+", " ", refused.stdout)
    assert [path.name for path in theirs.iterdir()] == ["file"]
    assert traces(unmade) == []


def test_directory_that_the_container_cannot_reach_is_refused(unmade: Lab, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    refused = unmade.playbook("-e", f"lab_dir={closed}/lab")
    assert refused.returncode != 0
    assert "cannot pass through the parents" in re.sub(r"\s+", " ", refused.stdout)
    assert unmade.playbook("-e", f"lab_dir={closed}/lab", "-e", "lab_state=absent").returncode == 0
    assert list(closed.iterdir()) == []
    assert traces(unmade) == []


def test_cache_goes_only_when_asked(unmade: Lab, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "rootfs.tar"
    cached.parent.mkdir()
    cached.write_text("costs half a minute to make")
    options = ["-e", "lab_state=absent", "-e", f"lab_cache_dir={cached.parent}"]
    assert changes(unmade.playbook(*options)) == []
    assert cached.exists()
    assert changes(unmade.playbook(*options, "-e", "lab_purge_cache=true")) == ["Remove the cache"]
    assert not cached.parent.exists()


def test_bridge_of_somebody_else_is_left_alone(unmade: Lab) -> None:
    name = f"sglab{unmade.vmid}"
    subprocess.run(["ip", "link", "add", "name", name, "type", "bridge"], check=True)
    try:
        refused = unmade.playbook()
        assert refused.returncode != 0
        assert f"already has a link {name}" in re.sub(r"\s+", " ", refused.stdout)
        absent(unmade)
        assert traces(unmade) == [name]
    finally:
        subprocess.run(["ip", "link", "delete", "dev", name], check=True)
