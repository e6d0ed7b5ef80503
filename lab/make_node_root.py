"""Makes lab_dir/node/root: the files that a node with eight cards has and this machine lacks.

Formats are the real files': proc(5) for /proc/devices, and what NVIDIA's module 580 writes below /proc/driver/nvidia.
Device nodes are the numbers of /dev/null, as in the container. Prints what it made; nothing where all is there.
"""

from __future__ import annotations

import os
import stat
import sys
import uuid
from pathlib import Path

DRIVER = "580.159.03"
NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
CARDS_PER_NUMA_NODE = 4
NULL = os.makedev(1, 3)


def files(vmid: str, devices: list[str]) -> dict[str, str]:
    """Path -> content."""
    cards = [int(name[6:]) for name in devices if name[6:].isdigit()]
    found = {
        "proc/sys/kernel/hostname": os.uname().nodename + "\n",
        "proc/devices": (
            "Character devices:\n  1 mem\n  1 nvidia\n  1 nvidia-uvm\n  5 /dev/tty\n\nBlock devices:\n  8 sd\n"
        ),
        "proc/driver/nvidia/version": (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (lab)\n"
        ),
        "sys/module/apparmor/parameters/enabled": "Y\n",
    }
    for node in range(2):
        # CPUs that the container has, since it says itself which: every second one, or the only one.
        cpus = sorted(os.sched_getaffinity(0))
        near = ",".join(map(str, cpus[node::2] or cpus))
        found[f"sys/devices/system/node/node{node}/cpulist"] = f"{near}\n"
    for index in cards:
        card = str(uuid.uuid5(uuid.NAMESPACE_OID, f"sglang-lab-{vmid}-{index}"))
        address = f"0000:{0xC1 + index:02x}:00.0"
        found[f"sys/bus/pci/devices/{address}/numa_node"] = f"{index // CARDS_PER_NUMA_NODE}\n"
        found[f"proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t {NAME}\nGPU UUID: \t GPU-{card}\nBus Location: \t {address}\nDevice Minor: \t {index}\n"
        )
    return found


def main() -> None:
    lab, vmid, devices = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    root = lab / "node/root"
    for name, content in files(vmid, devices).items():
        path = root / name
        if not path.exists() or path.read_text() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            print(path)
    for name, target in {"etc/pve/lxc": "../../../pve/lxc", "var/lib/lxc": "../../../../lxc"}.items():
        path = root / name
        if not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
            print(path)
    (root / "dev").mkdir(exist_ok=True)
    for name in devices:
        path = root / "dev" / name
        if not path.exists():
            os.mknod(path, stat.S_IFCHR | 0o666, NULL)
            path.chmod(0o666)
            print(path)
    if len(sys.argv) > 4 and sys.argv[4] == "bare":
        return
    # The driver's libraries in the container: files without content, whose names carry the version.
    libraries = lab / "lxc" / vmid / "rootfs/usr/lib/x86_64-linux-gnu"
    for name in ("libcuda.so", "libnvidia-ml.so"):
        link = libraries / f"{name}.1"
        if not link.is_symlink():
            (libraries / f"{name}.{DRIVER}").touch()
            link.symlink_to(f"{name}.{DRIVER}")
            print(link)


main()
