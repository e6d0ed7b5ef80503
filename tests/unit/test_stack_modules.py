"""sglang_stack_info and sglang_stack as Ansible runs them, in the order of the role."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglang_pve.stack import python_version
from stack_kit import PYTHON, REPOSITORY, UV_WHEEL, make_stack, make_uv_wheel

from action_plugins import sglang_stack_info as plugin


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A controller's stacks/tiny and source/, with wheels."""
    place = tmp_path_factory.mktemp("controller")
    (place / "source").mkdir()
    stack = make_stack(place / "source", make_uv_wheel(place / "source"))
    data = place / "stacks/tiny"
    data.mkdir(parents=True)
    meta = {
        "schema": 1,
        "engine": stack.engine,
        "flags": "f",
        "python": [python_version(PYTHON)],
        "imports": ["sglang"],
    }
    meta["uv"] = {"wheel": UV_WHEEL, "sha256": stack.uv_sha256}
    (data / "stack.yml").write_text(yaml.safe_dump(meta))
    (data / "lock.txt").write_text(stack.lock)
    return place


def play(directory: Path, text: str, **variables: object) -> Any:
    """Run a playbook on this machine; what it left in ``directory``/results.json."""
    playbook = directory / "play.yml"
    playbook.write_text(text)
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", str(playbook)]
    command += ["-e", json.dumps({key: str(value) for key, value in variables.items()})]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "LANG": "C.UTF-8"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((directory / "results.json").read_text())


# The role's steps with a fault between them; each result is kept in a file.
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ansible_python_interpreter: "{{ python }}"
  module_defaults:
    sglang_stack_info: {name: tiny, stacks_dir: "{{ place }}/stacks", python: "{{ minor }}"}
    sglang_stack: &stack
      name: "{{ info.stack.name }}"
      stack_id: "{{ info.stack.id }}"
      lock: "{{ info.stack.lock }}"
      engine: "{{ info.stack.engine }}"
      uv: "{{ info.stack.uv }}"
      imports: "{{ info.stack.imports }}"
      python_versions: "{{ info.stack.python }}"
      wheelhouse: "{{ here }}/wheelhouse"
      root: "{{ here }}/sglang/stacks"
      python: "{{ python }}"
  tasks:
    - {sglang_stack_info: {}, register: info}
    - {sglang_stack: {}, check_mode: true, register: first_check}
    - file: {path: "{{ here }}/wheelhouse", state: directory}
    - copy: {src: "{{ place }}/source/{{ info.stack.uv.wheel }}", dest: "{{ here }}/wheelhouse/", mode: "0644"}
    - {sglang_stack: {state: wheels}, register: wheels}
    - {sglang_stack: {}, register: early, ignore_errors: true}
    - sglang_stack_info:
        wheelhouse_source: "{{ place }}/source"
        wanted: "{{ wheels.lacking | map(attribute='requirement') }}"
      register: found
    - copy: {src: "{{ item.path }}", dest: "{{ here }}/wheelhouse/{{ item.name }}", mode: "0644"}
      loop: "{{ found.files }}"
    - {sglang_stack: {}, register: install}
    - {sglang_stack: {}, register: again}
    - {sglang_stack: {}, check_mode: true, register: last_check}
    - file: {path: "{{ here }}/wheelhouse", state: absent}
    - {sglang_stack: {state: wheels}, register: last_wheels}
    - copy:
        dest: "{{ here }}/results.json"
        content: "{{ dict(names | zip(names | map('extract', vars))) | to_json }}"
      vars:
        names: [info, first_check, wheels, early, found, install, again, last_check, last_wheels]
