"""What is read of a container's files, and which checkpoints it must stage."""

import json
from pathlib import Path

from sglang_pve import fleet, release, server

STACK = {"id": "s", "name": "n", "engine": "0.5.11"}
PARAMETERS = {"host": "0.0.0.0", "port": 30000}


def deploy(root: Path, index: int, target: str) -> str:
    """A server whose release names the copy ``target``; returns the release's id."""
    plan = {"profile": "batch", "card": "c", "argv": [], "env": {}, "pools": {}}
    model = {"path": target, "source": "/models/m", "digest": "d", "name": "m"}
    content, files = release.manifest(STACK, model, plan), {"run": "", "unit.conf": ""}
    release.write(root / "releases", content, files)
    name = release.release_id(content, files)
    server.point(server.Server(index, root, root / "systemd"), name, PARAMETERS)
    return name


def copies(*targets):
    return [{"source": "/models/m", "target": target} for target in targets]


def test_what_a_server_names_stays_and_the_rest_is_let_go(tmp_path: Path):
    deploy(tmp_path, 0, "/shm/new")
    deploy(tmp_path, 1, "/shm/other")
    known = copies("/shm/old", "/shm/new", "/shm/other")
    assert fleet.served_models(tmp_path, known) == copies("/shm/new", "/shm/other")


def test_nothing_is_let_go_while_a_release_cannot_be_read(tmp_path: Path):
    name = deploy(tmp_path, 0, "/shm/new")
    (tmp_path / "releases" / name / "run").write_text("edited")
    assert fleet.served_models(tmp_path, copies("/shm/old", "/shm/new")) == copies("/shm/old", "/shm/new")


def test_a_link_that_names_no_whole_release_says_so(tmp_path: Path):
    name = deploy(tmp_path, 0, "/shm/new")
    assert fleet.release_error(name, release.read_all(tmp_path / "releases"), {}) == ""
    assert fleet.release_error(None, {}, {}) == ""
    assert fleet.release_error(name, release.read_all(tmp_path / "releases"), {"s": {"error": "altered"}}) == "altered"
    assert "release 123, which is not on the container" in fleet.release_error("123", {}, {})
    (tmp_path / "releases" / name / "run").write_text("edited")
    assert "altered on disk" in fleet.release_error(name, release.read_all(tmp_path / "releases"), {})


def test_the_list_for_the_next_boot_is_read_back_in_any_order(tmp_path: Path):
    path = tmp_path / "models.json"
    path.write_text(fleet.models_text(copies("/b", "/a")))
    assert fleet.read_models(path) == copies("/a", "/b")
    assert json.loads(path.read_text())["schema"] == 1


def test_a_list_that_cannot_be_read_is_empty(tmp_path: Path):
    path = tmp_path / "models.json"
    assert fleet.read_models(path) == []
    for text in ("", "[]", '{"models": [{"source": "/a"}]}', '{"models": 3}'):
        path.write_text(text)
        assert fleet.read_models(path) == []


def test_a_new_source_takes_the_place_of_a_known_one():
    new = [{"source": "/moved/m", "target": "/shm/a"}]
    assert fleet.models_to_stage(new, copies("/shm/a", "/shm/b")) == [*new, *copies("/shm/b")]


def test_servers_are_found_by_directory_and_by_enabled_unit(tmp_path: Path):
    (tmp_path / "servers" / "gpu3").mkdir(parents=True)
    (tmp_path / "servers" / "gpu-notes").mkdir()
    wants = tmp_path / "systemd" / "sglang.target.wants"
    wants.mkdir(parents=True)
    (wants / "sglang@10.service").symlink_to("/dev/null")
    (wants / "sglang-model.service").symlink_to("/dev/null")
    assert fleet.discover(tmp_path, tmp_path / "systemd") == [3, 10]


def test_an_unfinished_stack_is_no_stack(tmp_path: Path):
    for name, text in (("good", '{"name": "n", "engine": "0.5.11"}'), ("cut", '{"na'), ("bare", None)):
        directory = tmp_path / "stacks" / name
        directory.mkdir(parents=True)
        if text is not None:
            (directory / "stack.json").write_text(text)
    assert fleet.read_stacks(tmp_path) == {"good": {"name": "n", "engine": "0.5.11", "error": ""}}


def test_a_server_that_listens_everywhere_is_asked_on_loopback():
    assert fleet.base_url({"host": "0.0.0.0", "port": "1"}) == "http://127.0.0.1:1"
    assert fleet.base_url({"host": "10.0.0.2", "port": "1"}) == "http://10.0.0.2:1"
    assert fleet.base_url({}) == fleet.base_url({"host": "10.0.0.2"}) == ""
