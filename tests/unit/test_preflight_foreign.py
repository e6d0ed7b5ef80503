"""What others run on a card or port is judged before anything is touched; each case changes one fact."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_pve import preflight_foreign

SERVERS = [
    {
        "host": f"ct200-gpu{index}",
        "name": f"gpu{index}",
        "index": index,
        "port": 30000 + index,
        "nccl_port": 31000 + index,
    }
    for index in range(2)
]


def stranger(*cards: int, **change: Any) -> dict[str, Any]:
    return {
        "pid": 412,
        "started": "77",
        "kind": "server",
        "user": "ada",
        "unit": "",
        "how": "by hand (tmux)",
        "port": 8000,
        "ports": [8000],
        "gpus": [{"index": index, "uuid": f"GPU-{index}"} for index in cards],
        "argv": ["python3", "-m", "sglang.launch_server", "--api-key", "***"],
        "pids": [412, 413],
        "blocked": "",
        **change,
    }


def row(index: int, pid: int | None, used_mib: int, unit: str | None = None) -> dict[str, Any]:
    return {
        "pid": pid,
        "uuid": f"GPU-{index}",
        "used_mib": used_mib,
        "user": "bob",
        "command": "python train.py",
        "unit": unit,
    }


def state(*strangers: dict[str, Any], rows: Any = (), used: Any = (0, 0), **servers: Any) -> dict[str, Any]:
    return {
        "foreign": {"servers": list(strangers), "unit_files": [], "unfinished": {}},
        "gpus": {
            "gpus": [{"index": i, "uuid": f"GPU-{i}", "memory_used_mib": mib} for i, mib in enumerate(used)],
            "processes": list(rows),
        },
        "servers": servers,
    }


def judge(seen: dict[str, Any], adopting: bool = False) -> list[tuple[str, str, str, str]]:
    found = preflight_foreign.judge(seen, SERVERS, adopting)
    return [(item.level, item.id, item.where, item.sentence()) for item in found]


def one(seen: dict[str, Any], level: str, id: str, where: str, *words: str, adopting: bool = False) -> None:
    found = judge(seen, adopting)
    assert [item[:3] for item in found] == [(level, id, where)]
    assert [text for text in words if text not in found[0][3]] == []


def test_nothing_of_others_is_no_finding() -> None:
    assert judge(state()) == []


def test_a_foreign_server_on_a_wanted_card_is_an_error_and_one_to_take_over() -> None:
    seen = state(stranger(1))
    words = ("pid 412", "user ada", "by hand (tmux)", "port 8000", "GPU 1", "sglang.launch_server --api-key ***")
    one(seen, "error", "foreign-server", "ct200-gpu1", *words, "playbooks/adopt.yml --limit ct200-gpu1")
    one(seen, "note", "foreign-server", "ct200-gpu1", adopting=True)
    assert preflight_foreign.takeovers(seen, SERVERS) == {"gpu1": {**stranger(1), "stopped": False}}


def test_a_foreign_server_that_nobody_needs_to_make_room_is_a_note() -> None:
    one(state(stranger(5)), "note", "foreign-server", "", "no selected server wants its GPU")
    assert preflight_foreign.takeovers(state(stranger(5)), SERVERS) == {}


@pytest.mark.parametrize("port", [30001, 31001])
def test_a_port_of_a_server_on_another_card_is_in_the_way_of_both(port: int) -> None:
    seen = state(stranger(0, ports=[port]))
    for adopting in (False, True):
        where = "ct200-gpu0, ct200-gpu1"
        one(seen, "error", "foreign-server", where, "a port of a server on another GPU", adopting=adopting)


def test_what_cannot_be_taken_over_stays_an_error() -> None:
    seen = state(stranger(0, blocked="it uses the GPUs 0, 1 together"))
    one(seen, "error", "foreign-server", "ct200-gpu0", "cannot take it over: it uses the GPUs", adopting=True)
    assert preflight_foreign.takeovers(seen, SERVERS) == {}
    both = judge(state(stranger(0), stranger(0, pid=500, pids=[500])), adopting=True)
    assert [item[0] for item in both] == ["error", "error"]
    assert all("several SGLang servers use its GPU" in item[3] for item in both)


def test_a_lent_card_is_its_borrowers() -> None:
    lent = {"gpu1": {"lent": {"who": "ada"}, "unit": {}}}
    assert judge(state(rows=[row(1, 77, 50000)], used=(0, 50000), **lent)) == []
    assert [item[0] for item in judge(state(stranger(1), **lent))] == ["note"]
    assert preflight_foreign.takeovers(state(stranger(1), **lent), SERVERS) == {}


def test_a_holder_of_gpu_memory_is_named() -> None:
    seen = state(rows=[row(1, 77, 50000)], used=(0, 50000))
    one(seen, "error", "gpu-held", "ct200-gpu1", "pid 77 (python train.py, of user bob, 50,000 MiB)", "GPU 1")
    one(state(rows=[row(1, 77, 300)], used=(0, 300)), "warning", "gpu-held", "ct200-gpu1")


def test_memory_of_a_process_that_is_not_shown_counts_where_ours_does_not_run() -> None:
    one(state(used=(0, 40000)), "error", "gpu-held", "ct200-gpu1", "40,000 MiB", "look on the node")
    assert judge(state(used=(0, 900))) == []
    running = {"gpu1": {"lent": None, "unit": {"main_pid": 9}}}
    assert judge(state(used=(0, 94000), rows=[row(1, None, 94000)], **running)) == []


def test_our_own_servers_and_foreign_ones_are_no_holders_besides() -> None:
    rows = [row(0, 9, 94000, unit="sglang@0.service"), row(1, 413, 60000)]
    assert [item[1] for item in judge(state(stranger(1), rows=rows, used=(94000, 60000)))] == ["foreign-server"]


def test_a_file_where_ours_goes_is_an_error() -> None:
    seen = state()
    seen["foreign"]["unit_files"] = ["/etc/systemd/system/sglang@.service"]
    one(seen, "error", "unit-file-foreign", "/etc/systemd/system/sglang@.service", "move the file away")


def test_a_takeover_that_was_cut_short_goes_on() -> None:
    seen = state()
    seen["foreign"]["unfinished"] = {"gpu0": {"pid": 412, "user": "ada", "how": "by hand"}}
    one(seen, "error", "take-over-unfinished", "ct200-gpu0", "pid 412", "playbooks/adopt.yml --limit ct200-gpu0 again")
    assert judge(seen, adopting=True) == []
    taken = preflight_foreign.takeovers(seen, SERVERS)
    assert taken == {"gpu0": {"pid": 412, "user": "ada", "how": "by hand", "stopped": True}}
