"""Small CUDA toolkits and packages on disk, in the layouts of the real ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

# CUB_VERSION, and how cub/thread/thread_operators.cuh declares Max, in the CCCL of CUDA 12.8.90, 12.9.27 and 13.0.85.
CCCL = {
    "2.7.0": ("200700", "struct Max\n{\n};\nstruct basic_binary_op_t<Max>;"),
    "2.8.2": ("200802", 'using Max CCCL_DEPRECATED_BECAUSE("use cuda::maximum instead") = ::cuda::maximum<>;'),
    "3.0.1": ("300001", "struct basic_binary_op_t<Max>;\n// cub::Max is gone"),
}
CUDA_H = "CUresult CUDAAPI cuInit(unsigned int);\nCUresult CUDAAPI cuTensorMapEncodeTiled(int);\n"


def put(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def cccl(directory: str, version: str) -> dict[str, str]:
    number, declared = CCCL[version]
    return {
        f"{directory}/cub/version.cuh": f"#define CUB_VERSION {number}\n",
        f"{directory}/cub/thread/thread_operators.cuh": declared,
        f"{directory}/cuda/ptx": version,
        f"{directory}/nv/target": version,
        f"{directory}/thrust/version.h": version,
    }


def nvcc(root: Path, version: str) -> dict[str, str]:
    """The compiler and what belongs to it; the program answers as the real one does."""
    put(root, {"bin/nvcc": f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.88'\n"})
    (root / "bin/nvcc").chmod(0o755)
    names = ("bin/cudafe++", "bin/fatbinary", "bin/ptxas", "bin/nvcc.profile", "nvvm/bin/cicc")
    return {**dict.fromkeys([*names, "nvvm/libdevice/libdevice.10.bc"], version), **crt()}


def crt() -> dict[str, str]:
    return {"include/crt/host_config.h": "#if __GNUC__ > 14\n"}


def runtime(version: str) -> dict[str, str]:
    major, minor = version.split(".")
    number = int(major) * 1000 + int(minor) * 10
    return {
        "include/cuda.h": CUDA_H,
        "include/cuda_runtime.h": version,
        "include/cuda_runtime_api.h": f"#define CUDART_VERSION  {number}\n",
    }


LIBRARIES = {"include/cublasLt.h": "lt", "include/curand.h": "rand", "include/curand_kernel.h": "kernel"}


def toolkit(root: Path, version: str, cccl_version: str, stub: bool = True) -> Path:
    """A system toolkit; since CUDA 13 it has CCCL in a directory of its own."""
    place = "include/cccl" if version.startswith("13") else "include"
    put(root, {**nvcc(root, version), **runtime(version), **LIBRARIES, **cccl(place, cccl_version)})
    put(root, {"lib64/libcudart.so": "", "lib64/libcudart.so.1": "", "bin/cuda-gdb": ""})
    return put(root, {"lib64/stubs/libcuda.so": "the toolkit's"}) if stub else root


def package(packages: Path, name: str, place: str, files: Mapping[str, str]) -> None:
    """Install ``files`` below ``nvidia/place`` as the package ``name`` does, with its RECORD."""
    put(packages / "nvidia" / place, files)
    record = ""
    for path in files:
        digest = hashlib.sha256(files[path].encode()).hexdigest()
        record += f"nvidia/{place}/{path},sha256={digest},{len(files[path])}\n"
    put(packages, {f"{name}-1.0.dist-info/RECORD": record})


def pip_13(packages: Path) -> None:
    """The packages of CUDA 13, which share one directory."""
    root = packages / "nvidia/cu13"
    package(packages, "nvidia_cuda_nvcc", "cu13", {k: v for k, v in nvcc(root, "13.0").items() if "crt" not in k})
    package(packages, "nvidia_cuda_crt", "cu13", crt())
    package(packages, "nvidia_cuda_cccl", "cu13", {**cccl("include/cccl", "3.0.1"), "include/nv/target": "3.0.1"})
    package(packages, "nvidia_cuda_runtime", "cu13", {**runtime("13.0"), "lib/libcudart.so.13": "", "lib/a.cmake": ""})
    package(packages, "nvidia_curand", "cu13", {**LIBRARIES, "lib/libcurand.so.10": ""})


def pip_12(packages: Path, version: str = "12.9", cccl_version: str = "2.8.2") -> None:
    """The packages of CUDA 12: a directory each, and of nvcc only ptxas."""
    package(packages, "nvidia_cuda_nvcc_cu12", "cuda_nvcc", {"bin/ptxas": version, **crt()})
    package(packages, "nvidia_cuda_cccl_cu12", "cuda_cccl", cccl("include", cccl_version))
    package(packages, "nvidia_cuda_runtime_cu12", "cuda_runtime", {**runtime(version), "lib/libcudart.so.12": ""})
    package(
        packages, "nvidia_curand_cu12", "curand", {**LIBRARIES, "include/__init__.py": "", "lib/libcurand.so.10": ""}
    )


def installed(stack: Path) -> Path:
    """The ``site-packages`` of a stack that says it is installed."""
    put(stack, {"stack.json": json.dumps({"schema": 1})})
    packages = stack / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    return packages
