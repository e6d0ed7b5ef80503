"""A container's configuration in Proxmox VE, read from its file and from the API's answer by one parser.

Keys and defaults: pct.conf(5) of Proxmox VE 8 (pve-container, src/PVE/LXC/Config.pm). Sizes are MiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Setting = tuple[str, str]
_SECTION = re.compile(r"\[([^\]]+)\]\s*")
# Proxmox VE takes raw keys with a colon or as LXC writes them, with an equals sign.
_LINE = re.compile(r"(lxc\.[a-zA-Z0-9_.-]+)\s*[:=]\s*(.*?)\s*|([a-z][a-z_]*\d*):\s*(.*?)\s*")
_PENDING = "pve:pending"
_DEFAULT_MIB = 512
# Without it the API and pvesh answer with values that wait for a restart.
CURRENT = {"current": 1}
# Lines of cgroup version 1 (lxc.cgroup.*) have no effect on the version 2 that Proxmox VE runs since 7.0.
_ALLOW_KEY = "lxc.cgroup2.devices.allow"
_CPUS_KEY, _MEMORY_KEY = "lxc.cgroup2.cpuset.cpus", "lxc.cgroup2.cpuset.mems"


class ConfigError(ValueError):
    """What was read is no container's configuration."""


@dataclass
class Config:
    """A configuration taken apart. ``settings`` are those that count now, in their order; raw keys may repeat."""

    settings: list[Setting] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    pending: list[Setting] = field(default_factory=list)

    def get(self, key: str) -> str | None:
        """The last value of a key, as Proxmox VE takes it; None where it is not set."""
        return next((value for name, value in reversed(self.settings) if name == key), None)

    def all(self, *keys: str) -> list[str]:
        return [value for name, value in self.settings if name in keys]

    def numbered(self, kind: str) -> list[tuple[int, str]]:
        """The entries ``kind0``, ``kind1``, ... by number; the last of each counts."""
        pairs = ((re.fullmatch(rf"{kind}(\d+)", name), value) for name, value in self.settings)
        return sorted({int(match[1]): value for match, value in pairs if match}.items())

    def raw(self) -> list[Setting]:
        return [(name, value) for name, value in self.settings if name.startswith("lxc.")]


def parse(text: str) -> Config:
    """Read ``/etc/pve/lxc/VMID.conf`` or what ``pct config`` prints. What is no setting is passed over.

    Snapshots repeat all keys in sections of their own; only what stands before the first section counts now.
    """
    config = Config()
    target: list[Setting] | None = config.settings
    for line in text.lstrip("\ufeff").splitlines():
        if section := _SECTION.fullmatch(line):
            name = section[1]
            target = config.pending if name == _PENDING else None
            # Other sections with a colon are Proxmox VE's own.
            if ":" not in name:
                config.snapshots.append(name)
        elif target is not None and (match := _LINE.fullmatch(line)):
            target.append((match[1], match[2]) if match[1] else (match[3], match[4]))
    return config


def parse_api(answer: Mapping[str, Any], snapshots: Any = ()) -> Config:
    """Read the API's ``/nodes/NODE/lxc/VMID/config``, and the list of ``.../snapshot``. Raises ConfigError."""
    raw = answer.get("lxc") or [] if isinstance(answer, Mapping) else None
    if not isinstance(raw, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in raw):
        raise ConfigError(
            f"{str(answer)[:80]} is no answer of .../config; expected a mapping whose lxc is a list of pairs"
        )
    plain = [(name, str(value)) for name, value in answer.items() if name not in ("lxc", "digest", "description")]
    # "current" is not a snapshot but the state now.
    names = [str(item["name"]) for item in snapshots or [] if item.get("name", "current") != "current"]
    return Config(plain + [(str(name), str(value)) for name, value in raw], names)


def facts(config: Config) -> dict[str, Any]:
    """The configuration as ``container.config`` of a facts document has it (docs/facts.md)."""
    features = options(config.get("features") or "")[1]
    cores = config.get("cores")
    return {
        "unprivileged": config.get("unprivileged") == "1",
        "memory_mib": _whole(config.get("memory"), _DEFAULT_MIB),
        "swap_mib": _whole(config.get("swap"), _DEFAULT_MIB),
        "cores": _whole(cores, None),
        "cpuset": config.get(_CPUS_KEY),
        "memory_nodes": config.get(_MEMORY_KEY),
        "nesting": features.get("nesting") == "1",
        "lock": config.get("lock"),
        "hookscript": config.get("hookscript"),
        "idmap": [" ".join(value.split()) for value in config.all("lxc.idmap", "lxc.id_map")],
        "devices": [device(value) for _, value in config.numbered("dev")],
        # An included file may allow more.
        "allow": None
        if config.all("lxc.include")
        else [found for value in config.all(_ALLOW_KEY) if (found := allowed(value))],
        "mounts": mounts(config),
        "snapshots": list(config.snapshots),
        "tags": tags(config.get("tags") or ""),
    }


