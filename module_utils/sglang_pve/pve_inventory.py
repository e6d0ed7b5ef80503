"""An inventory from Proxmox VE's API: a group for each container with a tag, a host for each of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import pve_config
from .pve_api import Api, ApiError


def read(api: Api, tag: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Containers with ``tag`` as ``{"vmid", "node", "address", "cards"}``, and notes on those that could not be read.

    ``cards`` are numbers N of the /dev/nvidiaN that are passed, None where the configuration cannot be read, as on a
    node that is down. ``address`` is the node's in its cluster, None where the cluster tells none. Raises ApiError.
    """
    addresses = {item["name"]: item.get("ip") for item in api.get("/cluster/status") if item.get("type") == "node"}
    found, notes = [], []
    for item in api.get("/cluster/resources", type="vm"):
        if item.get("type") == "lxc" and not item.get("template") and tag in _tags(item):
            cards, note = _cards(api, item)
            notes += [note] if note else []
            found.append(
                {"vmid": item["vmid"], "node": item["node"], "address": addresses.get(item["node"]), "cards": cards}
            )
    return sorted(found, key=lambda container: container["vmid"]), notes


def _tags(item: Mapping[str, Any]) -> list[str]:
    return pve_config.tags(str(item.get("tags") or ""))


def _cards(api: Api, item: Mapping[str, Any]) -> tuple[list[int] | None, str]:
    name = f"container {item['vmid']} on node {item['node']}"
    try:
        config = pve_config.parse_api(api.get(f"/nodes/{item['node']}/lxc/{item['vmid']}/config", **pve_config.CURRENT))
    except (ApiError, pve_config.ConfigError) as error:
        return None, f"{name} cannot be read, and one host stands for it: {error}"
    cards = pve_config.cards(config)
    if not cards:
        return [], f"{name} has the tag and no /dev/nvidiaN, so it has no hosts; pass a card to it (docs/proxmox.md)"
    return cards, ""


def groups(containers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The inventory as ``{"nodes": {name: variables}, "containers": {group: {"vars", "hosts": {name: variables}}}}``.

    A GPU's index is its place among the cards of its container. A container that could not be read has one host, so
    that a run meets it, sets it aside and says so; one without cards has none, and no group.
    """
    nodes: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for container in containers:
        if container["cards"] == []:
            continue
        address = container["address"]
        nodes[container["node"]] = {"ansible_host": address} if address else {}
        count = 1 if container["cards"] is None else len(container["cards"])
        name = f"ct{container['vmid']}"
        found[name] = {
            "vars": {"sglang_node": container["node"], "sglang_vmid": container["vmid"]},
            "hosts": {f"{name}-gpu{index}": {} for index in range(count)},
        }
    return {"nodes": nodes, "containers": found}
