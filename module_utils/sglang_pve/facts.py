"""Facts documents (shape.py) made from what was read of a container, its checkpoint, its stack and its plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import host_compiler
from .account import SYSTEM_UID_MAX
from .flags import FlagTable, options_of
from .lockfile import parse_lock
from .shape import SCHEMA

GIB = 1 << 30
Document = dict[str, Any]
Tables = Callable[[Any], "FlagTable | None"]
LANE_CUDA = {"cu130": "13.0", "cu12": "12.9"}
STACK_FIELDS = ("id", "name", "engine", "lane", "driver_min", "nvcc_min", "glibc_min", "glibc_max", "python")
MODEL_FIELDS = (
    *("path", "architecture", "vision", "max_context", "bytes", "quantization", "mtp", "shards", "tokenizer"),
    "config",
    "findings",
)
# More than Linux is built for; a range beyond it is a slip of the pen.
MOST_CPUS = 1 << 16
# A stack that brings this package compiles with it.
NVCC_PACKAGE = "nvidia-cuda-nvcc"
_SECRET = re.compile(r"(?i)(key|token|password|secret|credentials?)$")


def of_container(
    state: Mapping[str, Any],
    stack: Mapping[str, Any],
    needs: Mapping[str, Any],
    pve: Mapping[str, Any],
    cuda_home: str,
    staged: bool,
) -> Document:
    """The facts that the servers of a container share.

    ``state`` is what fleet.read returned, ``stack`` a stack's metadata with its lock, ``needs``: {"stack_id",
    "stack_disk_gib", "disk_free_min_gib", "server_memory_gib", "servers" (how many the container has, selected or not),
    "staged_bytes" (of checkpoints to be copied into memory), "user" (who runs them)}. ``pve``: {"node", "container"} as
    pve_container_info returned them, or empty; they win over what the container says.
    """
    seen = {"node": _node(state), "container": {**_container(state), **_account(state, needs)}}
    return {
        "schema": SCHEMA,
        **{part: _over(seen[part], pve.get(part) or {}) for part in seen},
        "stack": _stack(stack),
        "toolkit": _toolkit(state, stack, cuda_home),
        "history": _history(state, stack),
        "needs": _needs(state, needs),
        "model": {"staged": staged},
    }


def of_servers(base: Mapping[str, Any], servers: Iterable[Mapping[str, Any]], tables: Tables) -> list[Document]:
    """One document for each group of servers that have plan, checkpoint and stack in common.

    ``servers``: {"host", "plan" (of sglang_plan; empty where there is none), "model" (checkpoint_info's report), "gpu"
    (of gpus.query; None where it is not seen, or lent to somebody whose use of it is no finding), "stack" (where it is
    another than the container's)}. ``tables`` gives the flag table of an engine.
    """
    groups: dict[str, Document] = {}
    for server in servers:
        gpu = server["gpu"]
        stack = server.get("stack") or base.get("stack", {})
        plan = _plan(server["plan"], tables(stack.get("engine")), None if gpu is None else gpu["numa_node"])
        own = {"stack": stack, "model": _over(base.get("model", {}), _model(server["model"]))}
        own.update({"plan": plan} if plan else {})
        document = groups.setdefault(json.dumps(own, sort_keys=True), {**base, **own, "servers": []})
        document["servers"].append(server["host"])
        if gpu:
            document.setdefault("gpus", []).append(_gpu(gpu))
    return [derived(document) for document in groups.values()]


def derived(document: Mapping[str, Any]) -> Document:
    """The document with the facts that follow from others, where it does not give them itself."""
    target = _at(document, "history", "target", "engine")
    stack = {**({"engine": target} if target else {}), **(document.get("stack") or {})}
    container = _with_access(document.get("container") or {})
    gpus = [_near(gpu, document.get("node"), container) for gpu in document.get("gpus") or []]
    own = {"stack": stack, "gpus": gpus, "container": container}
    return {**document, **{name: value for name, value in own.items() if value}}


def _near(gpu: Mapping[str, Any], node: Any, container: Mapping[str, Any]) -> Mapping[str, Any]:
    """A card with whether the container may use CPUs and memory of the card's NUMA node."""
    number, config = gpu.get("numa_node"), container.get("config") or {}
    near, cpus = _at(node, "numa_cpus", str(number)), container.get("cpus")
    found: Document = {}
    if near is not None and cpus is not None:
        found["cpus_allowed"] = bool(cpu_numbers(near) & cpu_numbers(cpus))
    # Where their number is limited, Proxmox VE chooses which.
    elif near is not None and {"cpuset", "cores"} <= config.keys() and config["cores"] is None:
        found["cpus_allowed"] = True
    if number is not None and "memory_nodes" in config:
        found["memory_allowed"] = config["memory_nodes"] is None or number in cpu_numbers(config["memory_nodes"])
    return {**found, **gpu}


def _with_access(container: Mapping[str, Any]) -> Document:
    """The container with what its configuration says of CPUs and device nodes that it may use."""
    config = container.get("config") or {}
    found: Document = dict(container)
    if found.get("cpus") is None and config.get("cpuset") is not None:
        found["cpus"] = config["cpuset"]
    if found.get("device_nodes") and config.get("devices") is not None and config.get("allow") is not None:
        found["device_nodes"] = [_allowed(device, config) for device in found["device_nodes"]]
    return found


def _allowed(device: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A device node with whether the container's control group lets it be read and written."""
    if device.get("path") in [entry.get("path") for entry in config["devices"]]:
        return {"allowed": True, **device}
    number = [device.get("major"), device.get("minor")]
    if None in number:
        return device
    rights: set[str] = set()
    for line in config["allow"]:
        pairs = zip((line.get("major"), line.get("minor")), number)
        if line.get("type") in ("a", "c") and all(str(given) in ("*", str(own)) for given, own in pairs):
            rights.update(str(line.get("access")))
    return {"allowed": {"r", "w"} <= rights, **device}


def cpu_numbers(text: str) -> set[int]:
    """The numbers in a list of CPUs as the kernel writes it: ``0-3,8``. What is none is left out."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", str(text)):
        found.update(range(int(first), min(int(last or first), MOST_CPUS) + 1))
    return found


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def masked(document: Mapping[str, Any]) -> Document:
    """The document without what may be a secret: to be kept in a file and shown to others."""
    plan = dict(document.get("plan") or {})
    for part in ("options", "environment"):
        if part in plan:
            plan[part] = {name: "***" if _SECRET.search(name) else value for name, value in plan[part].items()}
    return {**document, **({"plan": plan} if plan else {})}


def _over(seen: Mapping[str, Any], better: Mapping[str, Any]) -> Document:
    """Two readings in one, mapping by mapping; where both know a fact, the second counts."""
    merged = dict(seen)
    for name, value in better.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _over(merged[name], value) if both else merged.get(name) if value is None else value
    return merged


def _node(state: Mapping[str, Any]) -> Document:
    # nvidia-smi answers only while library and module agree, and then names the module's version.
    driver = state["gpus"].get("driver")
    return {"driver": driver} if driver else {}


def _container(state: Mapping[str, Any]) -> Document:
    host, gpus = state["host"], state["gpus"]
    limits = [value for value in (host["memory"]["limit_bytes"], host["memory"]["total_bytes"]) if value]
    failed = gpus["status"] != "ok"
    cache = host["disks"].get("/var/cache/sglang") or {}
    return {
        "status": "running",
        "os": {
            "id": host["os"]["id"],
            "version_id": host["os"]["version"],
            "glibc": host["glibc"],
            "python": ".".join(host["python"].split(".")[:2]),
        },
        "gpu_error": gpus["status"] if failed else None,
        "gpu_error_text": (gpus["message"] or gpus["status"]) if failed else None,
        "memory_limit_gib": min(limits) / GIB,
        "memory_used_gib": host["memory"]["used_bytes"] / GIB,
        "disk_free_gib": host["disks"]["/opt/sglang"]["free_bytes"] / GIB,
        **({"cpus": host["cpus"], "cpu_count": len(cpu_numbers(host["cpus"]))} if host.get("cpus") else {}),
        **({"cache_filesystem": cache["fs"]} if cache.get("fs") else {}),
        "noexec": sorted(path for path, mount in host["mounts"].items() if "noexec" in mount.get("flags", [])),
        **{name: host[name] for name in ("device_nodes", "libraries", "numactl") if name in host},
    }


def _account(state: Mapping[str, Any], needs: Mapping[str, Any]) -> Document:
    """The account that is to run the servers; one that is still to be made will be a system account."""
    accounts, name = state["host"].get("accounts"), needs.get("user")
    if not accounts or not name:
        return {}
    uid = accounts["uids"].get(name)
    user = {
        "name": name,
        "system": uid is None or 0 < uid <= SYSTEM_UID_MAX,
        **({} if uid is None else {"uid": uid}),
    }
    return {"remove_ipc": accounts["remove_ipc"], "service_user": user}


def _stack(stack: Mapping[str, Any]) -> Document:
    found = {name: stack[name] for name in STACK_FIELDS if stack.get(name) is not None}
    if "driver_min" in found:
        found["driver_min"] = str(found["driver_min"])
    built = re.search(r"(?m)^torch==\S+\+cu(\d+)(\d)\b", stack.get("lock", ""))
    cuda = f"{built[1]}.{built[2]}" if built else LANE_CUDA.get(str(stack.get("lane")))
    return {**found, **({"torch_cuda": cuda} if cuda else {})}


def _toolkit(state: Mapping[str, Any], stack: Mapping[str, Any], cuda_home: str) -> Document:
    found: Document = {"cuda_home": cuda_home, **_compiler(state, stack)}
    locked = parse_lock(stack["lock"]) if stack.get("lock") else []
    own = [package.version for package in locked if package.name == NVCC_PACKAGE]
    if own:
        return {**found, "source": "pip", "found": True, "nvcc": ".".join(own[0].split(".")[:2])}
    if state.get("nvcc"):
        return {**found, "source": "system", "found": True, "nvcc": state["nvcc"]}
    # No answer of a compiler that nobody needs is no finding.
    looked = "nvcc" in state and stack.get("nvcc_min")
    return {**found, **({"found": False} if looked else {})}


def _compiler(state: Mapping[str, Any], stack: Mapping[str, Any]) -> Document:
    """The host compiler that a start script names, there or to be installed; else the container's default."""
    compilers, known = state.get("compilers"), stack.get("compilers") or {}
    if compilers and "package" in known:
        choice = host_compiler.choose([host_compiler.Compiler(**one) for one in compilers["found"]], known)
        if choice.compiler:
            return {"compiler": f"g++ {choice.compiler.version}", "compiler_path": choice.compiler.cxx}
        if choice.package:
            return {"compiler": choice.package.replace("-", " "), "compiler_path": f"/usr/bin/{choice.package}"}
    default = state["host"].get("compiler") or {}
    return {"compiler": default.get("name"), "compiler_path": default.get("path")}


def _history(state: Mapping[str, Any], stack: Mapping[str, Any]) -> Document:
    """Where servers run different engines, none of them is the present one."""
    named = {seen.get("release") for seen in state["servers"].values()} - {None}
    served = [state["releases"][name] for name in named if name in state["releases"]]
    engines = {one["manifest"]["stack"]["engine"] for one in served if not one["error"]}
    found: Document = {"target": {"engine": stack.get("engine")}}
    if not named or len(engines) == 1:
        found["current"] = {"engine": engines.pop() if engines else None}
    return found


def _needs(state: Mapping[str, Any], needs: Mapping[str, Any]) -> Document:
    count, each, staged = int(needs["servers"]), float(needs["server_memory_gib"]), int(needs["staged_bytes"]) / GIB
    stack = 0.0 if needs["stack_id"] in state["stacks"] else float(needs["stack_disk_gib"])
    spare = float(needs["disk_free_min_gib"])
    return {
        "memory_gib": staged + count * each,
        "staged_gib": staged,
        "servers": count,
        "server_memory_gib": each,
        "disk_gib": stack + spare,
        "stack_disk_gib": stack,
        "disk_spare_gib": spare,
    }


def _model(report: Mapping[str, Any]) -> Document:
    return {name: report[name] for name in MODEL_FIELDS if name in report}


def _plan(plan: Mapping[str, Any], table: FlagTable | None, numa_node: int | None) -> Document:
    """A plan that found errors has no command line, and what depends on it is not known."""
    found: Document = {"findings": plan["findings"]} if "findings" in plan else {}
    if not plan.get("argv"):
        return found
    options, environment = options_of(plan["argv"], table), dict(plan["env"])
    # A server's unit adds one of these; the number differs from card to card.
    if numa_node is None:
        environment.setdefault("SGLANG_NUMA_BIND_V2", "0")
    else:
        options.setdefault("numa-node", "of the card")
    return {**found, "profile": plan.get("profile"), "options": options, "environment": environment}


def _gpu(gpu: Mapping[str, Any]) -> Document:
    return {
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "name": gpu["name"],
        "compute_capability": gpu["compute_cap"],
        "memory_mib": gpu["memory_total_mib"],
        "numa_node": gpu["numa_node"],
        **{name: gpu[name] for name in ("mig", "ecc") if name in gpu},
    }
