"""Every reason to say no, from a container that is well; each case changes one fact."""

import copy

import pytest
from sglang_pve import findings, preflight

GIB = 1 << 30
CARD = {"uuid": "GPU-1", "name": "c", "memory_total_mib": 97887, "compute_cap": "12.0", "card": "c", "numa_node": 0}


def well():
    return {
        "host": {
            "listeners": [],
            "disks": {"/opt/sglang": {"free_bytes": 50 * GIB, "mount": "/"}},
            "memory": {"limit_bytes": 200 * GIB, "total_bytes": 256 * GIB, "available_bytes": 100 * GIB},
            "mounts": {"/run": {"flags": ["rw", "nosuid"]}},
            "accounts": {"uids": {"root": 0, "sglang": 998}, "remove_ipc": True},
        },
        "gpus": {
            "status": "ok",
            "message": "",
            "driver": "580.159.03",
            "gpus": [{**CARD, "index": i} for i in range(2)],
        },
        "foreign": {"servers": [], "unit_files": [], "unfinished": {}},
        "stacks": {},
        "newer": [],
        "releases": {},
        "servers": {},
        "history": {"notes": []},
    }


def servers():
    return [
        {
            "host": f"ct200-gpu{i}",
            "name": f"gpu{i}",
            "index": i,
            "port": 30000 + i,
            "nccl_port": 31000 + i,
            "stack": "s",
        }
        for i in range(2)
    ]


NEEDS = {
    "stack_id": "abc",
    "stack_disk_gib": 12,
    "disk_free_min_gib": 5,
    "server_memory_gib": 6,
    "staged_bytes": 52 * GIB,
    "servers": 2,
    "user": "sglang",
}


def judge(change=None, wanted=None, **needs):
    state = well()
    if change:
        change(state)
    return {item.id: item for item in preflight.judge(state, wanted or servers(), {**NEEDS, **needs})}


def listener(port, **more):
    return lambda state: state["host"]["listeners"].append({"port": port, "address": "0.0.0.0", "pid": 42, **more})


def set_in(*path, value):
    def change(state):
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


def test_a_container_that_is_well_has_no_findings():
    assert judge() == {}


@pytest.mark.parametrize(
    ("change", "id", "words"),
    [
        (set_in("gpus", "status", value="mismatch"), "gpus-mismatch", ["driver libraries of the node's version"]),
        (set_in("gpus", "status", value="hung"), "gpus-hung", ["kernel log"]),
        (set_in("gpus", "status", value="absent"), "gpus-absent", ["user-space tools"]),
        (lambda state: state["gpus"]["gpus"].pop(), "gpu-missing", ["index 1", "1 GPUs", "ct200-gpu1"]),
        (set_in("gpus", "gpus", value=[]), "gpu-missing", ["no GPU"]),
        (
            listener(30001, unit=None, command="python3 -m http.server"),
            "port-taken",
            ["30001", "pid 42", "http.server"],
        ),
        (listener(31000, unit="nginx.service", command="nginx"), "port-taken", ["31000", "nginx.service"]),
        (listener(30001, unit="sglang@0.service"), "port-taken", ["sglang@0.service", "sglang@1.service"]),
        (set_in("host", "disks", "/opt/sglang", "free_bytes", value=GIB // 5), "disk-full", ["0.20 GiB", "17 GiB"]),
        (set_in("host", "memory", "limit_bytes", value=60 * GIB), "memory-too-small", ["60.0 GiB", "64.0 GiB"]),
        (set_in("host", "mounts", "/run", "flags", value=["noexec"]), "run-noexec", ["/run"]),
        (set_in("history", "notes", value=["1 lines"]), "history-doubtful", ["1 lines"]),
        (set_in("releases", "r", value={"error": "release r was altered"}), "release-altered", ["altered"]),
    ],
)
def test_one_fact_that_is_not_well_is_one_finding(change, id, words):
    found = judge(change)
    assert list(found) == [id]
    text = found[id].sentence()
    assert [word for word in words if word not in text] == []


def test_a_port_of_our_own_unit_is_no_finding():
    assert judge(listener(30001, unit="sglang@1.service", command="python")) == {}


def test_a_stack_that_is_installed_needs_no_room_again():
    def change(state):
        state["stacks"]["abc"] = {}
        state["host"]["disks"]["/opt/sglang"]["free_bytes"] = 6 * GIB

    assert judge(change) == {}


def test_without_a_memory_limit_the_machine_is_the_limit():
    assert judge(set_in("host", "memory", "limit_bytes", value=None)) == {}
    assert "memory-too-small" in judge(set_in("host", "memory", "limit_bytes", value=None), staged_bytes=250 * GIB)


@pytest.mark.parametrize(
    ("key", "value", "id", "words"),
    [
        ("index", 0, "index-twice", ["GPU 0", "sglang_gpu"]),
        ("port", 30000, "port-twice", ["port 30000", "sglang_port"]),
        ("nccl_port", 31000, "nccl-port-twice", ["NCCL port 31000", "sglang_nccl_port"]),
        ("port", 31000, "port-and-nccl-port", ["31000"]),
        ("stack", "other", "stacks-differ", ["other", "group"]),
    ],
)
def test_servers_that_collide_are_found(key, value, id, words):
    wanted = copy.deepcopy(servers())
    wanted[1][key] = value
    found = judge(wanted=wanted)
    assert id in found
    text = found[id].sentence()
    assert [word for word in words if word not in text] == []


def test_the_same_finding_of_several_servers_is_shown_once():
    one = findings.Finding("x", "error", "a", "b", "c", where="ct200-gpu0")
    two = findings.Finding("x", "error", "a", "b", "c", where="ct200-gpu1")
    other = findings.Finding("x", "error", "a", "b", "d")
    assert [item.where for item in findings.merged([one, other, two])] == ["ct200-gpu0, ct200-gpu1", ""]


def test_a_level_that_is_none_is_refused():
    with pytest.raises(ValueError, match="fatal"):
        findings.Finding("x", "fatal", "a", "b", "c")
