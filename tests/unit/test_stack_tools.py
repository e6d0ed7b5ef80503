"""What makes stacks on a connected machine: locks, wheelhouses, flag tables. Real uv and pip, without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from stack_kit import PYTHON, REPOSITORY, lock_of, make_stack, make_uv_wheel, make_wheel, python_version, sha256

from stacks import flags as flags_tool
from stacks import lock as lock_tool
from stacks import wheelhouse as wheelhouse_tool

MINOR = python_version(PYTHON)


def entry(file: str, *requires: str) -> dict[str, Any]:
    return {
        "file": file,
        "sha256": f"{len(file):064x}",
        "page": "https://elsewhere.example/",
        "requires": list(requires),
    }


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stack all of whose wheels are elsewhere, so that it resolves without an index."""
    monkeypatch.setattr(lock_tool, "STACKS", tmp_path / "stacks")
    monkeypatch.setenv("UV_OFFLINE", "1")
    place = tmp_path / "stacks/tiny"
    place.mkdir(parents=True)
    (place / "requirements.in").write_text("engine==1.0+cu129\n")
    (place / "overrides.txt").write_text("toolkit<13\n")
    write_meta(
        place,
        entry("engine-1.0+cu129-py3-none-any.whl", "toolkit>=13", "some_kernel"),
        entry("toolkit-12.9-py3-none-any.whl"),
        entry("some_kernel-2.0-py3-none-any.whl"),
    )
    return place


def write_meta(place: Path, *elsewhere: dict[str, Any]) -> None:
    uv = {"wheel": "uv", "sha256": "a" * 64}
    meta = {"schema": 1, "engine": "1.0", "flags": "f", "python": ["3.12", "3.11"], "imports": [], "uv": uv}
    more = {"resolved": "2026-05-12", "glibc_min": "2.34", "elsewhere": list(elsewhere)}
    (place / "stack.yml").write_text(yaml.safe_dump({**meta, **more}))


def run_lock(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(sys, "argv", ["lock.py", *names])
    lock_tool.main()


def test_the_same_inputs_give_the_same_lock(
    stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_lock(monkeypatch, "tiny")
    first = (stack / "lock.txt").read_bytes()
    assert first.decode().splitlines() == [
        "engine==1.0+cu129 \\",
        f"    --hash=sha256:{len('engine-1.0+cu129-py3-none-any.whl'):064x}",
        "some-kernel==2.0 \\",
        f"    --hash=sha256:{len('some_kernel-2.0-py3-none-any.whl'):064x}",
        "toolkit==12.9 \\",
        f"    --hash=sha256:{len('toolkit-12.9-py3-none-any.whl'):064x}",
    ]
    assert "written, 3 packages" in capsys.readouterr().out
    run_lock(monkeypatch, "tiny")
    assert capsys.readouterr().out == "stacks/tiny/lock.txt: unchanged, 3 packages\n"
    # A lock that is there is no wish, and what changes is said.
    (stack / "lock.txt").write_text(first.decode().replace("some-kernel==2.0", "some-kernel==1.0"))
    run_lock(monkeypatch, "tiny")
    assert "  some-kernel: 1.0 -> 2.0\n" in capsys.readouterr().out
    assert (stack / "lock.txt").read_bytes() == first


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("requirements.in", "engine==9\n", "uv cannot resolve"),
        ("overrides.txt", "toolkit<12\n", "uv cannot resolve"),
        ("requirements.in", "some_kernel\n", "is not what the lock resolves to"),
        ("stack.yml", "schema: 2\n", "has schema 2"),
    ],
)
def test_a_lock_that_cannot_be_made_leaves_the_old_one(
    stack: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, words: str
) -> None:
    run_lock(monkeypatch, "tiny")
    before = (stack / "lock.txt").read_bytes()
    (stack / file).write_text(text)
    with pytest.raises(SystemExit, match=words):
        run_lock(monkeypatch, "tiny")
    assert (stack / "lock.txt").read_bytes() == before
    with pytest.raises(SystemExit, match="No such file"):
        run_lock(monkeypatch, "absent")


