"""What one server has on disk, and why it would restart."""

import subprocess
import time
from pathlib import Path

import pytest
from sglang_pve import server

PARAMETERS = {"gpu_uuid": "GPU-1", "card": "c", "host": "127.0.0.1", "port": 30003, "nccl_port": 31003, "numa_node": ""}


@pytest.fixture
def item(tmp_path: Path):
    for name in ("a", "b"):
        directory = tmp_path / "sglang" / "releases" / name
        directory.mkdir(parents=True)
        (directory / "run").write_text("#!/bin/sh\n")
        (directory / "unit.conf").write_text(f"[Unit]\nDescription={name}\n")
    return server.Server(3, tmp_path / "sglang", tmp_path / "systemd")


def running(item, release, parameters=PARAMETERS, active="active"):
    environ = {f"SGLANG_PVE_{key.upper()}": str(value) for key, value in parameters.items()}
    environ.update(SGLANG_PVE_RELEASE=release, PATH="/bin")
    return server.observe(item, {"active": active, "main_pid": 7}, environ)


def test_parameters_survive_the_way_through_a_shell(tmp_path: Path):
    odd = {"host": 'it\'s "$HOME" `x` \\ \n end', "numa_node": ""}
    path = tmp_path / "server.env"
    path.write_text(server.parameters_text(odd))
    script = f'. {path}; printf %s "$SGLANG_PVE_HOST"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == odd["host"]


def test_parameters_are_read_back(item):
    server.point(item, "a", PARAMETERS)
    seen = server.observe(item, {}, {})
    assert seen["parameters"] == {key: str(value) for key, value in PARAMETERS.items()}
    assert seen["release"] == "a"
    assert "Description=a" in seen["drop_in"]


def test_a_server_that_serves_what_is_wanted_has_no_reason_to_restart(item):
    server.point(item, "a", PARAMETERS)
    assert server.reasons(running(item, "a"), "a", PARAMETERS, "[Unit]\nDescription=a\n") == []


def test_another_release_and_a_killed_switch_are_reasons(item):
    server.point(item, "a", PARAMETERS)
    assert server.reasons(running(item, "a"), "b", PARAMETERS, None) == [
        "runs release a, wanted b",
        "link: a -> b",
    ]
    server.point(item, "b", PARAMETERS)
    assert server.reasons(running(item, "a"), "b", PARAMETERS, None) == ["runs release a, wanted b"]


def test_a_changed_parameter_of_a_running_server_is_a_reason(item):
    server.point(item, "a", {**PARAMETERS, "port": 30009})
    found = server.reasons(running(item, "a"), "a", {**PARAMETERS, "port": 30009}, None)
    assert found == ["port: 30003 -> 30009"]


@pytest.mark.parametrize("active", ["failed", "inactive", None])
def test_a_server_that_does_not_run_is_started(item, active):
    server.point(item, "a", PARAMETERS)
    seen = server.observe(item, {"active": active, "main_pid": 0}, {})
    assert server.reasons(seen, "a", PARAMETERS, None)[0].startswith("not running")


def test_the_first_start_is_one_reason(item):
    assert server.reasons(server.observe(item, {}, {}), "a", PARAMETERS, None) == ["first start, release a"]


def test_a_release_that_is_not_there_changes_nothing(item):
    server.point(item, "a", PARAMETERS)
    with pytest.raises(server.ServerError, match="release gone is not on this container"):
        server.point(item, "gone", {**PARAMETERS, "port": 1})
    assert server.observe(item, {}, {})["parameters"]["port"] == "30003"


def test_the_link_is_never_absent_while_it_is_switched(item):
    server.point(item, "a", PARAMETERS)
    (item.directory / ".release.new").symlink_to("left-by-a-kill")
    server.point(item, "b", PARAMETERS)
    assert (item.directory / "release").resolve() == item.release_directory("b")
    assert not (item.directory / ".release.new").is_symlink()


def test_the_environment_of_a_process_is_read():
    process = subprocess.Popen(["sleep", "60"], env={"SGLANG_PVE_RELEASE": "a", "EMPTY": ""})
    try:
        for _ in range(100):
            if server.process_environment(process.pid):
                break
            time.sleep(0.01)
        assert server.process_environment(process.pid) == {"SGLANG_PVE_RELEASE": "a", "EMPTY": ""}
    finally:
        process.kill()
        process.wait()
    assert server.process_environment(process.pid) == {}


def test_the_evidence_is_the_error_that_ends_the_journal():
    journal = [
        "[x] Ignore import error when loading sglang.srt.models.mimo_audio",
        "ValueError: first",
        "AssertionError: FlashAttention v3 Backend requires SM>=80",
        "sglang@0.service: Failed with result 'exit-code'.",
    ]
    assert server.evidence(journal) == "AssertionError: FlashAttention v3 Backend requires SM>=80"
    assert server.evidence(["all is well"]) == ""
