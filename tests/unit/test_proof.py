"""The proof of a stack, on a small one that is really installed; its checks run as a user who does not own it."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proof_kit import ACTIVATION, CXX, NO_LIBCUDA, NVCC, PAGE, PARSER, RULES, USER, Place
from sglang_pve.lockfile import stack_id
from sglang_pve.proof import FILE, kept
from sglang_pve.proof_checks import Plan, Subject, telling
from sglang_pve.stack import Stack, python_version
from sglang_pve.stack_install import install
from stack_kit import PYTHON, UV_VERSION, UV_WHEEL, lock_of, make_uv_wheel, make_wheel, metadata, sha256
from test_fatbin import SEEN, make_library

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run the checks as another user")


@pytest.fixture(scope="module")
def shipped() -> Iterator[tuple[Path, Stack]]:
    """The stack, installed once in a directory that others can reach."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="proof-") as place:
        root = Path(place)
        root.chmod(0o755)
        wheels = root / "wheels"
        wheels.mkdir()
        uv = make_uv_wheel(wheels)
        engine = {"sglang/__init__.py": "", "sglang/srt/__init__.py": "", "sglang/srt/server_args.py": PARSER}
        library = make_library(root / "a.so", [SEEN["sm_90"], SEEN["sm_120a"]])
        lock = lock_of(
            make_wheel(wheels, "sglang", "0.5.11", files={name: text.encode() for name, text in engine.items()}),
            make_wheel(wheels, "sgl_kernel", "0.4.2", NO_LIBCUDA, files={"sgl_lib/ops.so": library.read_bytes()}),
            make_wheel(wheels, "page", "1", PAGE),
            make_wheel(wheels, "activation", "1", ACTIVATION, more="Requires-Dist: torch>=1\n"),
            make_wheel(wheels, "torch", "2.11.0", "bfloat16 = 'bfloat16'\n"),
        )
        id = stack_id(lock, python_version(PYTHON), UV_VERSION)
        stack = Stack("tiny", id, lock, "0.5.11", UV_WHEEL, sha256(uv), imports=["sglang"])
        assert install(stack, wheels, root / "stacks", PYTHON)
        yield root, stack


@pytest.fixture
def place(shipped: tuple[Path, Stack]) -> Iterator[Place]:
    base, stack = shipped
    with tempfile.TemporaryDirectory(dir=base) as own:
        root = Path(own)
        root.chmod(0o755)
        shutil.copytree(base / "stacks" / stack.id, root / "stack", symlinks=True)
        (root / "cuda/include").mkdir(parents=True)
        (root / "cuda/include/curand.h").touch()
        (root / "caches").mkdir()
        shutil.chown(root / "caches", USER)
        environment = (
            f"export PATH={root}/tools:{root}/cuda/bin:/usr/bin:/bin CUDA_HOME={root}/cuda CXX={root}/tools/g++\n"
        )
        environment += f"export SGLANG_TOLD=yes\ncache={root}/caches/own\n"
        uv = base / f"tools/uv-{UV_VERSION}/uv"
        subject = Subject(root / "stack", stack.lock, uv, RULES, USER, "580.65.06")
        argv = ["--model-path", "/models/a", "--page-size", "1"]
        made = Place(root, subject, Plan("rtx", "12.0", argv, environment, ["GPU-1"]))
        made.program("cuda/bin/nvcc", NVCC)
        made.program("tools/g++", CXX)
        made.program("tools/proof-ninja", "#!/bin/sh\n")
        yield made


def test_a_good_stack_is_proven_once(place: Place) -> None:
    proof = place.prove()
    assert proof.new and [finding.sentence() for finding in proof.findings if finding.level == "error"] == []
    results = {check["check"]: check["result"] for check in proof.checks}
    assert set(results.values()) == {"ok", "not checked"}
    assert results["a kernel of flashinfer compiles"] == results["a kernel of the engine compiles"] == "ok"
    # Nothing of it stays in the servers' cache.
    assert [path.name for path in (place.root / "caches/own").iterdir()] == [".held"]
    again = place.prove()
    assert not again.new and again.checks == proof.checks and again.findings == proof.findings


