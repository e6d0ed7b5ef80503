"""Another stack for the fleet: the lab's own and a few tiny packages, so that an install is due."""

from __future__ import annotations

from pathlib import Path

import yaml
from fleet_kit import Fleet

from tests.unit.stack_kit import lock_of, make_wheel

# While this file is there, an install stays at its last step, the imports; it says so in the other file.
PAUSE, PAUSED = "/run/pause-install", "/run/install-paused"
SOURCE = f"""
import os, time
while os.path.exists({PAUSE!r}):
    open({PAUSED!r}, "w").close()
    time.sleep(0.05)
"""


def write_stack(fleet: Fleet, name: str, *packages: str) -> dict[str, str]:
    """Write a stack with these packages on the controller, wheels and all; the variables that deploy it."""
    place = fleet.folder / name
    wheels, data = place / "wheelhouse", place / "stacks" / name
    wheels.mkdir(parents=True)
    data.mkdir(parents=True)
    for wheel in (fleet.lab.dir / "wheelhouse").iterdir():
        (wheels / wheel.name).symlink_to(wheel)
    own = fleet.lab.dir / "stacks/sglang-0.5.11-lab"
    meta = yaml.safe_load((own / "stack.yml").read_text())
    (data / "stack.yml").write_text(yaml.safe_dump({**meta, "imports": ["sglang", *packages]}))
    made = [make_wheel(wheels, package, "1.0", SOURCE) for package in packages]
    (data / "lock.txt").write_text((own / "lock.txt").read_text() + lock_of(*made))
    return {"sglang_stack": name, "sglang_stacks_dir": str(place / "stacks"), "sglang_wheelhouse_source": str(wheels)}


def alter(wheel: Path) -> bytes:
    """Change one byte of a file; what it held before."""
    before = wheel.read_bytes()
    wheel.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    return before
