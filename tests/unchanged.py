"""What a lab's container and node are, taken twice to see whether anything changed between."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab_fixture import Lab

# What systemd and journald write all the time, and the node's log of calls, which is there to be written.
MOVING = ("var/log/journal", "var/lib/systemd", "remote-commands.log")
QUESTIONS = {
    "units": "systemctl list-units --all --plain --no-legend --no-pager --type=service,target,mount,timer,socket",
    "processes": "systemctl show '*.service' --property=Id --property=MainPID --property=NRestarts",
    "memory": "ls -lAR --time-style=full-iso /dev/shm /tmp /run/sglang /run/systemd/system 2>&1; true",
    "temporary files": "ls -A /run/ansible 2>/dev/null; true",
    "mounts": "cat /proc/mounts",
}


def tree(root: Path) -> dict[str, tuple[int, ...]]:
    """Every file below a directory with owner, mode, size, and the times of its last change and of its inode's."""
    found = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not (Path(folder) / name).is_mount()]
        for name in [*folders, *files]:
            path = Path(folder) / name
            here = str(path.relative_to(root))
            if not any(part in here for part in MOVING):
                at = path.lstat()
                size = 0 if path.is_dir() else at.st_size
                found[here] = (at.st_uid, at.st_gid, at.st_mode, size, at.st_mtime_ns, at.st_ctime_ns)
    return found


def state(lab: Lab) -> dict[str, object]:
    """The container's files, units, mounts and memory, and the node's files: path or question -> what is there."""
    said = {}
    for name, command in QUESTIONS.items():
        done = lab.pct("exec", str(lab.vmid), "--", "sh", "-c", command)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        said[name] = sorted(done.stdout.splitlines())
    node = {f"node: {path}": seen for path, seen in tree(lab.dir / "node").items()}
    return {**tree(lab.rootfs), **node, **said}


def differences(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """What is not as it was, each before and after; nothing where all is."""
    names = before.keys() | after.keys()
    return {name: (before.get(name), after.get(name)) for name in sorted(names) if before.get(name) != after.get(name)}
