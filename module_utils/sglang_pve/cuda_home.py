"""One CUDA_HOME for the kernels that the engine compiles: links to the toolkit and to the stack's own packages.

Layout of ``<stack>/cuda``: ``bin``, ``include``, ``lib64`` (``lib`` and ``targets`` lead there), ``nvvm``, ``host``
(the host compiler under its plain names), and ``manifest.json``. All are links but the directories, the manifest and,
where the toolkit has none, ``lib64/stubs/libcuda.so``. What the links lead to is only read.
"""

from __future__ import annotations

import csv
import filecmp
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import cccl
from .findings import Finding
from .toolkit import nvcc_version

# Looked for because a kernel of flashinfer or of the engine fails without it; and which package brings it.
NEEDED = {
    "bin/nvcc": "nvidia-cuda-nvcc",
    "bin/cudafe++": "nvidia-cuda-nvcc",
    "bin/fatbinary": "nvidia-cuda-nvcc",
    "bin/ptxas": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "nvvm/libdevice/libdevice.10.bc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda.h": "nvidia-cuda-runtime",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "include/cublasLt.h": "nvidia-cublas",
    "include/curand.h": "nvidia-curand",
    "include/curand_kernel.h": "nvidia-curand",
    "lib64/libcudart.so": "nvidia-cuda-runtime",
}


@dataclass
class Overlay:
    """What is to be there: links (path below the overlay -> target), and what stands against it."""

    nvcc: str = ""
    nvcc_root: Path = Path()
    cccl: str = ""
    links: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def target(self, path: str) -> Path | None:
        """The file that ``path`` below the overlay leads to; None where there is none."""
        parts = path.split("/")
        for count in range(len(parts), 0, -1):
            link = self.links.get("/".join(parts[:count]))
            if link:
                found = Path(link, *parts[count:])
                return found if found.exists() else None
        return None


def design(packages: Path, toolkit: Path) -> Overlay:
    """Say what an overlay for the ``site-packages`` directory ``packages`` holds.

    The stack's own nvcc comes first, with its packages alone; a stack without one takes the system's ``toolkit`` and
    adds what that lacks. Raises OSError where a directory cannot be read.
    """
    roots = [
        path for path in _entries(packages / "nvidia") if any((path / part).is_dir() for part in ("include", "lib"))
    ]
    own = next((root for root in roots if (root / "bin/nvcc").is_file()), None)
    first = own or toolkit
    version = nvcc_version(first)
    if version is None:
        expected = "an nvcc that says its version, of the stack or of the container"
        cure = "Install a CUDA toolkit in the container and point sglang_cuda_home at it, or take a stack with its own."
        return Overlay(findings=[Finding("nvcc-missing", "error", f"none in {first}/bin", expected, cure)])
    overlay = Overlay(nvcc=version, nvcc_root=first)
    parts = [first, *(root for root in roots if root != first)]
    _link_headers(overlay, parts)
    _link_cccl(overlay, parts)
    overlay.links.update({f"bin/{path.name}": str(path) for path in _entries(first / "bin")})
    overlay.links["nvvm"] = str(first / "nvvm")
    for root in parts:
        _link_libraries(overlay, root)
    overlay.links.update(
        {"lib": "lib64", "targets/x86_64-linux/include": "../../include", "targets/x86_64-linux/lib": "../../lib64"}
    )
    overlay.findings.extend(_twice(packages))
    overlay.findings.extend(_lacking(overlay, own is not None))
    overlay.findings.extend(_other_release(overlay))
    return overlay


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _link_headers(overlay: Overlay, parts: Sequence[Path]) -> None:
    includes = [root / "include" for root in parts if (root / "include").is_dir()]
    differing: dict[tuple[Path, Path], list[str]] = {}
    for name in _names(includes):
        if name not in (*cccl.NAMES, "cccl"):
            for path, taken, other in _merge(overlay, includes, name):
                differing.setdefault((taken, other), []).append(path)
    for (taken, other), paths in differing.items():
        # A toolkit's headers fit its own nvcc; which of two packages fits the other nobody knows.
        level = "warning" if taken == overlay.nvcc_root / "include" else "error"
        overlay.findings.append(_conflict(level, paths, f"{taken} and {other}"))


def _names(directories: Sequence[Path]) -> list[str]:
    names = {path.name for directory in directories for path in directory.iterdir()}
    return sorted(names - {"__init__.py", "__pycache__"})


def _merge(overlay: Overlay, includes: Sequence[Path], at: str) -> Iterator[tuple[str, Path, Path]]:
    """Link ``at``, or what is in it where several have it; yield what differs: (path, whose is taken, the other)."""
    holders = [include for include in includes if (include / at).exists()]
    if len(holders) > 1 and all((include / at).is_dir() for include in holders):
        for name in _names([include / at for include in holders]):
            yield from _merge(overlay, holders, f"{at}/{name}")
        return
    overlay.links[f"include/{at}"] = str(holders[0] / at)
    for other in holders[1:]:
        pair = (holders[0] / at, other / at)
        if any(path.is_dir() for path in pair) or not filecmp.cmp(*pair, shallow=False):
            yield at, holders[0], other


