"""diagnose.yml on a deployed fleet: well, ill with its cause, and a bundle without what must not leave."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from fleet_kit import Fleet, said, wait

pytestmark = pytest.mark.container

SECRET = "hunter2-planted"
ENVIRONMENT = "/opt/sglang/servers/gpu1/server.env"


def test_a_fleet_that_serves_is_well(days: Fleet) -> None:
    done = days.run("diagnose", sglang_diagnose_json="-")
    assert done.returncode == 0, done.stdout
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "well"
    assert {one["diagnosis"] for one in answer["servers"].values()} == {None}


def test_a_server_that_fails_is_told_with_cause_and_cure_and_packed_without_secrets(
    days: Fleet, tmp_path: Path
) -> None:
    bundle = tmp_path / "fleet.tgz"
    days.run("stop", "--limit", days.host(1))
    with days.fault("gpu1", kind="nvcc"):
        days.inside("systemctl start --no-block sglang@1.service")
        wait(lambda: days.unit(1)["ActiveState"] in ("failed", "activating"), "it fails")
        wait(lambda: "nvcc" in said(days.run("logs", "--limit", days.host(1))), "it says why")
        days.inside(f"echo SGLANG_API_KEY={SECRET} >>{ENVIRONMENT}")
        done = days.run("diagnose", sglang_diagnose_bundle=str(bundle))
        days.inside(f"sed -i /SGLANG_API_KEY/d {ENVIRONMENT}")
        assert done.returncode == 1, done.stdout
        text = said(done)
        assert "no CUDA compiler where the server looks for one" in text
        assert "Could not find nvcc" in text and f"{days.host(1)}: ill" in text and f"{days.host(0)}: well" in text
    days.run("start", "--limit", days.host(1))
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as packed:
        names = packed.getnames()
        everything = b"".join(packed.extractfile(name).read() for name in names)  # type: ignore[union-attr]
    assert {"diagnosis.json"} < set(names) and any(name.endswith("gpu1/journal-0.txt") for name in names)
    assert SECRET.encode() not in everything and b"SGLANG_API_KEY=***" in everything
