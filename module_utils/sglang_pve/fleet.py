"""The state of a container in one reading: host, GPUs, stacks, releases, every server, and its history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import (
    adopt,
    altered,
    foreign,
    gate,
    gpus,
    history,
    holders,
    host,
    host_compiler,
    lock,
    release,
    schema,
    server,
    toolkit,
    tuning,
)

SCHEMA = 1
# What a person or a program needs of the recent past; the whole of it stays in the file.
TAIL = 40
MODELS = Path("/etc/sglang/models.json")


def discover(root: Path, systemd: Path) -> list[int]:
    """GPU indexes of the servers that exist: a directory of ours, or an enabled unit whose directory is gone."""
    named = [path.name[3:] for path in (root / "servers").glob("gpu*")]
    named += [path.name[7:-8] for path in systemd.glob("sglang.target.wants/sglang@*.service")]
    return sorted({int(name) for name in named if name.isdigit()})


def read_stacks(root: Path) -> dict[str, dict[str, Any]]:
    """Finished stacks: id -> {"name", "engine", "error" (why no server may start with it; mostly empty)}.

    One whose marker is missing or unreadable is not finished.
    """
    found = {}
    for marker in sorted((root / "stacks").glob("*/stack.json")):
        try:
            content = json.loads(marker.read_text(encoding="utf-8"))
            known = {"name": content["name"], "engine": content["engine"]}
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found[marker.parent.name] = {**known, "error": altered.sentence(marker.parent)}
    return found


def read_models(config: Path) -> list[dict[str, str]]:
    """Checkpoints that are staged at boot, as {"source", "target"}; none where the file is missing or unreadable."""
    try:
        return [
            {key: str(model[key]) for key in ("source", "target")}
            for model in json.loads(config.read_text(encoding="utf-8"))["models"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def models_text(models: Iterable[Mapping[str, str]]) -> str:
    """The file that the staging of the next boot reads."""
    rows = sorted(
        ({"source": item["source"], "target": item["target"]} for item in models), key=lambda row: row["target"]
    )
    return json.dumps({"schema": SCHEMA, "models": rows}, indent=1) + "\n"


def models_to_stage(new: Iterable[Mapping[str, str]], known: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Known and new checkpoints; a new source takes the place of a known one with the same target."""
    return list({item["target"]: dict(item) for item in (*known, *new)}.values())