def _conflict(level: str, paths: Sequence[str], where: str) -> Finding:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return Finding(
        "cuda-header-conflict",
        level,
        f"{', '.join(sorted(paths)[:3])}{more} with different contents",
        "one content for each header",
        "Take versions of these packages that belong to one CUDA release.",
        where,
    )


def _link_cccl(overlay: Overlay, parts: Sequence[Path]) -> None:
    numbers = _numbers(overlay.nvcc)
    copies = list(filter(None, map(cccl.read, parts)))
    taken = next((copy for copy in copies if cccl.fits(numbers, copy)), None)
    if taken is None:
        seen = ", ".join(f"CCCL {copy.text} in {copy.directory}" for copy in copies) or "no CCCL"
        cure = f"Install the CCCL of CUDA {overlay.nvcc} (nvidia-cuda-cccl in the stack, cuda-cccl in a toolkit)."
        overlay.findings.append(
            Finding("cccl-unfit", "error", seen, f"{cccl.wanted(numbers)}, for nvcc {overlay.nvcc}", cure)
        )
        return
    overlay.cccl = taken.text
    # CUDA 13 looks for it in a directory of its own, but its own headers include <nv/target> from beside them.
    place = "include/cccl" if numbers >= (13,) else "include"
    for path in dict.fromkeys([f"{place}/{name}" for name in cccl.NAMES] + ["include/nv"]):
        overlay.links[path] = str(taken.directory / path.rsplit("/", 1)[1])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _link_libraries(overlay: Overlay, root: Path) -> None:
    directory = root / "lib64" if (root / "lib64").is_dir() else root / "lib"
    for path in [*_entries(directory), *_entries(directory / "stubs")]:
        if re.fullmatch(r"lib[^/]+\.(?:a|so(?:\.\d+)*)", path.name):
            overlay.links.setdefault(f"lib64/{path.relative_to(directory)}", str(path))
    # Packages bring no names to link against.
    for path in _entries(directory):
        match = re.fullmatch(r"(lib[^/]+\.so)(?:\.\d+)+", path.name)
        if match:
            overlay.links.setdefault(f"lib64/{match.group(1)}", str(path))


def _twice(packages: Path) -> Iterator[Finding]:
    """Files below ``nvidia`` that two packages bring with different contents: one has overwritten the other."""
    hashes: dict[str, dict[str, str]] = {}
    for record in sorted(packages.glob("nvidia*.dist-info/RECORD")):
        with record.open(newline="") as stream:
            for row in csv.reader(stream):
                if row and row[0].startswith("nvidia/") and not row[0].endswith("/__init__.py"):
                    hashes.setdefault(row[0], {})[record.parent.name.split(".dist-info")[0]] = row[1]
    pairs: dict[str, list[str]] = {}
    for path, owners in hashes.items():
        if len(set(owners.values())) > 1:
            pairs.setdefault(" and ".join(owners), []).append(path)
    return (_conflict("error", paths, where) for where, paths in pairs.items())


def _lacking(overlay: Overlay, own: bool) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    for path, package in NEEDED.items():
        if overlay.target(path) is None:
            missing.setdefault(package, []).append(path)
    for package, paths in missing.items():
        cure = (
            f"Add {package} of CUDA {overlay.nvcc} to the stack's requirements.in and resolve its lock again."
            if own
            else f"Install cuda-toolkit-{overlay.nvcc.replace('.', '-')} in the container, the whole of it."
        )
        yield Finding("cuda-home-lacks", "error", f"no {', '.join(paths)}", f"what {package} brings", cure)


def _other_release(overlay: Overlay) -> Iterator[Finding]:
    """Headers of another CUDA release than nvcc's: what compiles then need not run."""
    header = overlay.target("include/cuda_runtime_api.h")
    match = header and re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text())
    if match:
        release = f"{int(match.group(1)) // 1000}.{int(match.group(1)) // 10 % 100}"
        if release != overlay.nvcc:
            cure = "Take the runtime's headers and nvcc from one CUDA release."
            yield Finding(
                "cuda-release-differs",
                "error",
                f"headers of CUDA {release}",
                f"{overlay.nvcc}, as nvcc",
                cure,
                str(header),
            )


def newest_gcc(overlay: Overlay) -> int | None:
    """The highest major of g++ that this nvcc takes, as its own header says; None where it does not."""
    header = overlay.target("include/crt/host_config.h")
    match = header and re.search(r"#if __GNUC__ > (\d+)", header.read_text())
    return int(match.group(1)) if match else None
