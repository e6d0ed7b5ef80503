"""The lab's nvidia-smi: formats, faults, and memory that real processes claim."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STANDIN = Path(__file__).resolve().parents[2] / "lab/standins/bin/nvidia-smi"
EVERY_FIELD = (
    "index,uuid,name,memory.total,memory.used,memory.free,driver_version,compute_cap,pci.bus_id,utilization.gpu,"
    "temperature.gpu,power.draw,persistence_mode,ecc.mode.current,mig.mode.current"
)
LOST = "Unable to determine the device handle for {handle}: GPU is lost.  Reboot the system to recover this GPU\n\n"


class Smi:
    """nvidia-smi as a node has it: bin/nvidia-smi, with its settings beside bin/."""

    def __init__(self, folder: Path, vmid: int) -> None:
        self.settings = folder / "nvidia-smi"
        self.settings.mkdir(parents=True)
        (self.settings / "vmid").write_text(f"{vmid}\n")
        (folder / "bin").mkdir()
        self.program = shutil.copy(STANDIN, folder / "bin")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False)

    def rows(self, fields: str, *arguments: str) -> list[list[str]]:
        done = self.run(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *arguments)
        assert done.returncode == 0, done.stdout
        return [line.split(", ") for line in done.stdout.splitlines()]


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path / "node", 291)


@pytest.fixture
def claim(tmp_path: Path) -> Iterator:
    """Start a process that claims a card, under the name that the scheduler has."""
    program = tmp_path / "sglang_lab_scheduler"
    program.write_text("import sys\nprint(flush=True)\nsys.stdin.read()\n")
    started = []

    def start(uuid: str, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_eight_cards_of_the_first_target(smi: Smi) -> None:
    rows = smi.rows("index,name,memory.total,compute_cap,driver_version,pci.bus_id")
    assert [row[0] for row in rows] == [str(index) for index in range(8)]
    assert rows[0][1:] == [
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "97887",
        "12.0",
        "580.159.03",
        "00000000:C1:00.0",
    ]
    assert len({row[5] for row in rows}) == 8


def test_uuids_are_fixed_and_differ_between_labs(smi: Smi, tmp_path: Path) -> None:
    ours = smi.rows("uuid")
    assert ours == smi.rows("gpu_uuid")
    theirs = Smi(tmp_path / "other", 200).rows("uuid")
    assert len({row[0] for row in ours + theirs}) == 16
    assert all(row[0].startswith("GPU-") and len(row[0]) == 40 for row in ours)


def test_header_names_units_and_values_carry_them(smi: Smi) -> None:
    lines = smi.run(f"--query-gpu={EVERY_FIELD}", "--format=csv", "-i", "0").stdout.splitlines()
    assert lines[0] == (
        "index, uuid, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], driver_version, compute_cap, "
        "pci.bus_id, utilization.gpu [%], temperature.gpu, power.draw [W], persistence_mode, ecc.mode.current, "
        "mig.mode.current"
    )
    values = lines[1].split(", ")
    assert values[3:6] == ["97887 MiB", "0 MiB", "97887 MiB"]
    assert values[9:] == ["0 %", "30", "12.50 W", "Enabled", "Disabled", "[N/A]"]
    assert len(lines) == 2


def test_header_keeps_units_where_values_have_none(smi: Smi) -> None:
    lines = smi.run("--query-gpu=memory.total", "--format=csv,nounits", "--id=7").stdout.splitlines()
    assert lines == ["memory.total [MiB]", "97887"]


def test_card_is_chosen_by_uuid_and_bus_id(smi: Smi) -> None:
    [[uuid, bus_id]] = smi.rows("uuid,pci.bus_id", "-i", "3")
    assert smi.rows("index", "-i", uuid) == [["3"]]
    assert smi.rows("index", f"--id={bus_id},0") == [["3"], ["0"]]
    assert smi.run("--query-gpu=index", "--format=csv", "-i", "8").returncode == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--query-gpu=index,warmth", "--format=csv"], 'Field "warmth" is not a valid field to query.\n\n'),
        (["--query-compute-apps=warmth", "--format=csv"], 'Field "warmth" is not a valid field to query.\n\n'),
        (["--query-gpu=index"], '"--format=" switch is missing.\n'),
        (["--nonsense"], "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"),
    ],
)
def test_invalid_request_exits_with_2(smi: Smi, arguments: list[str], text: str) -> None:
    done = smi.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, text, "")


def test_claimed_memory_is_shown_on_its_card_only(smi: Smi, claim) -> None:
    [[uuid]] = smi.rows("uuid", "-i", "2")
    process = claim(uuid, SGLANG_LAB_GPU_MIB="81000")
    assert [row[0] for row in smi.rows("memory.used")] == ["0", "0", "81000", "0", "0", "0", "0", "0"]
    assert smi.rows("memory.free", "-i", "2") == [[str(97887 - 81000)]]
    apps = smi.run("--query-compute-apps=pid,gpu_uuid,gpu_name,process_name,used_memory", "--format=csv")
    assert apps.stdout.splitlines() == [
        "pid, gpu_uuid, gpu_name, process_name, used_gpu_memory [MiB]",
        f"{process.pid}, {uuid}, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, {sys.executable}, 81000 MiB",
    ]
    assert f"{process.pid}" in smi.run().stdout
    process.kill()
    process.wait()
    assert smi.rows("memory.used", "-i", "2") == [["0"]]


def test_claim_without_a_size_takes_60000_mib(smi: Smi, claim) -> None:
    [[uuid]] = smi.rows("uuid", "-i", "5")
    claim(uuid)
    assert smi.rows("memory.used", "-i", "5") == [["60000"]]


def test_no_processes_leave_only_the_header(smi: Smi) -> None:
    assert smi.run("--query-compute-apps=pid,used_gpu_memory", "--format=csv").stdout == "pid, used_gpu_memory [MiB]\n"
    assert smi.run("--query-compute-apps=pid", "--format=csv,noheader").stdout == ""


def test_list_and_table(smi: Smi) -> None:
    listed = smi.run("-L").stdout.splitlines()
    [[uuid]] = smi.rows("uuid", "-i", "7")
    assert listed[7] == f"GPU 7: NVIDIA RTX PRO 6000 Blackwell Workstation Edition (UUID: {uuid})"
    table = smi.run().stdout
    assert "Driver Version: 580.159.03" in table
    assert "CUDA Version: 13.0" in table
    assert "No running processes found" in table
    assert {len(line) for line in table.splitlines()[1:] if line} == {91}


def test_topology_has_two_numa_nodes(smi: Smi) -> None:
    heading, *rows = smi.run("topo", "-m").stdout.splitlines()[:9]
    columns = heading.replace("\x1b[4m", "").replace("\x1b[0m", "").split("\t")
    assert columns[1:] == [*(f"GPU{index}" for index in range(8)), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    cells = [row.split("\t") for row in rows]
    assert [row[columns.index("NUMA Affinity")] for row in cells] == ["0"] * 4 + ["1"] * 4
    assert [row[columns.index("CPU Affinity")] for row in cells] == ["0-15"] * 4 + ["16-31"] * 4
    assert cells[0][1:9] == [" X ", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]


@pytest.mark.parametrize(
    ("mode", "text", "status"),
    [
        ("mismatch", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n", 18),
        ("no-devices", "No devices were found\n", 6),
        ("unknown-error", "Failed to initialize NVML: Unknown Error\n", 255),
        ("lost:3", LOST.format(handle="GPU0000:C4:00.0"), 15),
    ],
)
def test_fault_has_the_real_text_and_status(smi: Smi, mode: str, text: str, status: int) -> None:
    (smi.settings / "mode").write_text(mode + "\n")
    for arguments in ([], ["-L"], ["--query-gpu=index", "--format=csv"], ["topo", "-m"]):
        done = smi.run(*arguments)
        assert (done.returncode, done.stdout) == (status, text)


def test_hung_driver_never_answers(smi: Smi) -> None:
    (smi.settings / "mode").write_text("hung\n")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([smi.program], timeout=1, capture_output=True, check=False)


def test_count_of_cards(smi: Smi) -> None:
    (smi.settings / "count").write_text("2\n")
    assert smi.rows("index,count") == [["0", "2"], ["1", "2"]]
    (smi.settings / "count").write_text("0\n")
    done = smi.run("-L")
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")
