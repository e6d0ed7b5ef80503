"""The container's facts, read inside a real container by its own python3."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_pve import host

from tests.lab_fixture import Lab

pytestmark = pytest.mark.container

CODE = """
import json
from sglang_pve import gpus, host
print(json.dumps({
    "facts": host.facts(["/opt/sglang", "/dev/shm"]),
    "units": host.unit_states(["systemd-journald.service", "sglang-nothing@7.service"]),
    "gpus": gpus.query(),
}))
"""


@pytest.fixture(scope="module")
def inside(lab: Lab) -> Iterator[dict[str, Any]]:
    """What the modules say in there; they travel as one zip file, as Ansible sends them."""
    archive = lab.rootfs / "root/facts.zip"
    package = Path(host.__file__).parent
    with zipfile.ZipFile(archive, "w") as packed:
        for path in package.glob("*.py"):
            packed.write(path, f"sglang_pve/{path.name}")
    try:
        done = lab.pct("exec", str(lab.vmid), "--", "env", "PYTHONPATH=/root/facts.zip", "python3", "-c", CODE)
    finally:
        archive.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    yield json.loads(done.stdout)


def test_system(inside: dict[str, Any]) -> None:
    facts = inside["facts"]
    assert facts["python"].startswith("3.")
    assert facts["glibc"].startswith("2.")
    assert facts["os"]["id"] in ("debian", "ubuntu")
    assert facts["disks"]["/opt/sglang"]["free_bytes"] > 0
    assert facts["mounts"]["/dev/shm"]["fs"] == "tmpfs"
    assert facts["memory"]["available_bytes"] > 0
    assert facts["servers"] == []


def test_units_as_its_systemd_tells_them(inside: dict[str, Any]) -> None:
    journald, absent = inside["units"]["systemd-journald.service"], inside["units"]["sglang-nothing@7.service"]
    assert (journald["load"], journald["active"], journald["sub"]) == ("loaded", "active", "running")
    assert journald["main_pid"] > 0 and journald["since"].endswith("+00:00")
    assert (absent["load"], absent["active"], absent["main_pid"], absent["since"]) == ("not-found", "inactive", 0, None)


def test_gpus_of_the_lab(inside: dict[str, Any]) -> None:
    gpus = inside["gpus"]
    assert (gpus["status"], gpus["driver"].split(".")[0], len(gpus["gpus"])) == ("ok", "580", 8)
    assert {gpu["card"] for gpu in gpus["gpus"]} == {"rtx-pro-6000-blackwell-workstation-edition-96gb-sm120"}
    assert {gpu["numa_node"] for gpu in gpus["gpus"]} == {0, 1}
    assert gpus["processes"] == []
