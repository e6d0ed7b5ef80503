"""A canary whose plan fails falls to the next plan of its ladder, where that is a cure, and the rest follow it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from fleet_kit import NAMES, Fleet, changes, said

from tests.lab_fixture import PROJECT

pytestmark = pytest.mark.container

OTHER = {"max-running-requests": 96}


def argv(fleet: Fleet, release: str) -> list[str]:
    manifest = json.loads(fleet.inside(f"cat /opt/sglang/releases/{release}/manifest.json"))
    return list(manifest["plan"]["argv"])


def history(fleet: Fleet) -> list[dict[str, str]]:
    return [json.loads(line) for line in fleet.inside("cat /var/lib/sglang/history.jsonl").splitlines()]


def test_the_canary_falls_to_the_plan_that_works_and_the_rest_never_ladder(fleet: Fleet) -> None:
    fleet.good_run()
    before, known = fleet.releases(), len(history(fleet))
    # Whatever takes flashinfer fails as on a card that its kernels have no code for.
    with fleet.fault("all", kind="no-kernel-image", argument="flashinfer"):
        done = fleet.run("site", sglang_flags=OTHER)
        text = said(done)
        assert done.returncode == 0, done.stdout
        assert "kernel-image: a kernel library has no code for this card" in text
        assert text.index("Next is batch/2") < text.index("Next is batch/3")
        after = fleet.releases()
        assert len(set(after.values())) == 1 and set(after.values()).isdisjoint(before.values())
        assert "triton" in argv(fleet, after["gpu0"]) and "96" in argv(fleet, after["gpu0"])
        # The two others were started once each, with the plan that works.
        failed = [entry["server"] for entry in history(fleet)[known:] if entry["event"] == "failed"]
        assert set(failed) == {"gpu0"} and len(failed) == 2
        again = fleet.good_run(sglang_flags=OTHER)
        assert changes(again) == 0, again.stdout
        assert "Begins with batch/3, on which its canary settled" in said(again)
    assert fleet.releases() == after
    assert fleet.good_run().returncode == 0
    assert fleet.releases() == before


def test_a_plan_that_the_rules_refuse_is_passed_over(fleet: Fleet, tmp_path: Path) -> None:
    fleet.good_run()
    before = fleet.releases()
    profiles = tmp_path / "profiles"
    shutil.copytree(PROJECT / "profiles", profiles)
    batch = yaml.safe_load((profiles / "batch.yml").read_text())
    refused = {"differs": "Vision by fa3.", "flags": {"mm-attention-backend": "fa3"}}
    cure = {
        "differs": "All by triton.",
        "flags": {"mm-attention-backend": "triton_attn", "attention-backend": "triton"},
    }
    (profiles / "batch.yml").write_text(yaml.safe_dump({**batch, "ladder": [refused, cure]}))
    with fleet.fault("all", kind="no-kernel-image", argument="flashinfer"):
        done = fleet.run("site", sglang_profiles_dir=str(profiles), sglang_flags={"max-running-requests": 72})
    assert done.returncode == 0, done.stdout
    text = said(done)
    assert text.index("batch/2 is passed over: error") < text.index("Next is batch/3") and "Next is batch/2" not in text
    settled = [entry for entry in history(fleet) if entry["event"] == "settled"]
    assert (settled[-1]["plan"], "no code for this card" in settled[-1]["reason"]) == ("batch/3", True)
    after = fleet.releases()
    assert len(set(after.values())) == 1 and set(after.values()).isdisjoint(before.values())
    assert "triton_attn" in argv(fleet, after["gpu0"])
    fleet.good_run()
    assert fleet.releases() == before


def test_a_reason_that_no_plan_cures_stops_at_once_and_what_served_serves_again(fleet: Fleet) -> None:
    fleet.good_run()
    before, pids = fleet.releases(), fleet.pids()
    with fleet.fault("gpu0", kind="nvcc"):
        done = fleet.run("site", sglang_flags={"max-running-requests": 80})
        assert done.returncode == 2
        text = said(done)
        assert "nvcc-missing: no CUDA compiler where the server looks for one" in text
        assert "Next is" not in text and re.search(r"Point sglang_cuda_home at a toolkit", text)
    fleet.run("start")
    assert fleet.releases() == before
    assert {name: pid for name, pid in fleet.pids().items() if name != NAMES[0]} == {
        name: pid for name, pid in pids.items() if name != NAMES[0]
    }
    assert all(fleet.healthy(index) for index in range(3))
    # The next deployment frees the release that failed.
    fleet.good_run()
