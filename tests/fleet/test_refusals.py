"""Bad input: each ends in one message that says what was seen, what was expected and what to do; nothing is touched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_kit import MISSING_VMID, Fleet, changes, said
from second_stack import alter, write_stack

pytestmark = pytest.mark.container

LISTENER = """
import os, socket
held = [socket.create_server(("0.0.0.0", port)) for port in (30100, 31100)]
open("/run/listener.pid", "w").write(str(os.getpid()))
held[0].accept()
"""


@pytest.fixture(scope="module", autouse=True)
def untouched(fleet: Fleet) -> Iterator[None]:
    """After all refusals a good run finds nothing to do, and every server is the process that it was."""
    before = fleet.pids()
    yield
    assert changes(fleet.good_run()) == 0
    after = fleet.pids()
    assert (after["gpu0"], after["gpu1"]) == (before["gpu0"], before["gpu1"])


def test_missing_container(fleet: Fleet) -> None:
    fleet.refused(
        f"container {MISSING_VMID} does not exist on node 127.0.0.1",
        "`pct list` on the node shows what it has; correct the VMID or the node in the inventory",
        code=4,
        sglang_vmid=MISSING_VMID,
    )


def test_missing_container_among_others_does_not_keep_them_from_their_deployment(fleet: Fleet) -> None:
    before = fleet.pids()
    fleet.inside("systemctl stop sglang@2")
    done = fleet.run(inventory=fleet.write_inventory("two-containers", missing_container=True))
    assert done.returncode == 4, done.stdout
    assert done.stdout.count("fatal: ") == 1
    assert f"fatal: [ct{MISSING_VMID}-gpu0]: UNREACHABLE!" in done.stdout
    assert f"container {MISSING_VMID} does not exist" in said(done)
    after = fleet.pids()
    assert (after["gpu0"], after["gpu1"]) == (before["gpu0"], before["gpu1"])
    assert fleet.healthy(2)


def test_profile_and_flags_are_judged_for_all_servers_at_once(fleet: Fleet) -> None:
    servers = {
        0: {"sglang_profile": "nope"},
        1: {"sglang_flags": {"no-such-flag": 1, "tp-size": 2}},
        2: {"sglang_flags": {"attention-backend": "nope", "api-key": "hunter2"}},
    }
    done = fleet.refused(
        "Nothing was touched.",
        f"error profile-unknown {fleet.host(0)}: there is no profile 'nope'",
        "expected one of batch, interactive, prefix, safe. Correct sglang_profile, or add the file.",
        f"error flag-unknown {fleet.host(1)} --no-such-flag: an unknown option",
        f"error flag-parallel {fleet.host(1)} --tensor-parallel-size: 2; expected 1",
        f"error flag-value {fleet.host(2)} --attention-backend: 'nope'; expected one of triton,",
        f"error flag-owned {fleet.host(2)} --api-key: set among the inventory's flags",
        inventory=fleet.write_inventory("flags", servers),
    )
    assert "hunter2" not in done.stdout


def test_gpus_and_ports_are_judged_for_all_servers_at_once(fleet: Fleet) -> None:
    fleet.inside(f"systemd-run --quiet --unit=listener python3 -c '{LISTENER}'")
    fleet.inside("until [ -s /run/listener.pid ]; do sleep 0.1; done")
    stranger = fleet.inside("cat /run/listener.pid")
    servers = {
        0: {"sglang_port": 30100},
        1: {"sglang_nccl_port": 31100},
        2: {"sglang_port": 30001},
        9: {},
    }
    try:
        fleet.refused(
            "Nothing was touched.",
            f"error gpu-missing {fleet.host(9)}: the container has 8 GPUs, index 0 to 7; expected a GPU with index 9",
            f"error port-taken {fleet.host(0)}: port 30100 is held by pid {stranger} (listener.service); "
            "expected it to be free, or held by sglang@0.service. stop that process yourself",
            f"error port-taken {fleet.host(1)}: port 31100 is held by pid {stranger} (listener.service)",
            f"error port-twice: {fleet.host(1)}, {fleet.host(2)} all have port 30001; expected one port",
            inventory=fleet.write_inventory("ports", servers),
        )
        assert fleet.inside("systemctl show listener --property MainPID --value") == stranger
    finally:
        fleet.inside("systemctl stop listener && rm /run/listener.pid")


def test_option_of_the_command_line_in_the_inventory(fleet: Fleet) -> None:
    fleet.refused(
        "sglang_rollout_serial stands in the inventory, where it has no effect. Give it with -e",
        inventory=fleet.write_inventory("serial", sglang_rollout_serial=1),
    )


def test_checkpoints_that_are_missing_or_lack_a_shard(fleet: Fleet) -> None:
    fleet.inside("cp -a /models/qwen3.6-lab /models/torn && rm /models/torn/model-00002-of-00003.safetensors")
    servers = {0: {}, 1: {"sglang_model_path": "/models/none"}, 2: {"sglang_model_path": "/models/torn"}}
    try:
        fleet.refused(
            "Nothing was touched.",
            "error checkpoint-missing /models/none: the directory cannot be listed: No such file or directory",
            "Correct the model path, mount the storage, or copy the checkpoint there.",
            "error shard-missing /models/torn/model-00002-of-00003.safetensors: the index names it and it is not there",
            "expected every shard that the index names. Copy this shard.",
            inventory=fleet.write_inventory("checkpoints", servers),
        )
    finally:
        fleet.inside("rm -r /models/torn")


def test_disk_with_200_mb_left(fleet: Fleet) -> None:
    free = int(fleet.inside("stat --file-system --format '%a * %S' /opt/sglang | tr '*' ' ' | awk '{print $1 * $2}'"))
    fleet.inside(f"fallocate --length {free - 200 * 1000 * 1000} /opt/sglang/filler")
    try:
        fleet.refused(
            "Nothing was touched. error disk-full: 0.19 GiB free for /opt/sglang",
            "expected 1 GiB: 0.5 for the stack and 0.5 to spare. Free space, enlarge the container's disk",
            **write_stack(fleet, "no-room", "roomy"),
        )
    finally:
        fleet.inside("rm /opt/sglang/filler")


def test_wheels_that_are_missing_or_altered(fleet: Fleet) -> None:
    stack = write_stack(fleet, "wheels", "absent", "bent")
    source = fleet.folder / "wheels/wheelhouse"
    absent, bent = source / "absent-1.0-py3-none-any.whl", source / "bent-1.0-py3-none-any.whl"
    kept, good = absent.read_bytes(), alter(bent)
    absent.unlink()
    fleet.refused(
        f"wheelhouse_source {source} lacks 2 of 2 wheels: missing: absent==1.0; altered: {bent.name}; "
        "expected a file with a SHA-256 of the lock for each",
        f"Fill {source} again from the lock of wheels",
        **stack,
    )
    absent.write_bytes(kept)
    for wheel in (absent, bent):
        fleet.lab.pct("push", str(fleet.lab.vmid), str(wheel), f"/opt/sglang/wheelhouse/{wheel.name}")
    bent.write_bytes(good)
    fleet.refused(
        f"wheelhouse /opt/sglang/wheelhouse lacks 1 of 4 wheels of wheels: altered: {bent.name}; "
        "expected a file with a SHA-256 of the lock for each. Fill the wheelhouse again from the lock",
        **{**stack, "sglang_wheelhouse_source": ""},
    )
    # The controller's good wheel takes the place of the altered one.
    assert changes(fleet.good_run("--tags", "stack", **stack)) > 0
    # No release uses that stack, so the next verified deployment frees it.
    assert "stacks/" in said(fleet.good_run())
