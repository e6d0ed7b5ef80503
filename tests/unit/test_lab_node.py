"""The lab's node as ssh shows it: the log of remote commands, sftp, pvesh, and who may come in."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.lab_fixture import Lab

pytestmark = pytest.mark.container


def log_lines(lab: Lab) -> list[str]:
    return (lab.dir / "node/remote-commands.log").read_text().splitlines()


def pvesh(lab: Lab, path: str) -> object:
    done = lab.ssh(f"pvesh get {path} --output-format json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_remote_command_runs_as_sshd_would_run_it(lab: Lab) -> None:
    done = lab.ssh('echo out; echo err >&2; read word; echo "$word"; exit 5', stdin="given\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, "out\ngiven\n", "err\n")


def test_standins_come_first_on_the_path(lab: Lab) -> None:
    tools = ["pct", "pvesh", "nvidia-smi"]
    found = lab.ssh("command -v " + " ".join(tools)).stdout.splitlines()
    assert found == [str(lab.dir / "node/bin" / tool) for tool in tools]


def test_each_remote_command_is_one_line_of_the_log(lab: Lab) -> None:
    before = len(log_lines(lab))
    lab.ssh("printf 'a\\n'\necho \"b  c\"")
    lab.ssh("true")
    first, second = log_lines(lab)[before:]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} printf 'a\\\\n'\\necho \"b  c\"", first)
    assert second.endswith(" true")


def test_sftp_works_and_is_logged(lab: Lab, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(100_000))
    command = lab.ssh_command("")
    command[0:1] = ["sftp", "-b", "-", "-q"]
    command[command.index("-p")] = "-P"
    command[command.index("--") :] = []
    command.append(command.pop(command.index("root@127.0.0.1")))
    subprocess.run(command, input=f"put {source} {target}\n", text=True, check=True, capture_output=True)
    assert target.read_bytes() == source.read_bytes()
    assert log_lines(lab)[-1].endswith(" /usr/lib/openssh/sftp-server")


def test_only_the_labs_key_comes_in_and_only_on_loopback(lab: Lab, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    command = [str(tmp_path / "other") if word == str(lab.key) else word for word in lab.ssh_command("true")]
    denied = subprocess.run([*command[:1], "-o", "IdentitiesOnly=yes", *command[1:]], capture_output=True, check=False)
    assert denied.returncode == 255
    listening = subprocess.run(["ss", "-Hltn", f"sport = :{lab.ssh_port}"], capture_output=True, text=True, check=True)
    assert [line.split()[3] for line in listening.stdout.splitlines()] == [f"127.0.0.1:{lab.ssh_port}"]


def test_pvesh_knows_node_and_container(lab: Lab) -> None:
    node = os.uname().nodename
    assert [entry["node"] for entry in pvesh(lab, "/nodes")] == [node]
    assert pvesh(lab, f"/nodes/{node}/status")["memory"]["total"] > 0
    assert pvesh(lab, "nodes/localhost/status")["current-kernel"]["release"] == os.uname().release
    [container] = pvesh(lab, f"/nodes/{node}/lxc")
    assert (container["vmid"], container["status"], container["name"]) == (lab.vmid, "running", f"ct{lab.vmid}")
    current = pvesh(lab, f"/nodes/{node}/lxc/{lab.vmid}/status/current")
    assert Path(f"/proc/{current['pid']}/comm").read_text() == "systemd\n"
    config = pvesh(lab, f"/nodes/{node}/lxc/{lab.vmid}/config")
    assert (config["unprivileged"], config["cores"], config["dev0"]) == (1, 32, "/dev/nvidia0,mode=0666")
    assert re.fullmatch("[0-9a-f]{40}", config["digest"])
    assert set(pvesh(lab, "/version")) == {"release", "repoid", "version"}


def test_pvesh_prints_tables_where_no_json_is_asked_for(lab: Lab) -> None:
    table = lab.ssh("pvesh get /version").stdout.splitlines()
    assert [word.strip() for word in table[1].strip("|").split("|")] == ["key", "value"]
    assert lab.ssh("pvesh get /version --noborder --noheader").stdout.split()[0] == "release"


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("get /cluster/nonsense", 1, "No 'get' handler defined for '/cluster/nonsense'\n"),
        ("get /nodes/localhost/lxc/99999/config", 255, "/lxc/99999.conf' does not exist\n"),
        ("get /nodes/elsewhere/lxc", 255, "hostname lookup 'elsewhere' failed"),
        ("get", 255, "400 not enough arguments\n"),
        ("get /version --output-format xml", 255, "output-format: value 'xml'"),
        ("create /nodes", 255, "the lab's pvesh only knows 'get', not 'create'\n"),
    ],
)
def test_pvesh_refusals(lab: Lab, command: str, status: int, words: str) -> None:
    done = lab.ssh(f"pvesh {command}")
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr


def test_node_and_container_show_the_same_cards_and_have_faults_of_their_own(lab: Lab) -> None:
    inside = ["exec", str(lab.vmid), "--"]
    assert lab.ssh("nvidia-smi -L").stdout == lab.pct(*inside, "nvidia-smi", "-L").stdout != ""
    fault = "/etc/sglang-lab/nvidia-smi/mode"
    lab.pct(*inside, "sh", "-c", f"echo mismatch >{fault}")
    try:
        assert lab.pct(*inside, "nvidia-smi").returncode == 18
        assert lab.ssh("nvidia-smi").returncode == 0
    finally:
        lab.pct(*inside, "rm", fault)


def test_memory_of_a_process_in_the_container_is_seen_from_both_sides(lab: Lab) -> None:
    inside = ["exec", str(lab.vmid), "--"]
    query = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 4"
    uuid = lab.ssh("nvidia-smi --query-gpu=uuid --format=csv,noheader -i 4").stdout.strip()
    unit = ["systemd-run", "--quiet", "--unit=lab-claim", f"--setenv=CUDA_VISIBLE_DEVICES={uuid}"]
    program = ["sh", "-c", "sleep 1000; : sglang_lab_scheduler"]
    assert lab.pct(*inside, *unit, "--setenv=SGLANG_LAB_GPU_MIB=1234", *program).returncode == 0
    try:
        assert lab.pct(*inside, *query.split()).stdout == "1234\n"
        assert lab.ssh(query).stdout == "1234\n"
    finally:
        lab.pct(*inside, "systemctl", "stop", "lab-claim")
    assert lab.ssh(query).stdout == "0\n"
