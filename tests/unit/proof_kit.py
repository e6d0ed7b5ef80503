"""A small stack with a compiler that answers as nvcc does, for the tests of a proof."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sglang_pve.proof import FILE, prove
from sglang_pve.proof_checks import Plan, Proof, Subject

USER = "nobody"
# What the engine's packages have that the proof asks for, as small as can be.
PARSER = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        for name in ("--host", "--port", "--nccl-port", "--numa-node", "--model-path"):
            parser.add_argument(name)
        parser.add_argument("--page-size", type=int)
        parser.add_argument("--load-format", choices=["auto", "dummy"])
"""
PAGE = """
import os, subprocess
class Spec:
    def build(self, verbose):
        print("compiling", os.environ["FLASHINFER_CUDA_ARCH_LIST"])
        done = subprocess.run([os.environ["CUDA_HOME"] + "/bin/nvcc", "page"], capture_output=True, text=True)
        open(os.environ["FLASHINFER_WORKSPACE_BASE"] + "/page.so", "w").close()
        if done.returncode:
            raise RuntimeError("Ninja build failed. Ninja output:\\n" + done.stderr)
gen_page_module = Spec
"""
ACTIVATION = """
import contextlib
from torch import bfloat16
current = None
@contextlib.contextmanager
def override_jit_cuda_arch(major, minor):
    global current
    current = (major, minor)
    yield
def build(dtype):
    assert dtype is bfloat16 and current == (12, 0), current
"""
NO_LIBCUDA = "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')\n"
# Answers as nvcc does: its version, a search for headers, and a kernel that compiles.
NVCC = """#!/usr/bin/python3
import re, sys
from pathlib import Path
if sys.argv[1:] == ["--version"]:
    print("Cuda compilation tools, release 13.0, V13.0.88")
elif "-E" in sys.argv:
    places = [Path(word[2:]) for word in sys.argv if word.startswith("-I")]
    for name in re.findall("__has_include.<(.*)>", sys.stdin.read()):
        if not any((place / name).is_file() for place in places):
            print("proof_lacks", name)
"""
CXX = "#!/bin/sh\necho 'g++-11 (Debian 11.3.0-12) 11.3.0'\n"
RULES = {
    "imports": ["sglang"],
    "nvcc_min": "13.0",
    "arch_list_below": "12.9",
    "compilers": {"good": ["11.3"], "bad": ["12.2"]},
    "proof": {
        "imports": ["sgl_kernel"],
        "tools": ["proof-ninja", "nvcc"],
        "headers": ["curand.h"],
        "kernel_libraries": ["sgl_lib/*.so"],
        "flashinfer": "page:gen_page_module",
        "engine": {"module": "activation", "build": "build", "launch": "build", "arch": "activation"},
    },
}


@dataclasses.dataclass
class Place:
    """An installed stack with all that its servers need around it; what a test breaks, it breaks here."""

    root: Path
    subject: Subject
    plan: Plan

    @property
    def packages(self) -> Path:
        return next(self.subject.directory.glob("venv/lib/python3*/site-packages"))

    def program(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def rules(self, **more: Any) -> None:
        """Change what stack.yml says under ``proof``."""
        self.subject = dataclasses.replace(self.subject, rules={**RULES, "proof": {**RULES["proof"], **more}})  # type: ignore[dict-item]

    def planned(self, **more: Any) -> None:
        self.plan = dataclasses.replace(self.plan, **more)

    def prove(self) -> Proof:
        return prove(self.subject, self.plan)

    def errors(self) -> list[tuple[str, str]]:
        """Prove, and return id and place of each error; none may be kept."""
        proof = self.prove()
        found = [(finding.id, finding.where) for finding in proof.findings if finding.level == "error"]
        assert bool(found) != (self.subject.directory / FILE).exists()
        return found
