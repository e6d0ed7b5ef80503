"""GPU facts from an nvidia-smi that answers, fails and hangs as the real one does (scripts on PATH)."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_pve import gpus

NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
CARD = "rtx-pro-6000-blackwell-workstation-edition-96gb-sm120"


def row(index: int, **changes: str) -> str:
    fields = {
        "index": str(index),
        "uuid": f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd",
        "name": NAME,
        "total": "97887",
        "used": "14",
        "driver": "580.159.03",
        "cap": "12.0",
        "bus": f"00000000:{index + 1:X}1:00.0",
        "mig": "[N/A]",
        "ecc": "Disabled",
        "persistence": "Enabled",
        **changes,
    }
    return ", ".join(fields.values())


# As 580 drivers print it in a container of eight cards and one NIC (two shown); the header is underlined there.
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tNODE\t0-31,64-95\t0\t\tN/A\n"
    "GPU1\tSYS\t X \tSYS\t32-63,96-127\t1\t\tN/A\n"
    "NIC0\tNODE\tSYS\t X \t\t\t\t\n\n"
    "Legend:\n\n  X    = Self\n"
)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put an nvidia-smi on PATH that answers each kind of call with a snippet of shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(gpu: str, apps: str = "true", topo: str = "false") -> None:
        script = f'case "$1" in\n--query-gpu=*) {gpu};;\n--query-compute-apps=*) {apps};;\ntopo) {topo};;\nesac\n'
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + script)
        (tmp_path / "nvidia-smi").chmod(0o755)

    return write


def say(text: str, rc: int = 0) -> str:
    return f"cat <<'END'\n{text}\nEND\nexit {rc}"


def test_eight_identical_cards(smi, tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    for index in range(8):
        device = sysfs / f"0000:{index + 1:x}1:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{index // 4}\n")
    smi(say("\n".join(row(index) for index in range(8))), say(f"4711, {row(3).split(', ')[1]}, 90210, python -c a, b"))
    facts = gpus.query(sysfs=sysfs)
    assert (facts["status"], facts["message"], facts["driver"]) == ("ok", "", "580.159.03")
    assert [gpu["index"] for gpu in facts["gpus"]] == list(range(8))
    assert [gpu["numa_node"] for gpu in facts["gpus"]] == [0] * 4 + [1] * 4
    assert len({gpu["uuid"] for gpu in facts["gpus"]}) == 8
    assert facts["gpus"][2] == {
        "index": 2,
        "uuid": "GPU-00000002-aaaa-bbbb-cccc-dddddddddddd",
        "name": NAME,
        "memory_total_mib": 97887,
        "memory_used_mib": 14,
        "compute_cap": "12.0",
        "pci_bus_id": "00000000:31:00.0",
        "numa_node": 0,
        "mig": False,
        "ecc": "Disabled",
        "persistence": True,
        "error": None,
        "card": CARD,
    }
    assert facts["processes"] == [
        {"pid": 4711, "uuid": facts["gpus"][3]["uuid"], "used_mib": 90210, "name": "python -c a, b"}
    ]


def test_numa_from_the_driver_where_the_kernel_hides_the_device(smi, tmp_path: Path) -> None:
    known = tmp_path / "sys/0000:11:00.0"
    known.mkdir(parents=True)
    (known / "numa_node").write_text("-1\n")
    smi(say(row(0) + "\n" + row(1)), topo=say(TOPOLOGY))
    # The kernel's -1 (no node) counts, although the driver names one; the second card is known to the driver only.
    assert [gpu["numa_node"] for gpu in gpus.query(sysfs=tmp_path / "sys")["gpus"]] == [None, 1]
    smi(say(row(0)), topo="exit 3")
    assert gpus.query(sysfs=tmp_path / "none")["gpus"][0]["numa_node"] is None


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (TOPOLOGY, {0: 0, 1: 1}),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\tN/A\t\tN/A\n", {0: None}),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0-1\n", {0: None}),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n", {}),
        ("", {}),
    ],
)
def test_topology(text: str, nodes: dict) -> None:
    assert gpus.parse_topology(text) == nodes


def test_fields_that_the_driver_does_not_know(smi, tmp_path: Path) -> None:
    lost = row(0, used="[N/A]", total="[GPU is lost]", cap="[N/A]", name="[Unknown Error]")
    smi(say(lost), say("[N/A], [Not Found], [N/A], [Not Found]"))
    facts = gpus.query(sysfs=tmp_path)
    gpu = facts["gpus"][0]
    assert [gpu[key] for key in ("name", "memory_total_mib", "memory_used_mib", "compute_cap")] == [None] * 4
    assert gpu["card"] == "unknown"
    assert facts["processes"] == [{"pid": None, "uuid": None, "used_mib": None, "name": None}]


def test_processes_that_cannot_be_listed_are_unknown_not_none(smi, tmp_path: Path) -> None:
    smi(say(row(0)), "exit 1")
    assert gpus.query(sysfs=tmp_path)["processes"] is None


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        (
            say("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159", 18),
            "mismatch",
            "Driver/library version mismatch; the node's kernel module and the container's libraries differ",
        ),
        (say("No devices were found", 6), "no-devices", "pass /dev/nvidia0"),
        (say("No devices were found"), "no-devices", "pass /dev/nvidia0"),
        ("true", "no-devices", "pass /dev/nvidia0"),
        (
            "echo 'Failed to initialize NVML: Unknown Error' >&2; exit 255",
            "unknown-error",
            "ended with 255 and said: Failed",
        ),
        (say("Unable to determine the device handle for GPU0: 0000:11:00.0: Unknown Error", 15), "lost", "dmesg"),
        (say("Unable to determine the device handle for GPU 0000:C1:00.0: GPU is lost.", 15), "lost", "Xid"),
        ("exit 9", "error", "said: nothing"),
        (say('Field "compute_cap" is not a valid field to query.'), "error", "cannot read: Field"),
    ],
)
def test_failures_are_told_apart(smi, script: str, status: str, words: str) -> None:
    smi(script)
    facts = gpus.query()
    assert facts["status"] == status
    assert words in facts["message"]
    assert (facts["gpus"], facts["driver"]) == ([], None)


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.query()["status"] == "absent"


@pytest.mark.parametrize("script", ["exec sleep 600", "sleep 600 & wait", "trap '' TERM; sleep 600"])
def test_hung_driver_is_given_up(smi, script: str) -> None:
    smi(script)
    facts = gpus.query(timeout_s=0.3)
    assert facts["status"] == "hung"
    assert "no answer within 0.3 s" in facts["message"]


@pytest.mark.parametrize(
    ("name", "memory", "cap", "slug"),
    [
        (NAME, 97887, "12.0", CARD),
        ("NVIDIA H200", 143771, "9.0", "h200-140gb-sm90"),
        ("NVIDIA GeForce RTX 4090", 24564, "8.9", "geforce-rtx-4090-24gb-sm89"),
        ("Tesla T4", 15360, "7.5", "tesla-t4-15gb-sm75"),
    ],
)
def test_card_names(name: str, memory: int, cap: str, slug: str) -> None:
    assert gpus.card_slug(name, memory, cap) == slug