def test_what_needs_a_driver_is_not_checked(place: Place) -> None:
    proof = place.prove()
    results = {check["check"]: check["result"] for check in proof.checks}
    assert results["import sgl_kernel"] == results["the engine's kernel on GPU-1"] == "not checked"
    found = [finding for finding in proof.findings if finding.level == "not checked"]
    assert [finding.where for finding in found] == ["import sgl_kernel", "the engine's kernel on GPU-1"]


def new_driver(place: Place) -> None:
    place.subject = dataclasses.replace(place.subject, driver="590.1")


def new_toolkit(place: Place) -> None:
    place.program("cuda/bin/nvcc", NVCC.replace("13.0, V13.0.88", "13.1, V13.1.10"))


def new_compiler(place: Place) -> None:
    place.program("tools/g++", CXX.replace("11.3.0", "11.4.0"))


def new_overlay(place: Place) -> None:
    (place.subject.directory / "cuda").mkdir()
    (place.subject.directory / "cuda/manifest.json").write_text("{}")


def new_card(place: Place) -> None:
    place.planned(gpus=["GPU-2"])


def new_words(place: Place) -> None:
    place.planned(argv=[*place.plan.argv, "--load-format", "dummy"])


def new_environment(place: Place) -> None:
    place.planned(environment=place.plan.environment + "export MORE=1\n")


def damaged_file(place: Place) -> None:
    (place.subject.directory / FILE).write_text('{"schema": 1, "proofs": [')


CHANGES = [new_driver, new_toolkit, new_compiler, new_overlay, new_card, new_words, new_environment, damaged_file]


def test_each_change_is_proven_again(place: Place) -> None:
    place.prove()
    for change in CHANGES:
        change(place)
        assert place.prove().new, change
        assert not place.prove().new, change


def test_one_proof_is_kept_for_each_plan(place: Place) -> None:
    first = place.plan
    place.prove()
    new_words(place)
    assert not kept(place.subject, place.plan)
    place.prove()
    new_driver(place)
    place.prove()
    proofs = json.loads((place.subject.directory / FILE).read_text())["proofs"]
    assert [proof["key"]["driver"] for proof in proofs] == ["580.65.06", "590.1"]
    assert kept(place.subject, first) and kept(place.subject, place.plan)


def test_the_checks_run_as_the_service_user_in_the_environment_of_servers(place: Place) -> None:
    (place.packages / "sglang/__init__.py").write_text(
        f"import os, json\njson.dump([os.getuid(), dict(os.environ)], open({str(place.root / 'caches/said')!r}, 'w'))\n"
    )
    os.environ["SGLANG_OF_THE_CALLER"] = "1"
    try:
        place.prove()
    finally:
        del os.environ["SGLANG_OF_THE_CALLER"]
    uid, environment = json.loads((place.root / "caches/said").read_text())
    assert uid == pwd.getpwnam(USER).pw_uid
    assert environment["SGLANG_TOLD"] == "yes" and environment["CUDA_HOME"] == str(place.root / "cuda")
    assert "SGLANG_OF_THE_CALLER" not in environment and environment["USER"] == USER


def other_version(place: Place) -> None:
    info = place.packages / "torch-2.11.0.dist-info/METADATA"
    info.write_text(info.read_text().replace("2.11.0", "2.11.1"))


def more_packages(place: Place) -> None:
    info = place.packages / "stray-1.dist-info"
    info.mkdir()
    for name, text in metadata("stray", "1").items():
        (place.packages / name).write_text(text)
    (info / "RECORD").touch()


def needs_more(place: Place) -> None:
    info = place.packages / "activation-1.dist-info/METADATA"
    info.write_text(info.read_text().replace("torch>=1", "torch>=3"))


def writable(place: Place) -> None:
    (place.packages / "page.py").chmod(0o666)


def crash(place: Place) -> None:
    (place.packages / "sglang/__init__.py").write_text(
        "import os, sys\nprint('last words', file=sys.stderr)\nos.abort()\n"
    )


def other_library(place: Place) -> None:
    (place.packages / "sgl_kernel.py").write_text("raise ImportError('libnuma.so.1: cannot open shared object file')\n")


def abbreviation(place: Place) -> None:
    place.planned(argv=["--model-path", "/models/a", "--page", "1"])


