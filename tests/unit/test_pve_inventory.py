"""The dynamic inventory against a served API, read by ansible-inventory; and the API's way to a container's facts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from proxmoxer import ProxmoxAPI
from sglang_pve import pve_api

from tests.unit import pve_api_kit

PROJECT = Path(__file__).resolve().parents[2]


def tool(name, *arguments, **environment):
    command = [str(Path(sys.executable).with_name(name)), *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(
        command, cwd=PROJECT, env={**clean, **environment}, capture_output=True, text=True, check=False
    )


def source(place, url, **more):
    path = place / "farm.sglang_pve.yml"
    how = {"api_url": url, "api_token_id": pve_api_kit.TOKEN[0], "api_ca_path": str(pve_api_kit.certificate())}
    path.write_text(json.dumps({"plugin": "sglang_pve", **how, **more}))
    return path


def listed(path, secret=pve_api_kit.TOKEN[1]):
    return tool("ansible-inventory", "-i", path, "--list", PROXMOX_TOKEN_SECRET=secret)


def test_containers_become_groups_and_their_cards_hosts(tmp_path):
    with pve_api_kit.served(pve_api_kit.cluster()) as url:
        done = listed(source(tmp_path, url))
    assert done.returncode == 0, done.stderr
    # What comes from outside is never a template to Ansible, and is listed with that mark.
    found = json.loads(done.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value))
    assert sorted(found["sglang"]["children"]) == ["ct200", "ct201", "ct206"]
    assert found["ct200"]["hosts"] == [f"ct200-gpu{index}" for index in range(8)]
    assert found["ct201"]["hosts"] == ["ct201-gpu0", "ct201-gpu1"]
    assert sorted(found["nodes"]["hosts"]) == ["pve1", "pve2", "pve3"]
    of = found["_meta"]["hostvars"]
    assert of["pve2"]["ansible_host"] == "192.0.2.11"
    assert (of["ct201-gpu1"]["sglang_node"], of["ct201-gpu1"]["sglang_vmid"]) == ("pve2", 201)
    # The node that is down is told, and one host stands for its container.
    assert found["ct206"]["hosts"] == ["ct206-gpu0"]
    said = " ".join(done.stderr.split())
    assert "container 206 on node pve3 cannot be read" in said
    assert "container 207 on node pve2 has the tag and no /dev/nvidiaN" in said
    assert pve_api_kit.TOKEN[1] not in done.stdout + done.stderr


def test_another_tag(tmp_path):
    with pve_api_kit.served(pve_api_kit.cluster()) as url:
        done = listed(source(tmp_path, url, tag="gpu"))
    assert json.loads(done.stdout)["sglang"]["children"] == ["ct200"]


@pytest.mark.parametrize(
    ("answers", "secret", "words"),
    [
        (pve_api_kit.cluster(), "wrong", "the token is refused (401)"),
        ({"/cluster/status": 403}, pve_api_kit.TOKEN[1], "role PVEAuditor"),
        ({"/cluster/status": b"<html>"}, pve_api_kit.TOKEN[1], "answered with no JSON"),
        ({"/cluster/status": b"[]"}, pve_api_kit.TOKEN[1], "answered without data"),
    ],
)
def test_an_api_that_says_no_stops_the_run(tmp_path, answers, secret, words):
    with pve_api_kit.served(answers) as url:
        done = listed(source(tmp_path, url), secret)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"api_ca_path": str(pve_api_kit.certificate("another"))}, "whether api_ca_path knows its certificate"),
        ({"api_url": "http://127.0.0.1:8006"}, "expected nothing but https, host and port"),
        ({"api_url": "https://127.0.0.1:99999"}, "expected nothing but https, host and port"),
        ({"api_url": "https://[::1"}, "expected nothing but https, host and port"),
        ({"api_url": "https://127.0.0.1:8006/api2/json"}, "expected nothing but https, host and port"),
        (
            {"api_url": "https://root:secret@127.0.0.1"},
            "127.0.0.1 is no address of the API; expected nothing but https",
        ),
        ({"api_url": "https://:secret@127.0.0.1"}, "127.0.0.1 is no address of the API; expected nothing but https"),
        ({"api_token_id": "root@pam"}, "expected one such as sglang@pve!read"),
    ],
)
def test_what_cannot_be_the_api_is_refused_in_words(tmp_path, how, words):
    with pve_api_kit.served(pve_api_kit.cluster()) as url:
        done = listed(source(tmp_path, url, **how))
    assert done.returncode != 0 and words in " ".join(done.stderr.split())
    assert "secret@" not in done.stdout + done.stderr


def test_an_api_that_is_not_there_stops_the_run(tmp_path):
    with pve_api_kit.served({}) as url:
        pass
    done = listed(source(tmp_path, url))
    assert done.returncode != 0 and "look whether the node is up" in " ".join(done.stderr.split())


def test_a_certificate_for_another_name_is_refused(tmp_path):
    shown = pve_api_kit.certificate("elsewhere", "192.0.2.1")
    with pve_api_kit.served(pve_api_kit.cluster(), shown) as url:
        done = listed(source(tmp_path, url, api_ca_path=str(shown)))
    assert done.returncode != 0
    assert "IP address mismatch" in " ".join(done.stderr.split())


def test_an_api_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(pve_api, "TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = pve_api.connect(ProxmoxAPI, f"https://127.0.0.1:{silent.getsockname()[1]}", *pve_api_kit.TOKEN)
        with pytest.raises(pve_api.ApiError, match=r"timed out.*look whether the node is up"):
            api.get("/cluster/status")


@pytest.mark.parametrize("library", ["proxmoxer", "requests"])
def test_a_library_that_is_missing_is_named(tmp_path, library):
    (tmp_path / f"{library}.py").write_text("raise ImportError('not here')")
    path = source(tmp_path, "https://127.0.0.1:1")
    done = tool("ansible-inventory", "-i", path, "--list", PYTHONPATH=str(tmp_path), PROXMOX_TOKEN_SECRET="x")
    assert done.returncode != 0 and "install both beside Ansible" in " ".join(done.stderr.split())
    done = module("https://127.0.0.1:1", PYTHONPATH=str(tmp_path))
    assert done.returncode != 0 and "Failed to import the required Python library (proxmoxer and" in done.stdout


def test_containers_out_of_reach_are_set_aside_and_the_run_ends_non_zero(tmp_path):
    """Nothing listens on these nodes' addresses: 127.0.0.1 with a port that is closed."""
    answers = pve_api_kit.cluster()
    for item in answers["/cluster/status"]:
        item["ip"] = "127.0.0.1"
    with pve_api_kit.served(answers) as url:
        where = ["-i", source(tmp_path, url), "-e", "ansible_port=1", "-e", "sglang_model_path=/models/m"]
        done = tool("ansible-playbook", *where, "playbooks/preflight.yml", PROXMOX_TOKEN_SECRET=pve_api_kit.TOKEN[1])
    assert done.returncode == 4, done.stdout + done.stderr
    for leader in ("ct200-gpu0", "ct201-gpu0", "ct206-gpu0"):
        recap = next(
            line for line in done.stdout.splitlines() if line.startswith(f"{leader} ") and "unreachable=" in line
        )
        assert "unreachable=1" in recap


