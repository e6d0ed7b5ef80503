"""Say no before anything is touched: what the inventory asks for against what is there.

What holds for every container is a rule (rules/); here is what only this inventory and this state can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .findings import Finding

State = Mapping[str, Any]
Wanted = Mapping[str, Any]


def judge(state: State, servers: Sequence[Wanted], stack_id: str = "") -> list[Finding]:
    """Return the findings of one container.

    ``state`` is what fleet.read returned. ``servers`` are those selected: {"host" (inventory name), "name" (gpu3),
    "index", "port", "nccl_port", "stack"}, ``stack_id`` the stack that they are to run.
    """
    return [
        *_inventory(servers),
        *_gpus(state["gpus"], servers),
        *_ports(_known_listeners(state), servers),
        *_stacks(state["stacks"], stack_id),
        *_state_on_disk(state),
    ]


def _inventory(servers: Sequence[Wanted]) -> Iterable[Finding]:
    for key, what in (("index", "GPU"), ("port", "port"), ("nccl_port", "NCCL port")):
        for value, count in Counter(server[key] for server in servers).items():
            if count > 1:
                names = ", ".join(server["host"] for server in servers if server[key] == value)
                yield Finding(
                    f"{key.replace('_', '-')}-twice",
                    "error",
                    f"{names} all have {what} {value}",
                    f"one {what} for each server",
                    f"set sglang_{'gpu' if key == 'index' else key} of each in the inventory",
                )
    both = {server["port"] for server in servers} & {server["nccl_port"] for server in servers}
    if both:
        yield Finding(
            "port-and-nccl-port",
            "error",
            f"port {', '.join(map(str, sorted(both)))} is both a server's port and a server's NCCL port",
            "two ranges that do not meet",
            "move sglang_port_base or sglang_nccl_port_base",
        )
    stacks = sorted({server["stack"] for server in servers})
    if len(stacks) > 1:
        yield Finding(
            "stacks-differ",
            "error",
            f"the servers of one container ask for {', '.join(stacks)}",
            "one stack for all servers of a container",
            "set sglang_stack on the container's group, not on single servers",
        )


def _gpus(gpus: State, servers: Sequence[Wanted]) -> Iterable[Finding]:
    if gpus["status"] != "ok":
        return
    known = {gpu["index"]: gpu for gpu in gpus["gpus"]}
    for server in servers:
        if server["index"] not in known:
            there = f"{len(known)} GPUs, index {min(known)} to {max(known)}" if known else "no GPU"
            yield Finding(
                "gpu-missing",
                "error",
                f"the container has {there}",
                f"a GPU with index {server['index']}",
                "correct the inventory, or look for a card that fell off the bus in the node's kernel log",
                where=server["host"],
            )


def _known_listeners(state: State) -> list[State]:
    """Without those of foreign SGLang servers, which have findings of their own (preflight_foreign)."""
    foreign = {pid for one in state["foreign"]["servers"] for pid in one["pids"]}
    return [item for item in state["host"]["listeners"] if item["pid"] not in foreign]


def _ports(listeners: Sequence[State], servers: Sequence[Wanted]) -> Iterable[Finding]:
    held: dict[int, State] = {}
    for item in listeners:
        held.setdefault(item["port"], item)
    for server in servers:
        own = f"sglang@{server['index']}.service"
        for key in ("port", "nccl_port"):
            holder = held.get(server[key])
            if holder is None or holder.get("unit") == own:
                continue
            yield Finding(
                "port-taken",
                "error",
                f"port {server[key]} is held by pid {holder.get('pid') or 'unknown'} "
                f"({holder.get('unit') or holder.get('command') or 'unknown'})",
                f"it to be free, or held by {own}",
                f"stop that process yourself, or set sglang_{key} of this server to a free port",
                where=server["host"],
            )


def _stacks(stacks: State, wanted: str) -> Iterable[Finding]:
    """One that nothing new is to run still serves what it serves, and what fails goes back to it."""
    for name, there in stacks.items():
        if there["error"]:
            seen, _, cure = there["error"].partition(". ")
            level = "error" if name == wanted else "warning"
            yield Finding("stack-altered", level, seen, "every file as its wheel brought it", cure)


def _state_on_disk(state: State) -> Iterable[Finding]:
    for seen in state["newer"]:
        yield Finding(
            "state-newer",
            "error",
            seen,
            "state that this version or an earlier one wrote",
            "use the version of this project that was here last, or a later one",
        )
    for note in state["history"]["notes"]:
        yield Finding(
            "history-doubtful",
            "warning",
            note,
            "one JSON object a line, in the order of their times",
            "nothing is needed: what counts is what can be read, in its order",
        )
    for name, seen in state["servers"].items():
        if seen["release_error"] and seen["release"] not in state["releases"]:
            yield Finding(
                "release-missing",
                "warning",
                seen["release_error"],
                "the release that a server's link names, as long as it is named",
                "nothing is needed: a deployment gives the server a release again",
                where=name,
            )
    for name, entry in state["releases"].items():
        if entry["error"]:
            yield Finding(
                "release-altered",
                "warning",
                entry["error"],
                "releases as they were written",
                f"no server can be switched to {name} any more; deploy again",
            )
