"""The start script of a release, rendered and run as it is: whose compiled kernels a server uses."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

ROOT = Path(__file__).resolve().parents[2]
# In place of the engine: it says where its caches are, and stays as long as a file is there.
ENGINE = """#!/bin/sh
here=$(dirname "$0")
env | sort > "$here/../../said-$SGLANG_PVE_GPU_UUID"
while [ -e "$here/../../stay-$SGLANG_PVE_GPU_UUID" ]; do sleep 0.02; done
"""
CACHES = ("HOME", "XDG_CACHE_HOME", "FLASHINFER_WORKSPACE_BASE", "TVM_FFI_CACHE_DIR", "TRITON_CACHE_DIR")
CACHES += ("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")


class Container:
    """A directory with what the script finds in a container; every path of its own is moved there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.caches = place / "cache/abc/sm120"
        self.running: list[subprocess.Popen[bytes]] = []
        loader = jinja2.FileSystemLoader(ROOT / "templates/release")
        environment = jinja2.Environment(
            loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
        )
        environment.filters["quote"] = lambda value: shlex.quote(str(value))
        text = environment.get_template("run.j2").render(
            sglang_model_stage=False,
            _plan_stack_root=str(place / "stack"),
            _plan_cuda_home=str(place / "cuda"),
            _plan_cache="abc/sm120",
            sglang_start_timeout=1800,
            _plan_named={"env": {"HF_HUB_OFFLINE": "1"}, "argv": ["--page-size", "1"]},
        )
        for path, here in {"/opt/sglang": "opt", "/run/sglang": "run", "/var/cache/sglang": "cache"}.items():
            text = text.replace(path, str(place / here))
        self.script = place / "run"
        self.script.write_text(text)
        (place / "stack/venv/bin").mkdir(parents=True)
        self.program(place / "stack/venv/bin/python", ENGINE)
        self.toolkit("13.0")

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def toolkit(self, version: str) -> None:
        self.program(self.place / "cuda/bin/nvcc", f"#!/bin/sh\necho 'release {version}'\n")

    def compiler(self, version: str) -> None:
        self.program(self.place / "cuda/host/g++", f"#!/bin/sh\necho 'g++ {version}'\n")

    def manifest(self, cccl: str) -> None:
        (self.place / "cuda/manifest.json").write_text(f'{{"cccl": "{cccl}"}}')

    def start(self, server: int, stay: bool = False) -> dict[str, str]:
        """Start a server; its environment. With ``stay`` it goes on until the container ends."""
        home = self.place / f"opt/servers/gpu{server}"
        home.mkdir(parents=True, exist_ok=True)
        names = {"GPU_UUID": f"u{server}", "HOST": "h", "PORT": "1", "NCCL_PORT": "2", "NUMA_NODE": ""}
        (home / "server.env").write_text("".join(f"SGLANG_PVE_{key}={value}\n" for key, value in names.items()))
        said = self.place / f"stack/said-u{server}"
        said.unlink(missing_ok=True)
        if stay:
            (self.place / f"stack/stay-u{server}").touch()
        process = subprocess.Popen(["sh", self.script, str(server)], env={"PATH": os.environ["PATH"]})
        self.running.append(process)
        if not stay:
            assert process.wait(20) == 0
        while not said.exists() or not said.read_text().endswith("\n"):
            assert process.poll() in (None, 0)
            time.sleep(0.01)
        return dict(line.split("=", 1) for line in said.read_text().splitlines() if "=" in line)

    def stop(self, server: int) -> None:
        (self.place / f"stack/stay-u{server}").unlink()
        for process in self.running:
            process.wait(20)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.wait()


def directories(container: Container) -> list[str]:
    return sorted(path.name for path in container.caches.iterdir())


def test_all_servers_share_what_the_first_has_compiled(container: Container) -> None:
    first = container.start(0)
    kernel = Path(first["FLASHINFER_WORKSPACE_BASE"]) / ".cache/flashinfer/kernel.so"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    second = container.start(1)
    assert [first[name] for name in CACHES] == [second[name] for name in CACHES]
    assert all(Path(first[name]).is_relative_to(container.caches) for name in CACHES)
    assert kernel.exists() and len(directories(container)) == 1


def test_everybody_who_looks_for_a_compiler_finds_the_same(container: Container) -> None:
    said, home = container.start(0), container.place / "cuda"
    assert said["CUDA_HOME"] == str(home) and said["CC"] == f"{home}/host/gcc"
    assert said["CXX"] == said["NVCC_CCBIN"] == f"{home}/host/g++"
    assert said["PATH"].split(":")[:3] == [f"{container.place}/stack/venv/bin", f"{home}/bin", f"{home}/host"]


@pytest.mark.parametrize(("what", "other"), [("toolkit", "13.1"), ("compiler", "13.3"), ("manifest", "3.0.2")])
def test_another_toolkit_compiles_anew_and_the_old_kernels_go(container: Container, what: str, other: str) -> None:
    before = container.start(0)["HOME"]
    getattr(container, what)(other)
    after = container.start(0)["HOME"]
    assert before != after and directories(container) == [Path(after).name]


def test_kernels_of_the_old_toolkit_stay_while_a_server_uses_them(container: Container) -> None:
    old = container.start(0, stay=True)["HOME"]
    container.toolkit("13.1")
    new = container.start(1)["HOME"]
    assert directories(container) == sorted([Path(old).name, Path(new).name])
    container.stop(0)
    container.start(1)
    assert directories(container) == [Path(new).name]


def test_a_container_without_compiler_has_a_cache_too(container: Container) -> None:
    (container.place / "cuda/bin/nvcc").unlink()
    assert Path(container.start(0)["HOME"]).parent == container.caches


def test_what_the_plan_says_reaches_the_engine(container: Container) -> None:
    said: dict[str, Any] = container.start(0)
    assert said["HF_HUB_OFFLINE"] == "1" and said["CUDA_VISIBLE_DEVICES"] == "u0"


def test_one_server_goes_first_until_one_was_ready(container: Container) -> None:
    agreed = container.place / "run-warm"
    agreed.mkdir()
    container.start(0, stay=True)
    second = subprocess.Popen(
        ["sh", container.script, "0"], env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE, text=True
    )
    container.running.append(second)
    assert second.stderr is not None
    assert second.stderr.readline() == "waits for the first server after this boot\n"
    assert second.poll() is None
    # `ready` of the first leaves this mark.
    (agreed / "abc-sm120").touch()
    (container.place / "stack/stay-u0").unlink()
    assert second.wait(20) == 0


def test_first_server_that_ends_hands_its_place_on(container: Container) -> None:
    (container.place / "run-warm").mkdir()
    assert container.start(0)
    assert container.start(1)
