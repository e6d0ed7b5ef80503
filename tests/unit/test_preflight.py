"""Every reason to say no, from a container that is well; each case changes one fact."""

import copy

import pytest
from sglang_pve import findings, preflight

CARD = {"uuid": "GPU-1", "name": "c", "memory_total_mib": 97887, "compute_cap": "12.0", "card": "c", "numa_node": 0}


def well():
    return {
        "host": {"listeners": []},
        "gpus": {
            "status": "ok",
            "message": "",
            "driver": "580.159.03",
            "gpus": [{**CARD, "index": i} for i in range(2)],
        },
        "foreign": {"servers": [], "unit_files": [], "unfinished": {}},
        "stacks": {"wanted": {"error": ""}},
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


def judge(change=None, wanted=None):
    state = well()
    if change:
        change(state)
    return {item.id: item for item in preflight.judge(state, wanted or servers(), "wanted")}


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
        (lambda state: state["gpus"]["gpus"].pop(), "gpu-missing", ["index 1", "1 GPUs", "ct200-gpu1"]),
        (set_in("gpus", "gpus", value=[]), "gpu-missing", ["no GPU"]),
        (
            set_in("stacks", value={"wanted": {"error": "stack wanted was altered: a.py. Remove it"}}),
            "stack-altered",
            ["stack wanted was altered: a.py", "Remove it"],
        ),
        (
            listener(30001, unit=None, command="python3 -m http.server"),
            "port-taken",
            ["30001", "pid 42", "http.server"],
        ),
        (listener(31000, unit="nginx.service", command="nginx"), "port-taken", ["31000", "nginx.service"]),
        (listener(30001, unit="sglang@0.service"), "port-taken", ["sglang@0.service", "sglang@1.service"]),
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


def test_cards_that_do_not_answer_are_left_to_the_rules():
    assert judge(lambda state: state["gpus"].update(status="hung", gpus=[])) == {}


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


def test_another_stack_that_was_altered_is_told_and_stops_nothing():
    found = judge(
        set_in("stacks", value={"wanted": {"error": ""}, "old": {"error": "stack old was altered: b.py. Stop"}})
    )
    assert [(item.id, item.level, item.seen) for item in found.values()] == [
        ("stack-altered", "warning", "stack old was altered: b.py")
    ]
