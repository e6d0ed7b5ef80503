"""The facts document: every fact that a rule may read, its kind and its meaning; how it is checked and looked up.

A document is one mapping, from JSON or YAML. What is absent or null is not known. Three times it is known that there is
nothing: a name under ``*`` (an option that is not given), a null where the kind says so, and what lies below that null.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


class Unknown:
    """A fact that nobody has read."""


UNKNOWN = Unknown()
UNSET = object()

# Kinds: version (text, with an order), number, text, flag (true or false), list (of texts or numbers), option (text,
# true, or a list), any (not looked into). "?" behind a kind: null says that there is none.
SHAPE: dict[str, tuple[str, str]] = {
    "schema": ("number", f"{SCHEMA}"),
    "servers": ("list", "inventory names of the servers that the document is about"),
    "node.name": ("text", "the Proxmox VE node"),
    "node.pve_version": ("version", "of Proxmox VE"),
    "node.kernel": ("text", "release of the running kernel"),
    "node.memory_gib": ("number", "main memory"),
    "node.driver": ("version", "NVIDIA's kernel module as loaded (/proc/driver/nvidia/version)"),
    "node.driver_installed": ("version", "the module that a restart of the node would load (modinfo)"),
    "node.majors.*": ("number", "major number of each driver in /proc/devices: nvidia, nvidia-uvm, nvidia-caps"),
    "node.device_nodes[].path": ("text", "a device node of the node below /dev/nvidia*"),
    "node.device_nodes[].major": ("number", "its major number"),
    "node.device_nodes[].minor": ("number", "its minor number"),
    "node.device_nodes[].uid": ("number", "its owner"),
    "node.device_nodes[].gid": ("number", "its group"),
    "node.device_nodes[].mode": ("text", "its permissions, such as 0666"),
    "node.persistence": ("flag", "whether the driver stays loaded without clients"),
    "node.apparmor": ("flag", "whether AppArmor is active"),
    "node.gpus[].uuid": ("text", "GPU-..."),
    "node.gpus[].bdf": ("text", "its PCI address"),
    "node.gpus[].index": ("number", "as nvidia-smi of the node counts"),
    "node.gpus[].minor": ("number", "the number of /dev/nvidiaN"),
    "node.gpus[].name": ("text", "the card's name"),
    "node.gpus[].compute_capability": ("version", "such as 12.0"),
    "node.gpus[].memory_mib": ("number", "MiB in all"),
    "node.gpus[].numa_node": ("number?", "NUMA node; null: the board has none"),
    "node.gpus[].mig": ("flag", "whether it is divided (MIG)"),
    "node.gpus[].ecc": ("any?", "ECC mode; null: the card has none"),
    "node.gpus[].error": ("text?", "why it does not answer, such as: GPU is lost; null: it answers"),
    "node.gpu_error": ("text?", "kind of failure of nvidia-smi on the node; null: it answers"),
    "node.gpu_error_text": ("text?", "what nvidia-smi said"),
    "node.gpu_processes[].gpu_uuid": ("text", "the card that a process uses"),
    "node.gpu_processes[].pid": ("number", "on the node"),
    "node.gpu_processes[].user": ("text", "on the node"),
    "node.gpu_processes[].command": ("text", "command line, secrets masked"),
    "node.gpu_processes[].memory_mib": ("number", "MiB of the card's memory"),
    "node.gpu_processes[].vmid": ("number?", "the container that it runs in; null: none, it is the node's own"),
    "node.numa_cpus.*": ("text", "CPUs of each NUMA node, such as 0-31"),
    "container.vmid": ("number", "such as 200"),
    "container.status": ("text", "running or stopped"),
    "container.running_config_pending": ("flag", "whether the file differs from what the container was started with"),
    "container.config.unprivileged": ("flag", "whether its root is an ordinary user of the node"),
    "container.config.memory_mib": ("number", "memory limit"),
    "container.config.swap_mib": ("number", "swap beside it"),
    "container.config.cores": ("number?", "CPU limit; null: none"),
    "container.config.cpuset": ("text?", "CPUs it may use; null: all"),
    "container.config.memory_nodes": ("text?", "NUMA nodes whose memory it may use; null: all"),
    "container.config.nesting": ("flag", "features: nesting"),
    "container.config.lock": ("text?", "what holds its configuration, such as backup; null: nothing"),
    "container.config.hookscript": ("text?", "its hook script; null: none"),
    "container.config.idmap": ("list", "lxc.idmap lines"),
    "container.config.devices[].path": ("text", "a device of devN"),
    "container.config.devices[].uid": ("number", "its owner inside"),
    "container.config.devices[].gid": ("number", "its group inside"),
    "container.config.devices[].mode": ("text", "its permissions inside"),
    "container.config.allow[].type": ("text", "c, b or a, of an lxc.cgroup2.devices.allow line"),
    "container.config.allow[].major": ("any", "its major number, or *"),
    "container.config.allow[].minor": ("any", "its minor number, or *"),
    "container.config.allow[].access": ("text", "such as rwm"),
    "container.config.mounts[].source": ("text", "what is mounted"),
    "container.config.mounts[].target": ("text", "where, in the container"),
    "container.config.mounts[].options": ("text", "mount options"),
    "container.config.mounts[].kind": ("text", "device, bind, volume, ..."),
    "container.config.snapshots": ("list", "names"),
    "container.config.tags": ("list", "tags"),
    "container.os.id": ("text", "such as ubuntu"),
    "container.os.version_id": ("text", "such as 24.04"),
    "container.os.glibc": ("version", "of the C library"),
    "container.os.python": ("version", "of /usr/bin/python3"),
    "container.device_nodes[].path": ("text", "a device node as the container sees it"),
    "container.device_nodes[].major": ("number", "its major number"),
    "container.device_nodes[].minor": ("number", "its minor number"),
    "container.device_nodes[].uid": ("number", "its owner there"),
    "container.device_nodes[].gid": ("number", "its group there"),
    "container.device_nodes[].mode": ("text", "its permissions, such as 0666"),
    "container.device_nodes[].allowed": (
        "flag",
        "whether the container's configuration lets it be read and written; worked out where absent",
    ),
    "container.libraries.libcuda": ("version", "driver version of libcuda.so.1"),
    "container.libraries.libnvidia_ml": ("version", "driver version of libnvidia-ml.so.1"),
    "container.gpu_error": (
        "text?",
        "nvidia-smi there: absent, hung, mismatch, no-devices, lost, unknown-error or error; null: it answers",
    ),
    "container.gpu_error_text": ("text?", "what it said"),
    "container.memory_limit_gib": ("number", "main memory that it may use"),
    "container.memory_used_gib": ("number", "of it in use, tmpfs too, page cache not"),
    "container.disk_free_gib": ("number", "free where stacks and releases are"),
    "container.cache_filesystem": ("text", "type of the file system of /var/cache/sglang, such as ext4"),
    "container.noexec": ("list", "mounts that no program may be started from, of /run, /tmp and /dev/shm"),
    "container.cpus": ("text", "CPUs that its processes may use now, such as 0-31; those of its cpuset where absent"),
    "container.cpu_count": ("number", "of them"),
    "container.numactl": ("flag", "whether it has that program"),
    "container.remove_ipc": ("flag", "whether logind clears shared memory when a user logs out (RemoveIPC)"),
    "container.service_user.name": ("text", "account of the servers"),
    "container.service_user.uid": ("number", "its number"),
    "container.service_user.system": ("flag", "whether it is a system account"),
    "gpus[].index": ("number", "in the container"),
    "gpus[].uuid": ("text", "GPU-..."),
    "gpus[].name": ("text", "the card's name"),
    "gpus[].compute_capability": ("version", "such as 12.0"),
    "gpus[].memory_mib": ("number", "MiB in all"),
    "gpus[].numa_node": ("number?", "NUMA node; null: the board has none"),
    "gpus[].cpus_allowed": ("flag", "whether the container may use a CPU of that NUMA node; worked out where absent"),
    "gpus[].memory_allowed": ("flag", "whether it may use memory of that NUMA node; worked out where absent"),
    "gpus[].mig": ("flag", "whether it is divided (MIG)"),
    "gpus[].ecc": ("any?", "ECC mode; null: the card has none"),
    "model.path": ("text", "its directory"),
    "model.architecture": ("text", "first of config.json's architectures"),
    "model.vision": ("flag", "whether it has a vision part"),
    "model.max_context": ("number", "tokens"),
    "model.bytes": ("number", "of all tensors"),
    "model.config": ("any", "its config.json, which a plan is made from"),
    "model.config.*": ("any", "whatever it says"),
    "model.staged": ("flag", "whether it is served from a copy in memory"),
    "model.quantization": ("any?", "the quantizer's description; null: not quantized"),
    "model.quantization.*": ("any", "whatever else it says"),
    "model.quantization.quant_method": ("text", "fp8, modelopt, compressed-tensors, awq, gptq, ..."),
    "model.quantization.quant_algo": ("text", "NVFP4, FP8, ... of modelopt"),
    "model.mtp.declared": ("flag", "whether config.json names an MTP head"),
    "model.mtp.tensors": ("number", "how many of its tensors are there"),
    "model.mtp.bytes": ("number", "their size"),
    "model.mtp.complete": ("flag", "whether all of them are there"),
    "model.mtp.missing": ("list", "names of those that are not"),
    "model.shards.missing": ("list", "files that the index names and that are not there"),
    "model.tokenizer": ("flag", "whether it has one"),
    "model.findings": ("any", "what was found when it was read; they count as they are"),
    "stack.id": ("text", "of the stack"),
    "stack.name": ("text", "its directory in stacks/"),
    "stack.engine": ("version", "of SGLang that is to serve"),
    "stack.lane": ("text", "cu130 or cu12"),
    "stack.torch_cuda": ("version", "CUDA that its torch is built for"),
    "stack.driver_min": ("version", "least driver"),
    "stack.nvcc_min": ("version", "least nvcc"),
    "stack.glibc_min": ("version", "least glibc"),
    "stack.glibc_max": ("version", "newest glibc that its toolkit's headers take"),
    "stack.python": ("list", "Pythons that it is locked for"),
    "toolkit.cuda_home": ("text", "directory of the CUDA toolkit"),
    "toolkit.found": ("flag", "whether there is an nvcc"),
    "toolkit.nvcc": ("version", "version of nvcc"),
    "toolkit.cccl": ("version", "of CUDA's C++ headers"),
    "toolkit.source": ("text", "system or pip"),
    "toolkit.compiler": ("text", "the host compiler, such as g++ 13.3"),
    "toolkit.compiler_path": ("text", "where it is"),
    "plan.profile": ("text", "profile of flags"),
    "plan.options.*": ("option", "the engine's options, without dashes in front; true for one without value"),
    "plan.environment.*": ("text", "environment of the server"),
    "plan.findings": ("any", "what was found when it was made; they count as they are"),
    "history.current.engine": ("version?", "of SGLang that serves now; null: nothing is deployed"),
    "history.target.engine": ("version", "of SGLang that it goes to"),
    "needs.memory_gib": ("number", "main memory for copies and servers"),
    "needs.staged_gib": ("number", "of it for copies of checkpoints"),
    "needs.servers": ("number", "servers of the container"),
    "needs.server_memory_gib": ("number", "main memory of each"),
    "needs.disk_gib": ("number", "disk for the stack and to spare"),
    "needs.stack_disk_gib": ("number", "of it for the stack"),
    "needs.disk_spare_gib": ("number", "of it to spare"),
}
_OPEN = {path[:-2] for path in SHAPE if path.endswith(".*")}
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "version": ((str,), 'a version in quotes, such as "12.0"'),
    "number": ((int, float), "a number"),
    "text": ((str,), "a text"),
    "flag": ((bool,), "true or false"),
    "list": ((list,), "a list of texts or numbers"),
    "option": ((str, bool, int, float, list), "a text, true or a list of texts or numbers"),
}


class ShapeError(ValueError):
    """A path that no facts document has, or a document that is none; the message says what is expected."""


def is_unknown(value: Any) -> bool:
    return isinstance(value, Unknown)


def kind_of(path: str, bound: Mapping[str, str] = {}) -> str:
    """The kind of a path, without "?". ``bound`` maps names to the lists whose element they are. Raises ShapeError."""
    head, _, rest = path.partition(".")
    whole = f"{bound[head]}[]" + (f".{rest}" if rest else "") if head in bound else path
    parent = whole.rpartition(".")[0]
    kind = SHAPE.get(whole, SHAPE.get(f"{parent}.*", ("", "")))[0].rstrip("?")
    if whole.count("[]") > (head in bound) and kind:
        return "list"
    if not kind:
        close = difflib.get_close_matches(whole, SHAPE, 1)
        raise ShapeError(f"no fact {whole!r}" + (f"; did you mean {close[0]}?" if close else "; docs/facts.md has all"))
    return kind


def list_of(path: str) -> str:
    """``path`` where it is a list of mappings. Raises ShapeError."""
    if any(known.startswith(f"{path}[].") for known in SHAPE):
        return path
    raise ShapeError(f"no list {path!r}; expected one of {', '.join(sorted(_lists()))}")


def _lists() -> set[str]:
    return {path.partition("[]")[0] for path in SHAPE if "[]" in path}


@dataclass(frozen=True)
class Facts:
    """A document, and the elements that names are bound to."""

    document: Mapping[str, Any]
    bound: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    def bind(self, name: str, path: str, element: Any) -> Facts:
        return Facts(self.document, {**self.bound, name: (path, element)})

    def get(self, path: str) -> Any:
        """The fact, UNKNOWN or UNSET; a path over a list (``gpus[].uuid``) gives a list, None for what is absent."""
        head, _, rest = path.partition(".")
        if head not in self.bound:
            return _walk(self.document, "", path)
        prefix, element = self.bound[head]
        return _walk(element, f"{prefix}[].", rest)


def _walk(value: Any, before: str, path: str) -> Any:
    """Go down ``path`` from ``value``, whose own path is ``before``."""
    if not path:
        return value
    over, _, inner = path.partition("[].")
    if inner:
        items = _walk(value, before, over)
        if not isinstance(items, list):
            return items
        found = [_walk(item, f"{before}{over}[].", inner) for item in items]
        return [None if item is UNSET or is_unknown(item) else item for item in found]
    here = before
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return UNKNOWN
        here += name
        # A mapping of all names is known as a whole: a name that it lacks is not set.
        if name not in value:
            return UNSET if here.rpartition(".")[0] in _OPEN else UNKNOWN
        value = value[name]
        if value is None:
            return UNSET if SHAPE.get(here, ("",))[0].endswith("?") or here.rpartition(".")[0] in _OPEN else UNKNOWN
        here += "."
    return value


def check(document: Any) -> tuple[list[str], list[str]]:
    """What is wrong with a facts document, and the facts in it that no rule knows. Both are sentences.

    A wrong document must not be judged: its facts would be taken for others than they are.
    """
    if not isinstance(document, Mapping):
        return [f"it holds {type(document).__name__}, expected a mapping of facts (docs/facts.md)"], []
    wrong = [f"schema is {document.get('schema')!r}, expected {SCHEMA}"] if document.get("schema") != SCHEMA else []
    strange: list[str] = []
    for path, value in _leaves(document, ""):
        _check_leaf(path, value, wrong, strange)
    for path in sorted(_OPEN):
        named = Facts(document).get(path)
        if isinstance(named, Mapping):
            wrong += [f"{path} has the name {name!r}, expected a text" for name in named if not isinstance(name, str)]
    return wrong, strange


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf of a document with its path; what is declared, or below what is declared, is not split further."""
    if path in SHAPE and not (path in _OPEN and isinstance(value, Mapping)):
        yield path, value
    elif isinstance(value, Mapping) and path not in _OPEN and path not in _lists():
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, Mapping) and path in _OPEN:
        for name, inner in value.items():
            yield f"{path}.{name}", inner
    elif isinstance(value, list) and path in _lists():
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path, value


def _check_leaf(path: str, value: Any, wrong: list[str], strange: list[str]) -> None:
    kind = SHAPE.get(path, SHAPE.get(f"{path.rpartition('.')[0]}.*", ("", "")))[0].rstrip("?")
    inside = any(known.startswith((f"{path}.", f"{path}[]")) for known in SHAPE)
    if (value is None and not path.endswith("[]")) or kind == "any":
        return
    if not kind and inside:
        wrong.append(f"{path} is {value!r}, expected {'a list' if path in _lists() else 'a mapping'} of facts")
    elif not kind:
        if not path.startswith("model."):
            close = difflib.get_close_matches(path, SHAPE, 1)
            strange.append(f"{path} is no fact" + (f" (did you mean {close[0]}?)" if close else ""))
    else:
        types, expected = _TYPES[kind]
        plain = all(isinstance(item, (str, int, float)) for item in (value if isinstance(value, list) else []))
        if not isinstance(value, types) or not plain or (isinstance(value, bool) and kind == "number"):
            wrong.append(f"{path} is {value!r}, expected {expected}")
