"""The lines of a container's file that pass NVIDIA's device nodes to it: devN entries, or raw keys of LXC."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import pve_config

STYLES = ("devN", "raw")
_SECTION = re.compile(r"\[[^\]]+\]\s*")
# What LXC needs besides: a container without "optional" does not start while the node has no such device.
MOUNT_OPTIONS = "bind,optional,create=file"


class PassthroughError(Exception):
    """The file cannot be edited; the message says why and what to do."""


def choose(nodes: Sequence[Mapping[str, Any]], cards: Sequence[int]) -> list[Mapping[str, Any]]:
    """The device nodes to pass, of those that the node has (driver.device_nodes): cards and what every use needs.

    ``cards`` are the numbers N of /dev/nvidiaN; all where empty. Raises PassthroughError for one that is not there.
    """
    paths = {node["path"] for node in nodes}
    needed = [*(f"/dev/nvidia{number}" for number in cards), "/dev/nvidiactl", "/dev/nvidia-uvm"]
    missing = [path for path in needed if path not in paths]
    if missing:
        raise PassthroughError(
            f"the node has no {', '.join(missing)}, but {', '.join(sorted(paths)) or 'no device of the driver'};"
            " expected the driver loaded with nvidia-uvm. Run nvidia-modprobe -u -c=0 there, or correct the cards."
        )

    def wanted(path: str) -> bool:
        card = re.fullmatch(r"/dev/nvidia(\d+)", path)
        if card:
            return not cards or int(card[1]) in cards
        return path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")

    # Numbers by value, then the rest.
    return sorted((node for node in nodes if wanted(node["path"])), key=lambda node: _order(node["path"]))


def _order(path: str) -> tuple[int, str]:
    card = re.fullmatch(r"/dev/nvidia(\d+)", path)
    return (int(card[1]), "") if card else (1 << 30, path)


def edit(text: str, devices: Sequence[Mapping[str, Any]], style: str, mode: str) -> str:
    """The file with each of ``devices`` passed once, in ``style``; every other line stays as it is, snapshots too.

    Editing twice gives the same. Raises PassthroughError for a file that Proxmox VE holds a lock on or that has changes
    pending, and where devN numbers run out.
    """
    config = pve_config.parse(text)
    if config.get("lock"):
        raise PassthroughError(
            f"the configuration has the lock {config.get('lock')}; expected none. Wait for the backup or snapshot to"
            " end; where nothing goes on, pct unlock on the node."
        )
    if config.pending:
        raise PassthroughError(
            f"changes of {', '.join(name for name, _ in config.pending)} wait for a restart; expected none, since they"
            " would win over this edit. Restart the container, or revert them in the web interface."
        )
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    end = next((at for at, line in enumerate(lines) if _SECTION.fullmatch(line)), len(lines))
    head, tail = lines[:end], lines[end:]
    head = _as_devices(head, devices, mode) if style == "devN" else _as_raw(head, devices)
    if head == lines[:end]:
        return text
    return "".join(line + ending for line in head + tail)


def _as_devices(lines: list[str], devices: Sequence[Mapping[str, Any]], mode: str) -> list[str]:
    paths = {device["path"] for device in devices}
    kept, have, numbers = [], set(), set()
    for line in lines:
        settings = pve_config.parse(line).settings
        name, value = settings[0] if settings else ("", "")
        number = re.fullmatch(r"dev(\d+)", name)
        if number:
            numbers.add(int(number[1]))
            entry = pve_config.device(value)
            if entry["path"] in paths:
                have.add(entry["path"])
                line = line if entry["mode"] == mode else f"{name}: {_with_mode(value, mode)}"
        elif _mounts(name, value) & paths:
            continue
        kept.append(line)
    free = (number for number in range(256) if number not in numbers)
    for device in devices:
        if device["path"] not in have:
            number_free = next(free, None)
            if number_free is None:
                raise PassthroughError("no devN number of dev0 to dev255 is free; remove entries that are not needed")
            kept = _insert(kept, f"dev{number_free}: {device['path']},mode={mode}")
    return kept


def _as_raw(lines: list[str], devices: Sequence[Mapping[str, Any]]) -> list[str]:
    paths, have, allowed = {device["path"] for device in devices}, set(), set()
    kept = []
    for line in lines:
        settings = pve_config.parse(line).settings
        name, value = settings[0] if settings else ("", "")
        if re.fullmatch(r"dev\d+", name) and pve_config.device(value)["path"] in paths:
            continue
        have |= _mounts(name, value) & paths
        if name == "lxc.cgroup2.devices.allow" and (entry := pve_config.allowed(value)):
            whole = entry["type"] in "ac" and entry["minor"] == "*" and "rw" in entry["access"]
            allowed |= {entry["major"]} if whole else set()
        kept.append(line)
    majors = dict.fromkeys(device["major"] for device in devices)
    kept += [f"lxc.cgroup2.devices.allow: c {major}:* rwm" for major in majors if not allowed & {major, "*"}]
    mounted = [device["path"] for device in devices if device["path"] not in have]
    return kept + [f"lxc.mount.entry: {path} {path[1:]} none {MOUNT_OPTIONS}" for path in mounted]


def _mounts(name: str, value: str) -> set[str]:
    """The device that a raw line mounts, if any."""
    found = pve_config.mounts(pve_config.Config([(name, value)])) if name == "lxc.mount.entry" else []
    return {entry["source"] for entry in found}


def _with_mode(value: str, mode: str) -> str:
    words = [word for word in value.split(",") if not word.strip().startswith("mode=")]
    return ",".join([*words, f"mode={mode}"])


def _insert(lines: list[str], line: str) -> list[str]:
    """Proxmox VE writes raw keys last, so plain ones go before them."""
    at = next((index for index, old in enumerate(lines) if old.startswith("lxc.")), len(lines))
    return [*lines[:at], line, *lines[at:]]


def lacking(devices: Sequence[Mapping[str, Any]], inside: Sequence[Mapping[str, Any]], mode: str | None) -> list[str]:
    """Devices that the running container lacks, or has under an old number or, where given, another mode."""
    have = {node["path"]: node for node in inside}
    return [
        device["path"]
        for device in devices
        if device["path"] not in have
        or any(have[device["path"]][name] != device[name] for name in ("major", "minor"))
        or (mode is not None and int(have[device["path"]]["mode"], 8) != int(mode, 8))
    ]
