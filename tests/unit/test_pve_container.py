"""What the lab's node tells over SSH of its container, and of who uses the cards from within."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab_fixture import PROJECT, Lab

pytestmark = pytest.mark.container


def info(lab: Lab) -> dict:
    tool = str(Path(sys.executable).with_name("ansible"))
    arguments = json.dumps({"vmid": lab.vmid, "root": str(lab.dir / "node/root")})
    command = [tool, "-i", str(lab.inventory), "lab-node", "-m", "pve_container_info", "-a", arguments, "-o"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.partition("=> ")[2])


def test_the_node_knows_the_container_and_who_in_it_uses_a_card(lab: Lab):
    uuid = lab.ssh("nvidia-smi --query-gpu=uuid --format=csv,noheader -i 3").stdout.strip()
    claim = f"--setenv=CUDA_VISIBLE_DEVICES={uuid} --setenv=SGLANG_LAB_GPU_MIB=2500"
    start = f"systemd-run --quiet --unit=facts-user {claim} bash -c 'exec -a sglang_lab_scheduler sleep 300'"
    assert lab.pct("exec", str(lab.vmid), "--", "sh", "-c", start).returncode == 0
    try:
        for _ in range(20):
            seen = info(lab)
            if seen["pve"]["node"]["gpu_processes"]:
                break
    finally:
        lab.pct("exec", str(lab.vmid), "--", "systemctl", "stop", "facts-user")
    node, container = seen["pve"]["node"], seen["pve"]["container"]
    assert seen["notes"] == []
    assert [(user["gpu_uuid"], user["memory_mib"], user["vmid"]) for user in node["gpu_processes"]] == [
        (uuid, 2500, lab.vmid)
    ]
    assert node["pve_version"] == "8.4.1" and len(node["gpus"]) == 8
    assert (container["status"], container["running_config_pending"]) == ("running", False)
    assert container["config"]["devices"][0]["path"] == "/dev/nvidia0"


def test_a_change_of_the_file_since_the_start_is_pending(lab: Lab):
    file = lab.dir / f"node/pve/lxc/{lab.vmid}.conf"
    before = file.read_text()
    try:
        file.write_text(before + "lxc.cgroup2.devices.allow: c 510:* rwm\n")
        container = info(lab)["pve"]["container"]
    finally:
        file.write_text(before)
    assert container["running_config_pending"] is True
    assert container["config"]["allow"] == [{"type": "c", "major": 510, "minor": "*", "access": "rwm"}]