def tags(text: str) -> list[str]:
    return [tag for tag in re.split(r"[;,\s]+", text) if tag]


def options(value: str) -> tuple[str | None, dict[str, str]]:
    """A property string: the word without a name (None where all have one), and the named ones."""
    first, named = None, {}
    for word in filter(None, (part.strip() for part in value.split(","))):
        name, equals, text = word.partition("=")
        if equals:
            named[name] = text
        else:
            first = first or word
    return first, named


def device(value: str) -> dict[str, Any]:
    """A devN entry. What it does not set is None, but the owner: that is root then."""
    path, named = options(value)
    return {
        "path": path or named.get("path"),
        "uid": _whole(named.get("uid"), 0),
        "gid": _whole(named.get("gid"), 0),
        "mode": named.get("mode"),
    }


def allowed(value: str) -> dict[str, Any] | None:
    """An lxc.cgroup2.devices.allow line; None for one that LXC would refuse."""
    if value.split() == ["a"]:
        return {"type": "a", "major": "*", "minor": "*", "access": "rwm"}
    match = re.fullmatch(r"([abc])\s+(\d+|\*):(\d+|\*)(?:\s+([rwm]+))?", value.strip())
    if not match:
        return None
    major, minor = (int(part) if part.isdigit() else part for part in (match[2], match[3]))
    return {"type": match[1], "major": major, "minor": minor, "access": match[4] or "rwm"}


def mounts(config: Config) -> list[dict[str, str]]:
    """What is mounted: the root file system, mpN entries, and raw lxc.mount.entry lines, targets from the root on.

    ``kind`` is device, bind, volume (of a storage) or filesystem (tmpfs and the like).
    """
    found = []
    rootfs = config.get("rootfs")
    entries = ([] if rootfs is None else [(rootfs, "/")]) + [(value, None) for _, value in config.numbered("mp")]
    for value, target in entries:
        source, named = options(value)
        source = source or named.pop("volume", "")
        where = target or named.pop("mp", "")
        kind = _kind(source, "bind") if source.startswith("/") else "volume"
        words = ",".join(f"{name}={text}" for name, text in named.items())
        found.append({"source": source, "target": where, "options": words, "kind": kind})
    found += [entry for value in config.all("lxc.mount.entry") if (entry := _mount_entry(value))]
    return found


def _mount_entry(value: str) -> dict[str, str] | None:
    # As in fstab(5): a blank within a field is written \040.
    fields = [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word) for word in value.split()]
    if len(fields) < 2:
        return None
    words = fields[3] if len(fields) > 3 else ""
    bound = {"bind", "rbind"} & set(words.split(","))
    kind = _kind(fields[0], "bind" if bound else "filesystem")
    return {"source": fields[0], "target": "/" + fields[1].lstrip("/"), "options": words, "kind": kind}


def _kind(source: str, otherwise: str) -> str:
    return "device" if source.startswith("/dev/") else otherwise


def cards(config: Config) -> list[int]:
    """Numbers N of the /dev/nvidiaN that are passed to the container, in either way."""
    described = facts(config)
    paths = [entry["path"] or "" for entry in described["devices"]] + [entry["source"] for entry in described["mounts"]]
    return sorted({int(match[1]) for path in paths if (match := re.fullmatch(r"/dev/nvidia(\d+)", path))})


def is_pending(config: Config, started_with: str | None) -> bool | None:
    """Whether the container runs otherwise than its configuration says; None where that is not known.

    ``started_with`` is the configuration that Proxmox VE wrote for LXC at the start (/var/lib/lxc/VMID/config), which
    holds raw keys as they were then.
    """
    if config.pending:
        return True
    if started_with is None:
        return None
    then = set(parse(started_with).raw())
    return any(setting not in then for setting in config.raw())


def _whole(text: str | None, otherwise: Any) -> Any:
    return int(text) if text is not None and text.strip().isdigit() else otherwise