def wrong_value(place: Place) -> None:
    place.planned(argv=["--model-path", "/models/a", "--load-format", "none"])


def no_ninja(place: Place) -> None:
    (place.root / "tools/proof-ninja").unlink()


def no_header(place: Place) -> None:
    (place.root / "cuda/include/curand.h").unlink()


def bad_compiler(place: Place) -> None:
    place.program("tools/g++", CXX.replace("11.3.0", "12.2.0"))


def no_compiler(place: Place) -> None:
    (place.root / "tools/g++").unlink()


def old_toolkit(place: Place) -> None:
    place.program("cuda/bin/nvcc", NVCC.replace("release 13.0", "release 12.8"))


def kernel_fails(place: Place) -> None:
    place.program("cuda/bin/nvcc", NVCC + "else:\n    sys.exit('page.cu(3): error: no such thing')\n")


def other_cards(place: Place) -> None:
    make_library(place.packages / "sgl_lib/ops.so", [SEEN["sm_90a"]])


def no_library(place: Place) -> None:
    (place.packages / "sgl_lib/ops.so").unlink()


def engine_fails(place: Place) -> None:
    place.planned(sm="9.0")


def no_environment(place: Place) -> None:
    place.planned(environment=place.plan.environment + "exit 3\n")


FAULTS = {
    other_version: [("package-version", "torch")],
    more_packages: [("package-version", "stray")],
    needs_more: [("pip-check", "")],
    writable: [("stack-writable", "")],
    crash: [("stack-import", "sglang"), ("argv-refused", "")],
    other_library: [("stack-import", "sgl_kernel")],
    abbreviation: [("argv-refused", "")],
    wrong_value: [("argv-refused", "")],
    no_ninja: [("tool-missing", "proof-ninja")],
    no_header: [("header-missing", "curand.h")],
    bad_compiler: [("compiler-bad", "tools/g++")],
    no_compiler: [("compiler-missing", "tools/g++")],
    old_toolkit: [("nvcc-old", "cuda"), ("arch-list-missing", "cuda")],
    kernel_fails: [("kernel-failed", "flashinfer")],
    other_cards: [("kernel-target", "ops.so")],
    no_library: [("kernel-library", "sgl_lib/*.so")],
    engine_fails: [("kernel-failed", "engine")],
    no_environment: [("proof-environment", "")],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_is_kept(place: Place, fault: Callable[[Place], None]) -> None:
    fault(place)
    found = [(id, where.replace(f"{place.root}/", "")) for id, where in place.errors()]
    assert found == FAULTS[fault]


def test_the_compilers_own_words_are_told(place: Place) -> None:
    kernel_fails(place)
    (finding,) = [finding for finding in place.prove().findings if finding.level == "error"]
    assert finding.seen == "page.cu(3): error: no such thing"
    assert "nvcc 13.0" in finding.expected and "g++ 11.3.0" in finding.expected


def test_a_reason_excuses_what_pip_would_say(place: Place) -> None:
    needs_more(place)
    place.rules(pip_exceptions={"activation torch": "a newer one is not built for this CUDA"})
    assert place.errors() == []


def test_a_reason_excuses_no_other_package(place: Place) -> None:
    needs_more(place)
    place.rules(pip_exceptions={"activation tor": "no such package", "page torch": "another one"})
    assert place.errors() == [("pip-check", "")]


def test_the_list_answers_an_old_toolkit(place: Place) -> None:
    old_toolkit(place)
    place.planned(environment=place.plan.environment + "export FLASHINFER_CUDA_ARCH_LIST=12.0a\n")
    assert [id for id, _ in place.errors()] == ["nvcc-old"]


def test_a_missing_user_is_told(place: Place) -> None:
    place.subject = dataclasses.replace(place.subject, user="no-such-user")
    with pytest.raises(KeyError, match="no-such-user"):
        place.prove()


def test_the_telling_lines_of_a_long_text() -> None:
    noise = "[1/2] nvcc -c a.cu\n" * 50
    assert telling(noise + "a.cu(1): error: expected a type\nlast line") == "a.cu(1): error: expected a type"
    assert telling("one\ntwo\nthree\nfour") == "one | two | three"
    assert telling("") == "no words" and len(telling("x" * 5000)) == 700
