"""Servers that somebody runs by hand already: named, refused, taken over one at a time, and put back by a failing gate.

One was started with nohup by an ordinary user on GPU 0, on the very port that ours is to have; one by a unit on GPU 1.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from fleet_kit import NAMES, Fleet, changes, said, wait

from tests.lab_fixture import own_lab, present

pytestmark = pytest.mark.container

ENGINE = "/opt/byhand"
UNIT = "old-sglang.service"
PORTS = {0: 30000, 1: 8001}
COMMAND = "python3 -m sglang.launch_server --model-path /models/qwen3.6-lab --host 0.0.0.0"
UNIT_FILE = f"""[Unit]
Description=a server that somebody set up
[Service]
Environment=PYTHONPATH={ENGINE} CUDA_VISIBLE_DEVICES=%s HF_TOKEN=hunter3
ExecStart=/bin/bash -c 'cd / && {COMMAND} --port {PORTS[1]} --api-key hunter2; exit 1'
[Install]
WantedBy=multi-user.target
"""
BY_HAND = f"""
cd /home/ada
export PYTHONPATH={ENGINE} CUDA_VISIBLE_DEVICES=0 HF_TOKEN=hunter3
nohup {COMMAND} --port {PORTS[0]} --api-key hunter2 >server.log 2>&1 </dev/null &
"""


class Hands:
    """The two foreign servers."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def start(self) -> None:
        wheel = next((self.fleet.lab.dir / "wheelhouse").glob("sglang-*.whl"))
        self.fleet.lab.pct("push", str(self.fleet.lab.vmid), str(wheel), "/root/engine.whl")
        self.fleet.inside(f"python3 -m zipfile -e /root/engine.whl {ENGINE} && chmod -R a+rX {ENGINE}")
        self.fleet.inside("useradd --create-home ada && systemctl mask --quiet sys-kernel-debug.mount")
        uuid = self.fleet.inside("nvidia-smi -i 1 --query-gpu=uuid --format=csv,noheader")
        self.fleet.inside(f"cat >/etc/systemd/system/{UNIT} <<'END'\n{UNIT_FILE % uuid}END")
        self.fleet.inside(f"systemctl daemon-reload && systemctl enable --quiet --now {UNIT}")
        self.fleet.inside(f"runuser -u ada -- sh -c '{BY_HAND}'")
        self.wait()

    def wait(self) -> None:
        wait(lambda: all(self.healthy(index) for index in PORTS), "both serve")

    def healthy(self, index: int) -> bool:
        url = f"http://10.77.{self.fleet.lab.vmid % 256}.2:{PORTS[index]}/health"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False

    def seen(self) -> dict[int, dict]:
        """What fleet_state says of them, by GPU."""
        return {one["gpus"][0]["index"]: one for one in self.fleet.state()["foreign"]["servers"]}

    def pids(self) -> dict[int, int]:
        return {index: one["pid"] for index, one in self.seen().items()}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A lab in which nothing of ours was deployed."""
    with own_lab(first_vmid=211) as lab:
        present(lab)
        yield Fleet(lab, tmp_path_factory.mktemp("controller"))


@pytest.fixture(scope="module")
def hands(fleet: Fleet) -> Hands:
    made = Hands(fleet)
    made.start()
    return made


def without_secrets(text: str) -> None:
    assert "hunter" not in text


def test_preflight_and_site_name_both_and_touch_neither(fleet: Fleet, hands: Hands) -> None:
    seen = hands.seen()
    assert [seen[index]["user"] for index in (0, 1)] == ["ada", "root"]
    assert [seen[index]["unit"] for index in (0, 1)] == ["", UNIT]
    assert [seen[index]["blocked"] for index in (0, 1)] == ["", ""]
    for playbook in ("preflight", "site"):
        done = fleet.refused(
            "Nothing was touched.",
            f"error foreign-server {fleet.host(0)}: pid {seen[0]['pid']} (an SGLang server of user ada, "
            f"started by hand (nohup), on port 30000, GPU 0): {COMMAND} --port 30000 --api-key ***;",
            f"error foreign-server {fleet.host(1)}: pid {seen[1]['pid']} (an SGLang server of user root, "
            f"started by {UNIT}, on port 8001, GPU 1): {COMMAND} --port 8001 --api-key ***;",
            f"take it over with playbooks/adopt.yml --limit {fleet.host(1)}, or stop it yourself",
            playbook=playbook,
        )
        without_secrets(done.stdout)
        assert "port-taken" not in done.stdout
    assert hands.pids() == {index: one["pid"] for index, one in seen.items()}
    assert hands.healthy(0) and hands.healthy(1)


def test_without_confirmation_adopt_only_shows(fleet: Fleet, hands: Hands) -> None:
    before = hands.pids()
    done = fleet.run("adopt")
    assert done.returncode == 0, done.stdout
    assert changes(done) == 0
    without_secrets(done.stdout)
    for index, how in ((0, "ada by hand (nohup) 30000"), (1, f"root by {UNIT} 8001")):
        new = f"10.77.{fleet.lab.vmid % 256}.2:{30000 + index}"
        assert f"{fleet.host(index)} {index} {before[index]} {how} {new}" in said(done), done.stdout
    assert "add -e sglang_adopt_confirm=true" in said(done)
    assert hands.pids() == before


def test_a_failing_gate_puts_the_old_server_back(fleet: Fleet, hands: Hands) -> None:
    before = hands.seen()
    wrong = {"sglang_smoke_answer": "none of this", "sglang_adopt_confirm": True}
    # The first that fails ends it: the other is not touched.
    done = fleet.run("adopt", **wrong)
    assert done.returncode == 2, done.stdout
    again = f"the server of user ada (pid {before[0]['pid']} before) was started again and serves on port 30000"
    assert again in said(done), done.stdout
    without_secrets(done.stdout)
    after = hands.seen()
    assert after[1] == before[1]
    assert after[0]["pid"] != before[0]["pid"]
    changed = {key for key in before[0] if before[0][key] != after[0][key]}
    assert changed == {"pid", "pids", "started", "since"}
    assert "HF_TOKEN=hunter3" in fleet.inside(f"tr '\\0' '\\n' </proc/{after[0]['pid']}/environ").splitlines()
    assert fleet.inside(f"readlink /proc/{after[0]['pid']}/cwd") == "/home/ada"

    done = fleet.run("adopt", "--limit", fleet.host(1), **wrong)
    assert done.returncode == 2, done.stdout
    assert f"{UNIT} was started again and serves on port 8001" in said(done), done.stdout
    assert fleet.inside(f"systemctl is-enabled {UNIT}") == "enabled"
    assert hands.seen()[0] == after[0]
    assert hands.healthy(0) and hands.healthy(1)
    assert fleet.state()["servers"] == {}
    assert fleet.attempt("ls /run/sglang-pve/adopt").stdout == ""


LOOP = """
export PYTHONPATH=%s CUDA_VISIBLE_DEVICES=2
while :; do %s --port 8002; done >/home/ada/loop.log 2>&1 </dev/null
"""


def test_what_something_starts_again_is_left_to_it(fleet: Fleet, hands: Hands) -> None:
    fleet.inside(f"cat >/home/ada/loop.sh <<'END'\n{LOOP % (ENGINE, COMMAND)}END")
    fleet.inside("systemd-run --quiet --scope --unit=loop --uid=ada sh /home/ada/loop.sh >/dev/null 2>&1 </dev/null &")
    try:
        wait(lambda: 2 in hands.seen(), "it is there")
        first = hands.seen()[2]["pid"]
        done = fleet.run("adopt", "--limit", fleet.host(2), sglang_adopt_confirm=True)
        assert done.returncode == 2, done.stdout
        again = hands.seen()[2]["pid"]
        assert again != first
        assert f"gpu2: pid {again} (an SGLang server of user ada" in said(done)
        assert "something started it there again. Stop what does that" in said(done)
        assert fleet.state()["foreign"]["unfinished"] == {}
    finally:
        fleet.inside("systemctl stop loop.scope")


def test_adopt_takes_them_over_one_at_a_time(fleet: Fleet, hands: Hands) -> None:
    before = hands.seen()
    # A run that dies between the stop of the old server and the start of ours can be run again.
    with fleet.started(playbook="adopt", sglang_adopt_confirm=True) as running:
        running.wait_for("TASK [rollout : Switch it]")
        running.kill(everything=True)
    assert list(fleet.state()["foreign"]["unfinished"]) == ["gpu0"]
    fleet.refused(f"error take-over-unfinished {fleet.host(0)}: adopt.yml stopped pid {before[0]['pid']} (of user ada")
    done = fleet.run("adopt", sglang_adopt_confirm=True)
    assert done.returncode == 0, done.stdout
    without_secrets(done.stdout)
    assert list(fleet.releases()) == ["gpu0", "gpu1"]
    assert fleet.healthy(0) and fleet.healthy(1)
    state = fleet.state()
    assert state["foreign"] == {"servers": [], "unit_files": [], "unfinished": {}}
    assert [state["servers"][name]["gpu"]["holders"][0]["own"] for name in ("gpu0", "gpu1")] == [True, True]
    assert fleet.attempt(f"systemctl is-enabled {UNIT}").stdout.strip() == "disabled"
    assert fleet.inside(f"cat /etc/systemd/system/{UNIT}").startswith(
        "[Unit]\nDescription=a server that somebody set up"
    )
    entries = [json.loads(line) for line in fleet.inside("cat /var/lib/sglang/history.jsonl").splitlines()]
    adopted = [entry for entry in entries if entry["event"] == "adopted"]
    assert [(entry["server"], entry["was"]["pid"]) for entry in adopted] == [
        (f"gpu{index}", before[index]["pid"]) for index in (0, 1)
    ]
    told = [entry["event"] for entry in entries[entries.index(adopted[0]) :]]
    assert told == ["adopted", "activated", "adopted", "verified"]
    without_secrets(json.dumps(entries))
    assert set(state["history"]["line"][-1]) == {"gpu0", "gpu1"}

    pids = fleet.pids()
    done = fleet.run("adopt", sglang_adopt_confirm=True)
    assert (done.returncode, changes(done)) == (0, 0), done.stdout
    assert "No SGLang server of somebody else is on a selected GPU" in said(done)
    fleet.good_run()
    after = fleet.pids()
    assert (after["gpu0"], after["gpu1"]) == (pids["gpu0"], pids["gpu1"])
    assert sorted(fleet.releases()) == NAMES


HOLDER = "sglang_lab_scheduler"


def test_who_else_is_on_a_card_is_shown_and_judged(fleet: Fleet, hands: Hands) -> None:
    """A training run on the card of a server: nvidia-smi of the lab goes by the name and the card."""
    uuid = fleet.inside("nvidia-smi -i 1 --query-gpu=uuid --format=csv,noheader")
    claim = f"--setenv=CUDA_VISIBLE_DEVICES={uuid} --setenv=SGLANG_LAB_GPU_MIB=2000"
    script = f"exec 9<>/dev/nvidia1; exec -a {HOLDER} sleep 600"
    fleet.inside(f"systemd-run --quiet --unit=train --uid=ada {claim} bash -c '{script}'")
    try:
        pid = fleet.inside("systemctl show train --property MainPID --value")
        wait(lambda: HOLDER in fleet.inside(f"cat /proc/{pid}/cmdline"), "it is the trainer")
        text = f"pid {pid} ({HOLDER} 600, of user ada, 2,000 MiB)"
        assert f"{text} is on the card of {fleet.host(1)}" in said(fleet.run("status"))
        fleet.refused(f"error gpu-held {fleet.host(1)}: {text} uses GPU 1;")
    finally:
        fleet.inside("systemctl stop train")
