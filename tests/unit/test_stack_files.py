"""Locks, wheelhouses and stack.yml: what is read on the controller, and the stacks that the project ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from sglang_pve.lockfile import LockError, lock_sha256, parse_lock, stack_id
from sglang_pve.stack import LANES, StackError, check_meta
from sglang_pve.wheelhouse import ALTERED, MISSING, UNFIT, Lacking, parse_wheel, survey
from stack_kit import REPOSITORY, lock_of, make_wheel, sha256

A, B = "a" * 64, "b" * 64
STACKS = sorted((REPOSITORY / "stacks").glob("*/stack.yml"))


def test_lock_in_uvs_form_and_on_one_line() -> None:
    text = f"# made by uv\nTorch_Audio==2.11.0+cu129 \\\n    --hash=sha256:{B} \\\n    --hash=sha256:{A}\n"
    text += f"abc==1 --hash=sha256:{A}\n"
    first, second = parse_lock(text)
    assert (first.requirement, first.hashes) == ("abc==1", {A})
    assert (second.requirement, second.hashes) == ("torch-audio==2.11.0+cu129", {A, B})


@pytest.mark.parametrize(
    "line",
    [
        "abc==1",
        f"abc>=1 --hash=sha256:{A}",
        f"abc==1.* --hash=sha256:{A}",
        f"abc[extra]==1 --hash=sha256:{A}",
        f"abc==1 ; python_version < '3.12' --hash=sha256:{A}",
        f"abc @ file:///abc.whl --hash=sha256:{A}",
        f"abc==1 --hash=sha256:{A[1:]}",
        f"abc==1 --hash=md5:{A}",
        "--index-url somewhere",
        "-r other.txt",
        f"abc==1 --hash=sha256:{A}\nAbc==2 --hash=sha256:{A}",
        "# nothing",
        "",
    ],
)
def test_lock_that_depends_on_more_than_its_text_is_refused(line: str) -> None:
    with pytest.raises(LockError):
        parse_lock(line)


def test_id_follows_from_content_alone() -> None:
    lock = f"abc==1 --hash=sha256:{A} --hash=sha256:{B}\nxyz==2 --hash=sha256:{A}\n"
    same = f"# other comment\r\nxyz==2 \\\r\n    --hash=sha256:{A}\r\n\r\nabc==1 --hash=sha256:{B} --hash=sha256:{A}"
    assert lock_sha256(lock) == lock_sha256(same)
    base = stack_id(lock, "3.11", "0.13.9")
    assert re.fullmatch("[0-9a-f]{12}", base)
    assert stack_id(same, "3.11.2", "0.13.9") == base
    others = {
        stack_id(lock, "3.12", "0.13.9"),
        stack_id(lock, "3.11", "0.14"),
        stack_id(lock.replace("==2", "==3"), "3.11", "0.13.9"),
    }
    assert len(others | {base}) == 4


@pytest.mark.parametrize(
    ("file_name", "fits"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-2build-py3-none-any.whl", True),
        ("a-1-py312-none-any.whl", False),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp311-none-linux_x86_64.whl", True),
        ("a-1-cp312-cp312-manylinux_2_34_x86_64.whl", False),
        ("a-1-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp312-abi3-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311t-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-py2-none-any.whl", False),
    ],
)
def test_wheel_tags(file_name: str, fits: bool) -> None:
    wheel = parse_wheel(file_name)
    assert wheel is not None
    assert wheel.fits("3.11", "x86_64") is fits


def test_other_files_are_no_wheels() -> None:
    assert [parse_wheel(name) for name in ("a-1.tar.gz", "README", "a.whl", "a-1-py3-none-any.whl.part")] == [None] * 4


def test_survey_tells_missing_altered_and_unfit_apart(tmp_path: Path) -> None:
    good = make_wheel(tmp_path, "good_one", "2024.01.5")
    for name in ("gone", "bent"):
        make_wheel(tmp_path, name, "1")
    unfit = make_wheel(tmp_path, "unfit", "1", tag="cp399-cp399-linux_x86_64")
    lock = lock_of(good, tmp_path / "gone-1-py3-none-any.whl", tmp_path / "bent-1-py3-none-any.whl", unfit)
    (tmp_path / "gone-1-py3-none-any.whl").unlink()
    make_wheel(tmp_path, "gone", "2")
    (tmp_path / "bent-1-py3-none-any.whl").write_bytes(b"cut off")
    (tmp_path / "notes.txt").write_text("")
    result = survey(parse_lock(lock.replace("2024.01.5", "2024.1.5")), tmp_path, "3.11", "x86_64")
    assert result.found == {"good-one==2024.1.5": (good, sha256(good))}
    assert result.lacking == [
        Lacking("bent==1", ALTERED, "bent-1-py3-none-any.whl"),
        Lacking("gone==1", MISSING),
        Lacking("unfit==1", UNFIT, "unfit-1-cp399-cp399-linux_x86_64.whl"),
    ]


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.parent.name)
def test_shipped_stack_is_whole(path: Path) -> None:
    meta = check_meta(yaml.safe_load(path.read_text()), str(path))
    lock = (path.parent / "lock.txt").read_text()
    locked = {package.name: package.version for package in parse_lock(lock)}
    assert locked["sglang"] == meta["engine"]
    assert not re.search(r"https?:|file:|--index|--find-links|^\s*#", lock, re.MULTILINE), "a lock names no place"
    facts = meta.keys() - {"schema", "sources", "imports", "flags"}
    assert facts == meta["sources"].keys(), "each fact has a source"
    assert parse_wheel(meta["uv"]["wheel"]).version in (REPOSITORY / "requirements/dev.txt").read_text()
    assert meta["uv"]["sha256"] in (REPOSITORY / "requirements/dev.txt").read_text()


def locked(stack: str) -> dict[str, str]:
    lock = (REPOSITORY / "stacks" / stack / "lock.txt").read_text()
    return {package.name: package.version for package in parse_lock(lock)}


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.parent.name)
def test_the_only_prerelease_is_the_one_that_the_engine_asks_for(path: Path) -> None:
    versions = locked(path.parent.name).items()
    assert [name for name, version in versions if re.search(r"\d(a|b|rc|\.dev)\d", version)] == ["flash-attn-4"]


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.parent.name)
def test_a_lock_holds_the_cuda_of_its_lane_alone(path: Path) -> None:
    lane = yaml.safe_load(path.read_text())["lane"]
    versions = locked(path.parent.name)
    numbers = {name: versions[name] for name in ("cuda-python", "cuda-bindings", "cuda-toolkit")}
    assert {version.split(".")[0] for version in numbers.values()} == {str(LANES[lane])}
    # cutlass-dsl brings a part for each CUDA; nothing else may.
    other = "-cu12" if lane == "cu130" else "-cu13"
    assert [name for name in versions if name.endswith(other) and "cutlass-dsl" not in name] == []
    runtime = "nvidia-cuda-runtime" + ("" if lane == "cu130" else "-cu12")
    assert versions[runtime].startswith({"cu130": "13.0.", "cu12": "12.9."}[lane])


def test_the_lane_of_cuda_12_takes_its_kernels_from_elsewhere() -> None:
    directory = REPOSITORY / "stacks/sglang-0.5.11-cu12"
    wheels = yaml.safe_load((directory / "stack.yml").read_text())["elsewhere"]
    packages = {package.name: package for package in parse_lock((directory / "lock.txt").read_text())}
    for entry in wheels:
        wheel = parse_wheel(entry["file"])
        assert wheel is not None and wheel.fits("3.12", "x86_64") and wheel.version.endswith("+cu129")
        assert (packages[wheel.name].version, packages[wheel.name].hashes) == (wheel.version, {entry["sha256"]})
    assert {parse_wheel(entry["file"]).name for entry in wheels} == {
        name for name, package in packages.items() if "+" in package.version
    }


GOOD = {
    "schema": 1,
    "engine": "1.0",
    "flags": "f",
    "python": ["3.11"],
    "imports": [],
    "uv": {"wheel": "uv", "sha256": A},
}


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (None, "expected a table of fields"),
        ({**GOOD, "schema": 2}, "has schema 2; expected schema: 1"),
        ({**GOOD, "drivermin": 580}, "unknown field 'drivermin'"),
        ({key: value for key, value in GOOD.items() if key != "uv"}, "has no field 'uv'"),
        ({**GOOD, "engine": 0.5}, "says engine: 0.5; expected the engine's version in quotes"),
        ({**GOOD, "python": "3.11"}, "a list of Python versions"),
        ({**GOOD, "python": [3.1]}, "a list of Python versions"),
        ({**GOOD, "uv": {"wheel": "uv", "sha256": "short"}}, "64 hexadecimal digits"),
        ({**GOOD, "lane": "cu11"}, "expected cu130 or cu12"),
        ({**GOOD, "disk_gib": True}, "GiB to be free"),
        ({**GOOD, "resolved": "May 2026"}, 'such as "2026-05-12"'),
        ({**GOOD, "compilers": {"good": ["11.3"]}}, "lists of g++ versions"),
        ({**GOOD, "cuda_exceptions": {"x*.so": None}}, "a reason for each pattern"),
        ({**GOOD, "elsewhere": [{"file": "a.whl", "sha256": A}]}, "file, sha256, page and requires"),
    ],
)
def test_wrong_stack_yml_names_file_and_field(meta: object, words: str) -> None:
    with pytest.raises(StackError) as caught:
        check_meta(meta, "stacks/x/stack.yml")
    assert words in str(caught.value)
    assert "stacks/x/stack.yml" in str(caught.value)
    check_meta(GOOD, "stacks/x/stack.yml")
