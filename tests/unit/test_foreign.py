"""SGLang servers of others, recognised by what real processes show of themselves."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from sglang_pve import foreign, holders, host

from tests.unit.hand_kit import Hand, running

CARDS = [{"index": index, "uuid": f"GPU-{index}abc", "memory_used_mib": 0} for index in range(4)]


def read(on_cards: Any = ()) -> dict[int, dict[str, Any]]:
    return {one["pid"]: one for one in foreign.read(CARDS, host.listeners(), on_cards)}


def seen(hand: Hand, on_cards: Any = ()) -> dict[str, Any]:
    return read(on_cards)[hand.pid]


def test_a_server_that_was_started_by_hand_is_told_in_full(tmp_path: Path) -> None:
    flags = ("--max-total-tokens", "9", "--api-key", "hunter2")
    with running(tmp_path, *flags, CUDA_VISIBLE_DEVICES="GPU-1abc", HF_TOKEN="hunter3") as hand:
        one = seen(hand)
    assert (one["kind"], one["user"], one["unit"]) == ("server", getpass.getuser(), "")
    assert one["how"].startswith("by hand")
    assert (one["address"], one["port"], one["ports"]) == ("127.0.0.1", hand.port, [hand.port])
    assert one["gpus"] == [{"index": 1, "uuid": "GPU-1abc"}]
    assert one["argv"][-4:] == ["--max-total-tokens", "9", "--api-key", "***"]
    assert one["pids"] == sorted([hand.pid, hand.child])
    assert one["blocked"] == ""
    assert "hunter" not in str(one)
    assert hand.pid not in read()


def test_our_mark_in_the_environment_alone_does_not_make_it_ours(tmp_path: Path) -> None:
    with running(tmp_path, SGLANG_PVE_RELEASE="0123") as hand:
        assert seen(hand)["kind"] == "server"


def test_what_the_driver_says_counts_more_than_what_was_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, CUDA_VISIBLE_DEVICES="0") as hand:
        assert seen(hand, [{"pid": hand.child, "uuid": "GPU-3abc"}])["gpus"] == [{"index": 3, "uuid": "GPU-3abc"}]


def test_a_server_on_two_cards_or_on_none_is_not_for_us_to_take(tmp_path: Path) -> None:
    with running(tmp_path, "--tp", "2") as hand:
        assert seen(hand)["blocked"] == "it uses the GPUs 0, 1 together"
    with running(tmp_path, CUDA_VISIBLE_DEVICES="") as hand:
        assert seen(hand)["blocked"] == "its GPU cannot be told"


def test_an_engine_inside_a_program_is_named_with_that_program(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.run(['sglang::scheduler', '600'], executable='/bin/sleep')"
    program = subprocess.Popen(["python3", "-c", code])
    try:
        while not (child := [one for one in foreign.processes().values() if one.parent == program.pid]):
            time.sleep(0.01)
        while not foreign.processes()[child[0].pid].words[0].startswith("sglang::"):
            time.sleep(0.01)
        one = read([{"pid": child[0].pid, "uuid": "GPU-2abc"}])[program.pid]
        assert (one["kind"], one["gpus"][0]["index"]) == ("engine", 2)
        assert one["blocked"] == "it is an engine inside another program, not a server"
        # Its program gone, the scheduler still holds the card.
        program.kill()
        program.wait()
        assert child[0].pid in read()
    finally:
        program.kill()
        program.wait()
        os.kill(child[0].pid, 9)


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (["python3", "-m", "sglang.launch_server", "--port", "1"], True),
        (["/venv/bin/python3.12", "-u", "-X", "dev", "-m", "sglang.launch_server"], True),
        (["python", "/src/sglang/launch_server.py"], True),
        (["/venv/bin/python", "/venv/bin/sglang", "serve", "--model-path", "m"], True),
        (["/venv/bin/python", "/venv/bin/sglang", "version"], False),
        (["python3", "-m", "sglang.bench_serving"], False),
        (["python3", "client.py", "-m", "sglang.launch_server"], False),
        (["sh", "-c", "python3 -m sglang.launch_server"], False),
        (["tmux", "new", "-d", "python3", "-m", "sglang.launch_server"], False),
        (["sudo", "-u", "ada", "python3", "-m", "sglang.launch_server"], False),
        (["vim", "sglang/launch_server.py"], False),
        ([], False),
    ],
)
def test_only_the_first_process_of_a_server_is_one(words: list[str], is_one: bool) -> None:
    assert foreign.launches_server(words) is is_one


@pytest.mark.parametrize(
    ("words", "visible", "indexes"),
    [
        ("", None, [0]),
        ("", "2", [2]),
        ("", "GPU-3", [3]),
        ("", "2,0", [2]),
        ("--tp-size 2", "2,0", [2, 0]),
        ("--tensor-parallel-size=2 --dp-size 2", None, [0, 1, 2, 3]),
        ("--base-gpu-id 1 --tp 2 --gpu-id-step 2", None, [1, 3]),
        ("", "9,1", []),
        ("", "", []),
        ("--tp-size many", None, [0]),
    ],
)
def test_cards_by_flags_and_environment(words: str, visible: str | None, indexes: list[int]) -> None:
    assert [card["index"] for card in foreign.asked_cards(words.split(), visible, CARDS)] == indexes


def processes(*lines: tuple[int, int, str]) -> dict[int, foreign.Process]:
    return {pid: foreign.Process(pid, parent, "1", tuple(words.split())) for pid, parent, words in lines}


@pytest.mark.parametrize("above", ["/bin/bash /opt/start.sh", "sh -c x", "numactl -N 0 python", "uv run python"])
def test_a_unit_owns_what_its_main_process_only_wraps(above: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = processes((50, 1, above), (60, 50, "python3 -m sglang.launch_server"))
    monkeypatch.setattr(host, "unit_of", lambda pid: "old.service")
    monkeypatch.setattr(foreign, "unit_facts", lambda unit: {"MainPID": "50"})
    assert foreign.owning_unit(60, table) == "old.service"


@pytest.mark.parametrize("above", ["/usr/sbin/sshd -D", "/usr/sbin/cron -f", "tmux: server", "/usr/bin/supervisord"])
def test_a_unit_does_not_own_what_somebody_started_below_its_daemon(
    above: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = processes((50, 1, above), (55, 50, "-bash"), (60, 55, "python3 -m sglang.launch_server"))
    monkeypatch.setattr(host, "unit_of", lambda pid: "ssh.service")
    monkeypatch.setattr(foreign, "unit_facts", lambda unit: {"MainPID": "50"})
    assert foreign.owning_unit(60, table) == ""


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service\n", "llm.service of its user's own"),
        ("1:name=systemd:/system.slice/docker-0123abc.scope\n0::/\n", "a container of its own (docker-0123abc.scope)"),
        ("0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope\n", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/system.slice/ssh.service\n", ""),
        ("0::/\n", ""),
    ],
)
def test_what_would_start_it_again_is_told_by_its_control_group(group: str, words: str) -> None:
    assert words in foreign.kept_by(group)
    assert bool(words) is bool(foreign.kept_by(group))


def test_tmux_and_nohup_are_named(tmp_path: Path) -> None:
    table = processes((50, 1, "tmux new -d"), (55, 50, "-bash"), (60, 55, "python3 -m sglang.launch_server"))
    assert foreign.by_hand(60, table) == "by hand (tmux)"
    sleeper = subprocess.Popen(["nohup", "sleep", "600"], stderr=subprocess.DEVNULL)
    try:
        while foreign.processes()[sleeper.pid].words[:1] != ("sleep",):
            time.sleep(0.01)
        assert foreign.by_hand(sleeper.pid, foreign.processes()) == "by hand (nohup)"
    finally:
        sleeper.kill()
        sleeper.wait()


def test_files_of_others_where_ours_go(tmp_path: Path) -> None:
    (tmp_path / "sglang@.service").write_text("[Service]\nExecStart=python -m sglang.launch_server\n")
    (tmp_path / "sglang.target").write_text("# Managed by sglang-pve. All SGLang servers.\n[Unit]\n")
    (tmp_path / "sglang@3.service").write_text("[Service]\n")
    (tmp_path / "sglang-old.service").write_text("[Service]\n")
    assert foreign.unit_files(tmp_path) == [str(tmp_path / "sglang@.service"), str(tmp_path / "sglang@3.service")]


def test_a_pid_without_an_open_gpu_is_of_elsewhere() -> None:
    """Older drivers give a container the node's pids, which may be those of innocent processes here."""
    row = {"pid": os.getpid(), "uuid": "GPU-1abc", "used_mib": 5000, "name": "python"}
    assert [(one["pid"], one["user"], one["command"]) for one in holders.named([row])] == [(None, "", "")]
    assert holders.named(None) == []
    assert "does not see (5,000 MiB)" in holders.sentence(holders.named([row])[0])