def module(url, vmid=200, **environment):
    arguments = {
        "vmid": vmid,
        "api_url": url,
        "api_node": "pve1",
        "api_token_id": pve_api_kit.TOKEN[0],
        "api_token_secret": pve_api_kit.TOKEN[1],
        "api_ca_path": str(pve_api_kit.certificate()),
    }
    command = ["-m", "pve_container_info", "-a", json.dumps(arguments), "-o", "localhost", "-i", "localhost,"]
    return tool("ansible", *command, "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", **environment)


def test_a_containers_facts_from_the_api(tmp_path):
    base = "/nodes/pve1/lxc/200"
    absent = "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"
    answers = {
        **pve_api_kit.cluster(),
        "/nodes/pve1/lxc/999/config?current=1": (500, absent),
        f"{base}/snapshot": [{"name": "before"}, {"name": "current"}],
        f"{base}/pending": [{"key": "memory", "value": 262144, "pending": 131072}, {"key": "cores", "value": 8}],
        f"{base}/status/current": {"status": "running", "vmid": 200},
        "/nodes/pve1/status": {
            "pveversion": "pve-manager/8.4.1/2a5fa54a8503f96d",
            "current-kernel": {"release": "6.8.12-9-pve"},
            "memory": {"total": 512 << 30},
        },
    }
    with pve_api_kit.served(answers) as url:
        done, gone = module(url), module(url, vmid=999)
    assert done.returncode == 0, done.stdout + done.stderr
    pve = json.loads(done.stdout.partition("=> ")[2])["pve"]
    assert pve["node"] == {"name": "pve1", "pve_version": "8.4.1", "kernel": "6.8.12-9-pve", "memory_gib": 512.0}
    assert (pve["container"]["status"], pve["container"]["running_config_pending"]) == ("running", True)
    config = pve["container"]["config"]
    assert config["memory_mib"] == 262144, "what waits for a restart is not what is"
    assert (len(config["devices"]), config["snapshots"], config["tags"]) == (8, ["before"], ["gpu", "sglang"])
    assert gone.returncode != 0 and absent in gone.stdout + gone.stderr
