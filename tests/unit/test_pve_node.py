"""What a node says of its driver and cards: a tree of files, and an nvidia-smi that fails as the real one does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_pve import command, facts, pve_node, shape

PROJECT = Path(__file__).resolve().parents[2]
PCT = '#!/bin/sh\n[ "$*" = "status 207" ] && echo "status: running" || { echo "no $*" >&2; exit 2; }\n'
CONFIG = "memory: 4096\ndev0: /dev/nvidia0\nlxc.cgroup2.devices.allow: c 195:* rwm\n[before]\nmemory: 1\n"


class Node:
    def __init__(self, place: Path):
        self.dir, self.root = place, place / "node/root"
        (place / "lxc/207/rootfs/usr/lib/x86_64-linux-gnu").mkdir(parents=True)
        (place / "node/pve/lxc").mkdir(parents=True)
        shutil.copytree(PROJECT / "lab/standins/bin", place / "node/bin")
        (place / "node/nvidia-smi").mkdir()
        self.write("nvidia-smi/vmid", "207")
        self.write("pve/lxc/207.conf", CONFIG)
        for name in ("pct", "pvesh"):
            self.write(f"bin/{name}", PCT)
        make = [sys.executable, PROJECT / "lab/make_node_root.py", place, "207", "nvidia0,nvidia1,nvidiactl,nvidia-uvm"]
        subprocess.run(make, check=True, capture_output=True)

    def write(self, name: str, content: str) -> None:
        (self.dir / "node" / name).write_text(content)

    def read(self):
        reader = pve_node.Reader(self.root, lambda argv, _seconds: command.run(argv, 3))
        found = pve_node.read(207, reader)
        shape.check({"schema": 1, **found})
        return found["node"], found["container"], reader.notes


@pytest.fixture
def node(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")
    monkeypatch.setenv("PATH", f"{tmp_path}/node/bin:{os.environ['PATH']}")
    return Node(tmp_path)


def test_a_node_that_is_well(node):
    node.write("nvidia-smi/count", "2")
    found, container, notes = node.read()
    assert (found["driver"], found["driver_installed"]) == ("580.159.03", "580.159.03")
    assert found["majors"] == {"nvidia": 1, "nvidia-uvm": 1}
    assert [device["path"][5:] for device in found["device_nodes"]] == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
    assert (found["persistence"], found["gpu_error"], found["gpu_processes"]) == (True, None, [])
    assert [(card["index"], card["minor"], card["bdf"], card["mig"], card["ecc"]) for card in found["gpus"]] == [
        (0, 0, "0000:c1:00.0", False, "Disabled"),
        (1, 1, "0000:c2:00.0", False, "Disabled"),
    ]
    near = [facts.cpu_numbers(cpus) for cpus in found["numa_cpus"].values()]
    assert list(found["numa_cpus"]) == ["0", "1"] and set.union(*near) == os.sched_getaffinity(0)
    assert (container["status"], container["config"]["snapshots"]) == ("running", ["before"])
    # pvesh fails here, and nobody wrote what the container was started with.
    assert "pve_version" not in found and "running_config_pending" not in container
    assert len(notes) == 2 and "pvesh get /nodes/localhost/status" in notes[0] and "/var/lib/lxc/207/config" in notes[1]


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("mismatch", "driver/library version mismatch", "NVML: Driver/library version mismatch"),
        ("no-devices", "no devices", "No devices were found"),
        ("unknown-error", "unknown error", "NVML: Unknown Error"),
        ("hung", "timeout", "no answer within 3 s"),
    ],
)
def test_an_nvidia_smi_that_fails_leaves_what_the_kernel_knows(node, mode, error, words):
    node.write("nvidia-smi/mode", mode)
    found, _, _ = node.read()
    assert found["gpu_error"] == error
    assert words in found["gpu_error_text"]
    assert [card["minor"] for card in found["gpus"]] == [0, 1]
    assert not any("error" in card for card in found["gpus"])
    assert "persistence" not in found and "gpu_processes" not in found


def test_a_card_that_fell_off_the_bus_is_named_by_its_uuid(node):
    node.write("nvidia-smi/mode", "lost:1")
    found, _, _ = node.read()
    assert found["gpu_error"] == "a card fell off the bus"
    first, second = found["gpus"]
    assert "error" not in first and "GPU is lost" in second["error"]
    assert second["uuid"].startswith("GPU-") and second["bdf"] == "0000:c2:00.0"


def test_who_uses_a_card_is_named_and_lives_on(node):
    uuid = pve_node.gpus.query()["gpus"][0]["uuid"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, "SGLANG_LAB_GPU_MIB": "7000"}
    command_line = ["bash", "-c", "exec -a sglang_lab_scheduler sleep 60", "--api-key", "hidden"]
    with subprocess.Popen(command_line, env=environment) as process:
        try:
            for _ in range(100):
                users = node.read()[0]["gpu_processes"]
                if users:
                    break
            assert [(user["pid"], user["gpu_uuid"], user["memory_mib"], user["vmid"]) for user in users] == [
                (process.pid, uuid, 7000, None)
            ]
            assert "sglang_lab_scheduler" in users[0]["command"] and "hidden" not in users[0]["command"]
            assert process.poll() is None
        finally:
            process.kill()


def test_a_node_without_any_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    reader = pve_node.Reader(tmp_path)
    found = pve_node.read(207, reader)
    shape.check({"schema": 1, **found})
    assert found["node"]["gpu_error"] == "absent" and found["node"]["device_nodes"] == []
    assert not {"driver", "majors", "gpus", "persistence"} & set(found["node"])
    assert found["container"] == {"vmid": 207}
    said = " | ".join(reader.notes)
    for word in ("modinfo", "pct", "pvesh", "/proc/devices", "/etc/pve/lxc/207.conf"):
        assert word in said


def test_a_configuration_that_cannot_be_read_as_a_file_is_asked_for_as_it_is_now(node):
    (node.dir / "node/pve/lxc/207.conf").unlink()
    asked = "get /nodes/localhost/lxc/207/config --current 1 --output-format json"
    node.write("bin/pvesh", f'#!/bin/sh\n[ "$*" = "{asked}" ] && echo \'{{"memory": 8192}}\'\n')
    _, container, _ = node.read()
    assert container["config"]["memory_mib"] == 8192


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\nGCC version: 12\n", "580.95.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (dvs)\n", "580.159.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release\n", "570.86.15"),
        ("", None),
    ],
)
def test_the_loaded_driver(text, driver):
    assert pve_node.loaded_driver(text) == driver


def test_majors_of_old_and_new_drivers():
    text = "Character devices:\n  1 mem\n195 nvidia-frontend\n236 nvidia-caps\n511 nvidia-uvm\n510 nvidia-nvswitch\n\n"
    assert pve_node.majors(text + "Block devices:\n259 nvidia\n") == {
        "nvidia": 195,
        "nvidia-caps": 236,
        "nvidia-uvm": 511,
    }
    assert pve_node.majors("Character devices:\n195 nvidia\n") == {"nvidia": 195}


@pytest.mark.parametrize(
    ("cgroup", "vmid"),
    [
        ("0::/lxc/200/ns/system.slice/sglang@0.service\n", 200),
        ("0::/lxc/1234\n", 1234),
        ("12:devices:/lxc/201\n0::/\n", 201),
        ("0::/system.slice/ollama.service\n", None),
        ("0::/lxc.monitor/200\n", None),
        ("", None),
    ],
)
def test_the_container_of_a_process(cgroup, vmid):
    assert pve_node.container_of(cgroup) == vmid