# --- the wheelhouse


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes for its only source, and a stack of two small wheels in it."""
    source = tmp_path / "source"
    source.mkdir()
    uv = make_uv_wheel(source)
    made = make_stack(source, uv)
    data = tmp_path / "stacks/tiny"
    data.mkdir(parents=True)
    meta = {"schema": 1, "engine": "0.5.11", "flags": "f", "python": [MINOR], "imports": ["sglang"]}
    (data / "stack.yml").write_text(yaml.safe_dump({**meta, "uv": {"wheel": uv.name, "sha256": sha256(uv)}}))
    (data / "lock.txt").write_text(made.lock)
    monkeypatch.setattr(wheelhouse_tool, "STACKS", tmp_path / "stacks")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    # A machine's own constraint says nothing about a lock.
    (tmp_path / "constraint.txt").write_text("helper<1\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraint.txt"))
    return source


def fill(monkeypatch: pytest.MonkeyPatch, directory: Path, *names: str) -> None:
    monkeypatch.setattr(sys, "argv", ["wheelhouse.py", str(directory), MINOR, *(names or ("tiny",))])
    wheelhouse_tool.main()


def test_a_wheelhouse_is_filled_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    house = tmp_path / "house"
    (house / ".part-left").mkdir(parents=True)
    fill(monkeypatch, house)
    said = capsys.readouterr().out
    assert "tiny, Python 3" in said and "0 of 3 wheels are there" in said and "[3/3]" in said.replace(" ", "")
    assert sorted(path.name for path in house.iterdir()) == sorted(path.name for path in source.iterdir())
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    fill(monkeypatch, house)
    assert "3 of 3 wheels are there" in capsys.readouterr().out


def test_an_altered_wheel_is_named_and_fetched_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    house = tmp_path / "house"
    fill(monkeypatch, house)
    altered = next(house.glob("helper-*"))
    altered.write_bytes(altered.read_bytes()[:-1])
    fill(monkeypatch, house)
    said = capsys.readouterr().out
    assert f"{altered.name}: altered or cut short" in said and "[1/1]" in said.replace(" ", "")
    assert sha256(altered) == sha256(source / altered.name)


def test_what_cannot_be_had_is_named_and_the_rest_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, bent = next(source.glob("helper-*")), next(source.glob("sglang-*"))
    gone.unlink()
    good = bent.read_bytes()
    bent.write_bytes(good + b"more")
    with pytest.raises(SystemExit) as caught:
        fill(monkeypatch, tmp_path / "house")
    said = str(caught.value)
    assert (
        "2 wheels are still missing; run again" in said and "helper==1.2 for" in said and "sglang==0.5.11 for" in said
    )
    assert [path.name for path in (tmp_path / "house").iterdir()] == ["uv-9.9.9-py3-none-any.whl"]
    bent.write_bytes(good)
    with pytest.raises(SystemExit, match="1 wheels are still missing"):
        fill(monkeypatch, tmp_path / "house")


def test_an_unknown_stack_names_those_there_are(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="expected one of tiny in"):
        fill(monkeypatch, tmp_path / "house", "absent")


def test_a_wheel_from_elsewhere_must_require_what_the_lock_was_made_from(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page"
    page.mkdir()
    wheel = make_wheel(page, "torch", "2.0+cu129", more="Requires-Dist: helper (>=1.2) ; os_name != 'nt'\n")
    data = tmp_path / "stacks/tiny"
    (data / "lock.txt").write_text((data / "lock.txt").read_text() + lock_of(wheel))
    meta = yaml.safe_load((data / "stack.yml").read_text())
    said = {"file": wheel.name, "sha256": sha256(wheel), "page": str(page), "requires": ["helper>=9"]}
    (data / "stack.yml").write_text(yaml.safe_dump({**meta, "elsewhere": [said]}))
    with pytest.raises(SystemExit, match=r"requires \['helper>=1.2'\], stack.yml says \['helper>=9'\]"):
        fill(monkeypatch, tmp_path / "house")
    (data / "stack.yml").write_text(yaml.safe_dump({**meta, "elsewhere": [{**said, "requires": ["helper>=1.2"]}]}))
    fill(monkeypatch, tmp_path / "house")
    assert (tmp_path / "house" / wheel.name).exists()


# --- the flag table

ENGINE = """
import argparse, json

class LoRAPathAction(argparse.Action):
    pass

class ServerArgs:
    tp_size: int = 1

    @staticmethod
    def add_cli_args(parser):
        print("noise")
        parser.add_argument("--model-path", "--model", required=True, type=str)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
        group = parser.add_argument_group("more")
        group.add_argument("--strategy", choices={"b", "a"}, default="a")
        parser.add_argument("--bs", type=int, nargs="+")
        parser.add_argument("--check", nargs="?", const="", type=str)
        parser.add_argument("--trust", action="store_true")
        parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True)
        parser.add_argument("--config", type=json.loads)
        parser.add_argument("--lora", action=LoRAPathAction, nargs="*")
"""


def test_a_flag_table_is_what_the_engines_own_parser_takes(tmp_path: Path) -> None:
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    module = packages / "sglang/srt/server_args.py"
    module.parent.mkdir(parents=True)
    module.write_text(ENGINE)
    rows = flags_tool.read_rows(tmp_path / "venv/bin/python")
    assert ["\t".join(row[column] for column in flags_tool.COLUMNS) for row in rows] == [
        "--model-path	--model	model_path	store	str			null	yes		13",
        "--tensor-parallel-size	--tp-size	tp_size	store	int			1			14",
        '--strategy		strategy	store	str			"a"		["a", "b"]	16',
        "--bs		bs	store	int	+		null			17",
        '--check		check	store	str	?	""	null			18',
        "--trust		trust	store_true				false			19",
        "--graph		graph	BooleanOptionalAction				true			20",
        "--config		config	store	json			null			21",
        "--lora		lora	LoRAPathAction	str	*		null			22",
    ]


def test_the_shipped_tables_name_their_tool(tmp_path: Path) -> None:
    for path in (REPOSITORY / "stacks/flags").glob("*.tsv"):
        lines = path.read_text().splitlines()
        columns = next(line for line in lines if not line.startswith("#"))
        assert columns.split("\t") == flags_tool.COLUMNS
