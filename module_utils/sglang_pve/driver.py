"""NVIDIA's device nodes and libraries under a root directory: of the node, or of the container itself."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

LIBRARIES = {"libcuda": "libcuda.so.1", "libnvidia_ml": "libnvidia-ml.so.1"}
# Where the driver's installers and distributions put them, and the container toolkit.
LIBRARY_DIRS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
)


def device_nodes(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Device nodes below ``/dev/nvidia*``: ``{"path", "major", "minor", "uid", "gid", "mode"}``, mode as ``0666``."""
    found = []
    for path in sorted([*root.glob("dev/nvidia*"), *root.glob("dev/nvidia-caps/*")]):
        try:
            seen = path.stat()
        except OSError:
            continue
        if stat.S_ISCHR(seen.st_mode):
            found.append(
                {
                    "path": f"/{path.relative_to(root)}",
                    "major": os.major(seen.st_rdev),
                    "minor": os.minor(seen.st_rdev),
                    "uid": seen.st_uid,
                    "gid": seen.st_gid,
                    "mode": f"{stat.S_IMODE(seen.st_mode):04o}",
                }
            )
    return found


def libraries(root: Path = Path("/")) -> dict[str, str]:
    """Driver version of each user-space library, from the name of the file that its link leads to."""
    found = {}
    for name, file in LIBRARIES.items():
        for directory in LIBRARY_DIRS:
            path = root / directory / file
            version = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", path.resolve().name) if path.exists() else None
            if version:
                found[name] = version[1]
                break
    return found
