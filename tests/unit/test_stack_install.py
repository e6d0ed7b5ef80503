"""The stack install with real wheels and the real uv: whole or not at all, and only once."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stack_kit
from sglang_pve import altered, fleet
from sglang_pve.lockfile import stack_id
from sglang_pve.stack import Stack, StackError, installed, python_version
from sglang_pve.stack_install import install
from stack_kit import PYTHON, UV_VERSION, lock_of, make_stack, make_uv_wheel, make_wheel, start_install
from test_elf import make_elf


@pytest.fixture(scope="session")
def uv_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_uv_wheel(tmp_path_factory.mktemp("uv"))


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    return tmp_path / "wheelhouse"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sglang/stacks"


@pytest.fixture
def stack(wheelhouse: Path, uv_wheel: Path) -> Stack:
    return make_stack(wheelhouse, uv_wheel)


def refused(stack: Stack, wheelhouse: Path, root: Path, **arguments: float) -> str:
    """The message of an install that must fail, after checking that it left no stack."""
    with pytest.raises(StackError) as caught:
        install(stack, wheelhouse, root, PYTHON, **arguments)
    assert not (root / stack.id / "stack.json").exists()
    return str(caught.value)


def test_installs_once_and_leaves_nothing_beside(stack: Stack, wheelhouse: Path, root: Path) -> None:
    assert install(stack, wheelhouse, root, PYTHON) is True
    target = root / stack.id
    state = json.loads((target / "stack.json").read_text())
    assert (state["schema"], state["id"], state["engine"]) == (1, stack.id, "0.5.11")
    assert state["packages"] == {"helper": "1.2", "sglang": "0.5.11"}
    assert sorted(path.name for path in target.iterdir()) == ["lock.txt", "stack.json", "venv"]
    assert sorted(path.name for path in root.parent.iterdir()) == ["stacks", "tools"]
    run = subprocess.run(
        [target / "venv/bin/python", "-c", "import sglang"], capture_output=True, text=True, check=True
    )
    assert run.stdout == "noise\n"
    assert list(target.rglob("sglang.*.pyc")), "bytecode is compiled at install"

    stamp = (target / "stack.json").stat().st_mtime_ns
    # A complete stack needs no wheelhouse, no uv and no interpreter.
    assert install(stack, Path("/nowhere"), root, "/nowhere") is False
    assert (target / "stack.json").stat().st_mtime_ns == stamp


def test_callers_environment_and_umask_do_not_count(
    stack: Stack, wheelhouse: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_LINK_MODE", "nonsense")
    monkeypatch.setenv("UV_REQUIRE_HASHES", "nonsense")
    before = os.umask(0o077)
    try:
        install(stack, wheelhouse, root, PYTHON)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    for path in [root, root / stack.id, root.parent / "tools", *(root / stack.id).rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o044 == 0o044, f"{path} cannot be read by the service user"
            assert path.stat().st_mode & 0o022 == 0, f"{path} can be written by others"


def test_every_lacking_wheel_is_named_before_anything_is_written(
    stack: Stack, wheelhouse: Path, root: Path, uv_wheel: Path
) -> None:
    (wheelhouse / "helper-1.2-py3-none-any.whl").unlink()
    with (wheelhouse / "sglang-0.5.11-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"x")
    message = refused(stack, wheelhouse, root)
    assert "lacks 2 of 3 wheels" in message
    assert "missing: helper==1.2" in message
    assert "altered: sglang-0.5.11-py3-none-any.whl" in message
    assert not root.exists()


def test_altered_uv_is_not_run(stack: Stack, wheelhouse: Path, root: Path) -> None:
    (wheelhouse / stack_kit.UV_WHEEL).unlink()
    make_uv_wheel(wheelhouse, b"#!/bin/sh\ntouch /tmp/never\n")
    assert f"altered: {stack_kit.UV_WHEEL}" in refused(stack, wheelhouse, root)
    assert not root.parent.exists()


def test_uv_wheel_without_uv(wheelhouse: Path, root: Path, tmp_path: Path) -> None:
    wheelhouse.mkdir()
    empty = stack_kit.make_wheel(wheelhouse, "uv", stack_kit.UV_VERSION)
    assert "a wheel with the program uv in it" in refused(make_stack(wheelhouse, empty), wheelhouse, root)
    assert list((root.parent / "tools").rglob("*.uv")) == []


def test_wheelhouse_that_is_not_there(stack: Stack, root: Path, tmp_path: Path) -> None:
    assert "wheelhouse-missing" in refused(stack, tmp_path / "elsewhere", root)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pythons": ["2.7"]}, "python-unsupported"),
        ({"id": "0123456789ab"}, "does not follow from this lock"),
        ({"glibc_min": "99.1"}, "expected 99.1 or later"),
        ({"disk_gib": 1e9}, "expected 1e+09 GiB for stack tiny"),
    ],
)
def test_host_that_does_not_fit(stack: Stack, wheelhouse: Path, root: Path, change: dict, words: str) -> None:
    assert words in refused(dataclasses.replace(stack, **change), wheelhouse, root)


def test_interpreter_that_is_missing_or_none(stack: Stack, wheelhouse: Path, root: Path) -> None:
    for python in ("/nowhere/python3", "/bin/true"):
        with pytest.raises(StackError, match="python-missing"):
            install(stack, wheelhouse, root, python)


def test_module_that_does_not_import_is_named_and_nothing_stays(stack: Stack, wheelhouse: Path, root: Path) -> None:
    message = refused(dataclasses.replace(stack, imports=["helper", "absent_part"]), wheelhouse, root)
    assert "import absent_part: ModuleNotFoundError" in message
    assert not (root / stack.id).exists()


def test_import_that_kills_the_interpreter(wheelhouse: Path, root: Path, uv_wheel: Path) -> None:
    stack = make_stack(wheelhouse, uv_wheel, source="import os\nos.abort()\n")
    assert "the imports ended with -6" in refused(stack, wheelhouse, root)


def test_libraries_of_two_cudas_are_refused_before_anything_is_imported(
    wheelhouse: Path, root: Path, uv_wheel: Path
) -> None:
    stack = make_stack(wheelhouse, uv_wheel, "raise SystemExit('imported')")
    library = make_elf(wheelhouse / "kernel.so", ["libcudart.so.12"])
    kernel = make_wheel(wheelhouse, "kernel", "1.0", files={"kernel/ops.abi3.so": library.read_bytes()})
    lock = stack.lock + lock_of(kernel)
    stack = dataclasses.replace(stack, lock=lock, id=stack_id(lock, python_version(PYTHON), UV_VERSION), lane="cu130")
    said = refused(stack, wheelhouse, root)
    assert "cuda-mixed" in said and "kernel/ops.abi3.so needs libcudart.so.12; expected libraries of CUDA 13" in said
    assert not (root / stack.id).exists()
    excepted = dataclasses.replace(stack, cuda_exceptions={"kernel/*": "never loaded"})
    assert "imported" in refused(excepted, wheelhouse, root)


def test_other_engine_version_is_refused(stack: Stack, wheelhouse: Path, root: Path) -> None:
    message = refused(dataclasses.replace(stack, engine="0.5.12"), wheelhouse, root)
    assert "sglang 0.5.11 in the new stack; expected 0.5.12" in message
    assert not (root / stack.id).exists()


def test_root_that_cannot_be_written(stack: Stack, wheelhouse: Path, tmp_path: Path) -> None:
    # Not even root can make a directory there.
    assert "stack-unwritable" in refused(stack, wheelhouse, Path("/proc/sglang/stacks"))
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refused(stack, wheelhouse, tmp_path / "file" / "stacks")


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 2}', '{"schema": 1, "id": "other", "lock_sha256": ""}'])
def test_marked_stack_is_never_removed(stack: Stack, wheelhouse: Path, root: Path, content: str) -> None:
    target = root / stack.id
    target.mkdir(parents=True)
    (target / "stack.json").write_text(content)
    (target / "precious").write_text("")
    with pytest.raises(StackError, match="stack-damaged"):
        install(stack, wheelhouse, root, PYTHON)
    assert sorted(path.name for path in target.iterdir()) == ["precious", "stack.json"]


@pytest.mark.parametrize("kind", ["cut", "edited", "same-size", "gone"])
def test_a_file_that_is_not_as_installed_is_named(stack: Stack, wheelhouse: Path, root: Path, kind: str) -> None:
    install(stack, wheelhouse, root, PYTHON)
    target = root / stack.id
    assert (altered.files(target), altered.sentence(target)) == ([], "")
    file = next(target.glob("venv/lib/python*/site-packages/sglang.py"))
    content = file.read_bytes()
    # What an editor leaves: a file of a later time. One that was only touched holds what it held.
    os.utime(file, (time.time() + 60, time.time() + 60))
    assert altered.files(target) == []
    if kind == "gone":
        file.unlink()
    else:
        file.write_bytes({"cut": b"", "same-size": b"#" * len(content)}.get(kind, content + b"# better\n"))
        os.utime(file, (time.time() + 60, time.time() + 60))
    found = altered.sentence(target)
    assert found.startswith(f"stack {stack.id} was altered on disk after it was installed: venv/lib/python")
    assert "site-packages/sglang.py. A stack is never edited;" in found
    assert fleet.read_stacks(root.parent)[stack.id]["error"] == found


@pytest.mark.parametrize("content", [b"\xff\xfe,sha256=x,1\n", b'"' + b"x" * 200_000, None])
def test_a_package_that_no_longer_lists_its_files_is_named_and_hides_nothing(
    stack: Stack, wheelhouse: Path, root: Path, content: bytes | None
) -> None:
    install(stack, wheelhouse, root, PYTHON)
    target = root / stack.id
    site = next(target.glob("venv/lib/python*/site-packages"))
    record = site / "helper-1.2.dist-info/RECORD"
    record.unlink()
    if content is None:
        record.mkdir()
    else:
        record.write_bytes(content)
    (site / "sglang.py").unlink()
    assert altered.files(target) == [str(path.relative_to(target)) for path in (record, site / "sglang.py")]
    assert "2 more" not in fleet.read_stacks(root.parent)[stack.id]["error"] != ""


def test_what_two_packages_bring_and_bytecode_that_is_made_anew_is_as_installed(
    wheelhouse: Path, root: Path, uv_wheel: Path
) -> None:
    """As in the real stack: build_backend.py of two packages, and a .pyc that numpy lists."""
    stack = make_stack(wheelhouse, uv_wheel)
    cached = f"first/__pycache__/__init__.cpython-{python_version(PYTHON).replace('.', '')}.pyc"
    first = {"shared.py": b"first = 1\n", "first/__init__.py": b"", cached: b"of another machine"}
    wheels = [
        make_wheel(wheelhouse, "first", "1.0", files=first),
        make_wheel(wheelhouse, "second", "1.0", files={"shared.py": b"second = 2 * 1\n"}),
    ]
    lock = stack.lock + lock_of(*wheels)
    stack = dataclasses.replace(stack, lock=lock, id=stack_id(lock, python_version(PYTHON), UV_VERSION))
    install(stack, wheelhouse, root, PYTHON)
    target = root / stack.id
    assert altered.files(target) == []
    site = next(target.glob("venv/lib/python*/site-packages"))
    assert (site / cached).read_bytes() != b"of another machine"
    (site / "shared.py").write_text("third = 3\n")
    assert altered.files(target) == [str((site / "shared.py").relative_to(target))]


def test_stack_whose_interpreter_went_away_is_reported(stack: Stack, wheelhouse: Path, root: Path) -> None:
    install(stack, wheelhouse, root, PYTHON)
    (root / stack.id / "venv/bin/python").unlink()
    with pytest.raises(StackError, match="venv/bin/python does not run"):
        installed(stack, root)


@pytest.fixture
def gated(tmp_path: Path, wheelhouse: Path) -> Iterator[tuple[Stack, Path]]:
    """A stack whose uv waits in the middle of the install for as long as the gate file is there."""
    gate = tmp_path / "gate"
    gate.write_text("")
    script = (
        f'#!/bin/sh\nif [ "$1" = pip ]; then mkdir -p {tmp_path}/inside; while [ -e {gate} ]; do sleep 0.05; done; fi\n'
    )
    script += f'exec {stack_kit.real_uv()} "$@"\n'
    wheelhouse.mkdir()
    yield make_stack(wheelhouse, make_uv_wheel(wheelhouse, script.encode())), gate
    gate.unlink(missing_ok=True)


def wait_until(happened: Callable[[], bool]) -> None:
    for _ in range(1200):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_killed_install_is_built_again(gated: tuple[Stack, Path], wheelhouse: Path, root: Path, tmp_path: Path) -> None:
    stack, gate = gated
    neighbour = root / "0123456789ab"
    neighbour.mkdir(parents=True)
    (neighbour / "stack.json").write_text("{}")
    first = start_install(stack, wheelhouse, root)
    wait_until((tmp_path / "inside").exists)
    first.kill()
    first.communicate()
    target = root / stack.id
    assert target.exists() and not installed(stack, root)
    (target / "left").write_text("from the killed run")
    # Its uv lives on and still writes there, so nobody else may build yet.
    assert "stack-busy" in refused(stack, wheelhouse, root, wait_s=0)
    gate.unlink()
    assert install(stack, wheelhouse, root, PYTHON) is True
    assert not (target / "left").exists()
    assert (neighbour / "stack.json").read_text() == "{}"
    assert install(stack, wheelhouse, root, PYTHON) is False


def test_two_at_once_make_one_stack(gated: tuple[Stack, Path], wheelhouse: Path, root: Path, tmp_path: Path) -> None:
    stack, gate = gated
    both = [start_install(stack, wheelhouse, root)]
    wait_until((tmp_path / "inside").exists)
    both.append(start_install(stack, wheelhouse, root))
    descriptors = Path(f"/proc/{both[1].pid}/fd")
    wait_until(lambda: str(root / ".lock") in {os.path.realpath(entry) for entry in descriptors.iterdir()})
    gate.unlink()
    outputs = [process.communicate(timeout=120) for process in both]
    assert [out.strip() for out, _ in outputs] == ["True", "False"], outputs


@pytest.mark.container
@pytest.mark.parametrize("room_mib", [2, 10], ids=["for uv", "for the packages"])
def test_full_disk_is_named_and_freed(wheelhouse: Path, uv_wheel: Path, tmp_path: Path, room_mib: int) -> None:
    stack = make_stack(wheelhouse, uv_wheel, source="#" * 20 * 1024**2)
    disk = tmp_path / "disk"
    disk.mkdir()
    uv_bytes = stack_kit.real_uv().stat().st_size if room_mib > 2 else 0
    size = uv_bytes + room_mib * 1024**2
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
    try:
        assert "disk-full" in refused(stack, wheelhouse, disk / "stacks")
        assert [path.name for path in (disk / "stacks").iterdir()] == [".lock"]
    finally:
        subprocess.run(["umount", disk], check=True)