"""


def test_the_roles_way(place: Path, tmp_path: Path) -> None:
    results = play(tmp_path, PLAY, place=place, here=tmp_path, python=PYTHON, minor=python_version(PYTHON))
    info = results["info"]
    assert (info["changed"], info["stack"]["name"], info["stack"]["engine"]) == (False, "tiny", "0.5.11")
    assert info["stack"]["wheels"] == ["uv==9.9.9", "helper==1.2", "sglang==0.5.11"]

    # A first --check comes before anything is there.
    check = results["first_check"]
    assert (check["changed"], check["installed"], len(check["lacking"])) == (True, False, 3)
    assert "lacks 3 wheels of stack tiny now: it is not there" in check["warnings"][0]

    assert results["wheels"]["changed"] is False
    assert [entry["requirement"] for entry in results["wheels"]["lacking"]] == ["helper==1.2", "sglang==0.5.11"]
    assert "missing: helper==1.2, sglang==0.5.11" in results["early"]["msg"]
    assert results["early"]["finding"]["id"] == "wheel-lacking"
    assert [file["requirement"] for file in results["found"]["files"]] == ["helper==1.2", "sglang==0.5.11"]

    directory = str(tmp_path / "sglang/stacks" / info["stack"]["id"])
    assert (results["install"]["changed"], results["install"]["directory"]) == (True, directory)
    assert (results["again"]["changed"], results["again"]["installed"]) == (False, True)
    assert results["last_check"]["changed"] is False
    # An installed stack needs no wheels: none is sent for it.
    assert (results["last_wheels"]["installed"], results["last_wheels"]["lacking"]) == (True, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "other"}, "expected one of tiny in"),
        ({"python": "2.7.18"}, "Python 2.7.18 in the container; expected one of 3."),
        ({"directory": "/nowhere"}, "wheelhouse_source /nowhere: No such file"),
        ({"directory": "/", "wanted": ["helper==1.2"]}, "lacks 1 of 1 wheels: missing: helper==1.2"),
        ({"directory": "/", "wanted": ["stranger==1"]}, "wanted: stranger==1; expected requirements of stack tiny"),
    ],
)
def test_what_the_controller_refuses(place: Path, arguments: dict[str, Any], words: str) -> None:
    p = {"name": "tiny", "python": python_version(PYTHON), "machine": "x86_64", "wanted": None, **arguments}
    with pytest.raises(plugin.StackError) as caught:
        stack = plugin.read_stack(place / "stacks", p["name"], p["python"])
        plugin.find_files(stack, Path(p["directory"]), p)
    assert words in str(caught.value)


PLACE = {"driver": "580.65", "nvcc": None, "glibc": "2.36", "wheels": [], "stacks": []}
ASKED = {"name": "auto", "engine": "0.5.11", "lane": "auto", "machine": "x86_64", "wheelhouse_source": None}


@pytest.fixture
def lanes(place: Path, tmp_path: Path) -> Path:
    """Stacks of both lanes beside one of another engine."""
    good = yaml.safe_load((place / "stacks/tiny/stack.yml").read_text())
    for name, more in {
        "new": {"lane": "cu130", "driver_min": 580},
        "old": {"lane": "cu12", "driver_min": 570},
        "other": {"lane": "cu130", "engine": "0.6.0"},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "stack.yml").write_text(yaml.safe_dump({**good, **more}))
        (tmp_path / name / "lock.txt").write_text((place / "stacks/tiny/lock.txt").read_text())
    return tmp_path


def selected(lanes: Path, place: dict[str, Any] | None = None, **asked: Any) -> tuple[str, Any]:
    p = {**ASKED, "python": python_version(PYTHON), "place": {**PLACE, **(place or {})}, **asked}
    stack, choice = plugin.select(lanes, p)
    assert stack["name"] == choice.name
    return choice.name, choice


def test_auto_takes_the_lane_that_fits(lanes: Path) -> None:
    assert selected(lanes)[0] == "new"
    name, choice = selected(lanes, {"driver": "570.86"})
    assert name == "old" and "lane cu130 does not fit: driver 570.86, expected 580 or later" in choice.reason
    assert selected(lanes, engine="0.6.0")[0] == "other"
    assert selected(lanes, lane="cu12")[0] == "old"


def test_wheels_count_wherever_they_are(lanes: Path, place: Path) -> None:
    assert "3 wheels lacking" in selected(lanes)[1].reason
    there = [path.name for path in (place / "source").iterdir()]
    assert "all wheels at hand" in selected(lanes, {"wheels": there})[1].reason
    assert "all wheels at hand" in selected(lanes, wheelhouse_source=str(place / "source"))[1].reason
    installed = plugin.load_stack(lanes, "new", python_version(PYTHON))["id"]
    assert "all wheels at hand" in selected(lanes, {"stacks": [installed]})[1].reason


def test_a_named_stack_is_kept_and_judged(lanes: Path) -> None:
    name, choice = selected(lanes, {"driver": "565.57"}, name="old", lane="cu130")
    assert name == "old" and choice.reason.endswith("chosen by sglang_stack")
    assert [finding.id for finding in choice.findings] == ["driver-too-old", "lane-differs"]


def test_no_stack_of_an_engine_or_lane_names_those_there_are(lanes: Path) -> None:
    for asked in ({"engine": "9.9"}, {"engine": "0.6.0", "lane": "cu12"}):
        with pytest.raises(
            plugin.StackError, match=r"expected one of 0.5.11 \(cu130\), 0.5.11 \(cu12\), 0.6.0 \(cu130\)"
        ):
            selected(lanes, **asked)


BROKEN = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - sglang_stack_info: {name: tiny, stacks_dir: "{{ here }}/{{ item }}", python: "3.11"}
      loop: [syntax, field, lock]
      ignore_errors: true
      register: broken
    - copy: {dest: "{{ here }}/results.json", content: "{{ broken.results | to_json }}"}
"""


def test_broken_stack_data_names_its_file(place: Path, tmp_path: Path) -> None:
    good = {name: (place / "stacks/tiny" / name).read_text() for name in ("stack.yml", "lock.txt")}
    good["stack.yml"] = good["stack.yml"].replace(python_version(PYTHON), "3.11")
    broken = {
        "syntax": {"stack.yml": "engine: ["},
        "field": {"stack.yml": "schema: 1"},
        "lock": {"lock.txt": "sglang==0.5.11"},
    }
    for name, files in broken.items():
        (tmp_path / name / "tiny").mkdir(parents=True)
        for file, text in {**good, **files}.items():
            (tmp_path / name / "tiny" / file).write_text(text)
    syntax, field, lock = play(tmp_path, BROKEN, here=tmp_path)
    assert syntax["finding"]["id"] == "stack-meta" and f"{tmp_path}/syntax/tiny" in syntax["msg"]
    assert f"{tmp_path}/field/tiny/stack.yml has no field 'engine'" in field["msg"]
    assert f"{tmp_path}/lock/tiny/lock.txt: lock line 'sglang==0.5.11'" in lock["msg"]
