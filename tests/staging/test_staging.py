"""No server starts on half a copy: staging that is killed, copies that are cut, a restart in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.fleet_kit import GPUS, NAMES, Fleet, changes, wait

pytestmark = pytest.mark.container

BULKY = "/models/bulky"
COPY = "/dev/shm/sglang/bulky-*"
WORK = "/dev/shm/sglang/.bulky-*.sglang-staging"
PART = ".blob.bin.sglang-part"
MODEL = "/models/qwen3.6-lab"
SHARD = "/dev/shm/sglang/qwen3.6-lab-*/model-00002-of-00003.safetensors"


@pytest.fixture
def bulky(fleet: Fleet) -> Iterator[None]:
    """A checkpoint with a file that takes a while to copy."""
    fleet.inside(f"cp -a {MODEL} {BULKY} && fallocate --length 700M {BULKY}/blob.bin")
    yield
    fleet.inside(f"rm -r {BULKY} {COPY} && sed -i s,/models/bulky,/models/gone, /etc/sglang/models.json")
    # The next deployment that is verified takes what nothing serves off the list.
    fleet.good_run()


def all_healthy(fleet: Fleet) -> bool:
    return all(fleet.healthy(index) for index in GPUS)


def test_killed_staging(fleet: Fleet, bulky: None) -> None:
    before = fleet.pids()
    how = {"sglang_model_path": BULKY}
    with fleet.started("--tags", "checkpoint", **how) as running:
        fleet.signal_holders(PART, "SIGSTOP")
        running.kill(everything=True)
        fleet.signal_holders(PART, "SIGKILL")
    fleet.inside(f"ls {WORK}/{PART} && ! ls -d {COPY}")
    assert changes(fleet.good_run("--tags", "checkpoint", **how)) == 1
    fleet.inside(f"cmp {COPY}/blob.bin {BULKY}/blob.bin && ! ls -d {WORK}")
    assert fleet.pids() == before


def test_a_broken_connection_does_not_end_the_copy(fleet: Fleet, bulky: None) -> None:
    how = {"sglang_model_path": BULKY}
    with fleet.started("--tags", "checkpoint", **how) as running:
        fleet.signal_holders(PART, "SIGSTOP")
        running.kill()
    fleet.signal_holders(PART, "SIGCONT")
    wait(lambda: fleet.attempt(f"ls {COPY}/.sglang-staged.json").returncode == 0, "the copy to be whole")
    assert changes(fleet.good_run("--tags", "checkpoint", **how)) == 0


def test_restart_in_the_middle_of_the_copying(fleet: Fleet, bulky: None) -> None:
    fleet.good_run("--tags", "checkpoint", sglang_model_path=BULKY)
    served = fleet.releases()
    vmid = str(fleet.lab.vmid)
    for command in ("stop", "start"):
        fleet.lab.pct(command, vmid)
    fleet.signal_holders(PART, "SIGSTOP")
    # Every server waits for the copy.
    assert fleet.inside("systemctl is-active sglang-model.service || true") == "activating"
    assert set(fleet.pids().values()) == {"0"}
    fleet.inside(f"! ls -d {COPY}")
    for command in ("stop", "start"):
        fleet.lab.pct(command, vmid)
    wait(lambda: all_healthy(fleet), "the servers to be well", seconds=120)
    assert fleet.releases() == served
    fleet.inside(f"cmp {COPY}/blob.bin {BULKY}/blob.bin")
    limits = fleet.inside("systemctl show sglang-model.service --property MemoryMax --property MemoryHigh --value")
    assert set(limits.split()) == {"infinity"}
    order = fleet.inside("journalctl --boot --output cat --grep '^(Finished sglang-model|Starting sglang@)' --no-pager")
    assert order.splitlines()[0].startswith("Finished sglang-model")


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_copy_that_was_cut_is_mended_before_a_server_starts(fleet: Fleet, how: str) -> None:
    before = fleet.pids()
    # The starts of the tests before count towards the limit.
    fleet.inside(f"systemctl reset-failed sglang@0; truncate --size -1 {SHARD}")
    fleet.inside("systemctl restart sglang@0" if how == "restart" else f"kill -KILL {before['gpu0']}")
    mended = f"cmp {SHARD} {MODEL}/model-00002-of-00003.safetensors"
    wait(lambda: fleet.attempt(mended).returncode == 0, "the copy to be mended")
    wait(lambda: all_healthy(fleet), "the servers to be well")
    after = fleet.pids()
    assert after["gpu0"] != before["gpu0"] and [after[n] for n in NAMES[1:]] == [before[n] for n in NAMES[1:]]


def test_no_server_starts_on_a_cut_copy_that_cannot_be_mended(fleet: Fleet) -> None:
    before = fleet.pids()
    fleet.inside(f"systemctl reset-failed sglang@0; truncate --size -1 {SHARD} && mv {MODEL} {MODEL}-away")
    try:
        fleet.attempt("systemctl restart sglang@0")
        assert fleet.unit(0)["MainPID"] == "0"
        told = fleet.inside("journalctl --unit sglang@0 --lines 30 --output cat --no-pager")
        assert "model-00002-of-00003.safetensors: 9132959 bytes, expected 9132960" in told
        assert "journalctl -u sglang-model.service" in told
        told = fleet.inside("journalctl --unit sglang-model --lines 30 --output cat --no-pager")
        assert "checkpoint-missing" in told and MODEL in told
        assert [fleet.pids()[name] for name in NAMES[1:]] == [before[name] for name in NAMES[1:]]
    finally:
        fleet.inside(f"mv {MODEL}-away {MODEL}")
    fleet.inside("systemctl reset-failed sglang@0; systemctl restart sglang@0")
    wait(lambda: all_healthy(fleet), "the servers to be well", seconds=120)