def served_models(root: Path, known: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Those of the known checkpoints that a server's release names; all of them while a release cannot be read."""
    served = set()
    for directory in (root / "servers").glob("gpu*"):
        name = release.linked(directory)
        if name is None:
            continue
        try:
            served.add(release.load(root / "releases" / name)["model"]["path"])
        except release.ReleaseError:
            return list(known)
    return [item for item in known if item["target"] in served]


def base_url(parameters: Mapping[str, str]) -> str:
    """Where a server is asked from inside its container; empty without parameters."""
    address = parameters.get("host", "")
    reachable = "127.0.0.1" if address in ("0.0.0.0", "::") else address
    return f"http://{reachable}:{parameters['port']}" if reachable and "port" in parameters else ""


def _ask(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Health and pools of one server; one that answers late is shown as not healthy rather than waited for."""
    base = base_url(seen["running_parameters"]) if server.is_running(seen) else ""
    if not base:
        return {"healthy": False, "pools": {}}
    try:
        pools = gate.read_pools(base, timeout_s=5)
    except gate.GateError:
        pools = {}
    return {"healthy": gate.healthy(base, timeout_s=5), "pools": pools}


def _card_of(index: int, seen: Mapping[str, Any], cards: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The card of a server: the one of its parameters, else the one of its index."""
    uuid = seen["parameters"].get("gpu_uuid")
    found = (card for card in cards if card["uuid"] == uuid or (not uuid and card["index"] == index))
    return next(found, None)


def read_servers(
    root: Path, systemd: Path, indexes: Iterable[int], cards: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Every server by name: link, parameters, unit, loan, what runs, its card and who holds memory of it, whether it is
    healthy, and its pools. ``cards`` is what gpus.query returned, its processes named (holders.named)."""
    servers = [server.Server(index, root, systemd) for index in indexes]
    units = host.unit_states([item.unit for item in servers])
    seen = {}
    for item in servers:
        unit = units.get(item.unit, {})
        environ = server.process_environment(int(unit.get("main_pid") or 0))
        loan = server.read_loan(item)
        there = server.observe(item, unit, environ)
        card = holders.of_card(_card_of(item.index, there, cards["gpus"]), cards["processes"], item.unit)
        # Why it is down, in its own words.
        failed = unit.get("active") == "failed" or unit.get("sub") == "auto-restart"
        said = server.evidence(server.journal_tail(item.unit, 400)) if failed else ""
        seen[item.name] = {"said": said, "index": item.index, "lent": loan, "gpu": card, **there}
    with ThreadPoolExecutor(max_workers=max(len(seen), 1)) as pool:
        for name, answer in zip(seen, pool.map(_ask, seen.values())):
            seen[name].update(answer)
    return seen


def release_error(
    name: str | None, releases: Mapping[str, Mapping[str, Any]], stacks: Mapping[str, Mapping[str, Any]]
) -> str:
    """Why a server is not to be started with the release that its link names; empty when it may, or has no link."""
    if name is None:
        return ""
    if name not in releases:
        return f"its link names release {name}, which is not on the container; deploy again with playbooks/site.yml"
    if releases[name]["error"]:
        return str(releases[name]["error"])
    return str(stacks.get(releases[name]["manifest"]["stack"]["id"], {}).get("error", ""))


def read_wheels(wheelhouse: Path) -> list[str]:
    """File names of the wheels in the container's wheelhouse; none where it cannot be read."""
    try:
        return sorted(path.name for path in wheelhouse.iterdir() if path.suffix == ".whl")
    except OSError:
        return []


def read_compilers() -> dict[str, Any]:
    """Host compilers, the package with Python's headers where those lack, and what apt offers of both."""
    found, headers = [asdict(compiler) for compiler in host_compiler.find()], host_compiler.python_headers()
    offers = host_compiler.offered([*host_compiler.PACKAGES, *filter(None, [headers])])
    return {"found": found, "headers": headers, "offers": offers}


def read(
    root: Path,
    systemd: Path,
    history_path: Path,
    paths: Iterable[str],
    cuda_home: Path | None = None,
    wheelhouse: Path | None = None,
) -> dict[str, Any]:
    """Read everything; changes nothing and needs no lock. ``paths`` are those whose free space is asked for.

    ``nvcc`` and ``compilers``, and ``wheels``, are None and empty unless ``cuda_home`` and ``wheelhouse`` say where to
    look.
    """
    entries, broken = history.read(history_path)
    facts, cards = host.facts(list(paths)), gpus.query()
    cards["processes"] = holders.named(cards["processes"])
    stacks, releases = read_stacks(root), release.read_all(root / "releases")
    servers = read_servers(root, systemd, discover(root, systemd), cards)
    for seen in servers.values():
        seen["release_error"] = release_error(seen["release"], releases, stacks)
    being_tuned = tuning.unfinished(entries, {name: seen["release"] for name, seen in servers.items()})
    return {
        "schema": SCHEMA,
        "newer": schema.newer(),
        "host": facts,
        "nvcc": toolkit.nvcc_version(cuda_home) if cuda_home else None,
        "compilers": read_compilers() if cuda_home else None,
        "wheels": read_wheels(wheelhouse) if wheelhouse else [],
        "gpus": cards,
        "foreign": {
            "servers": foreign.read(cards["gpus"], facts["listeners"], cards["processes"]),
            "unit_files": foreign.unit_files(systemd),
            "unfinished": adopt.unfinished(),
        },
        "stacks": stacks,
        "releases": releases,
        "models": read_models(MODELS),
        "servers": servers,
        "lock": lock.held(),
        "history": {
            "line": history.line(entries),
            "going_back": history.unfinished_rollback(entries),
            "verified": sorted(history.verified_releases(entries)),
            "waived": history.waivers(entries),
            "settled": history.settled(entries),
            "tuning": being_tuned,
            "tuned": tuning.latest(entries),
            "tail": entries[-TAIL:],
            "broken_lines": broken,
            "notes": [*history.notes(entries[-TAIL:], broken, history.timestamp()), *tuning.sentences(being_tuned)],
        },
    }
