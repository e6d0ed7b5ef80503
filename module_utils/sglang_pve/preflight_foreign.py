"""Say no to what others run on a GPU or port that a server is to have; nothing here ever ends what others started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import foreign, holders
from .findings import Finding
from .occupied import FREE_MIB

State = Mapping[str, Any]
Wanted = Mapping[str, Any]


def judge(state: State, servers: Sequence[Wanted], adopting: bool = False) -> list[Finding]:
    """Return the findings about foreign servers, foreign holders of GPU memory and files where our units go.

    ``state`` and ``servers`` as preflight.judge takes them. With ``adopting``, a server that adopt.yml can take over is
    no error. A card that is lent is its borrower's.
    """
    free = [server for server in servers if not _lent(state, server)]
    return [
        *_servers(state["foreign"]["servers"], free, adopting),
        *([] if adopting else _unfinished(state, free)),
        *_memory(state, free),
        *_files(state["foreign"]["unit_files"]),
    ]


def takeovers(state: State, servers: Sequence[Wanted]) -> dict[str, State]:
    """What adopt.yml takes over: our server's name (gpu3) -> the foreign server on its card.

    ``stopped`` is true for one that an interrupted or failed run has stopped: it goes on from there.
    """
    found: dict[str, State] = {}
    for server in servers:
        name, on_card = server["name"], [one for one in state["foreign"]["servers"] if _on(one, server)]
        if _lent(state, server):
            continue
        if len(on_card) == 1 and not on_card[0]["blocked"]:
            found[name] = {**on_card[0], "stopped": False}
        elif not on_card and name in state["foreign"]["unfinished"]:
            found[name] = {**state["foreign"]["unfinished"][name], "stopped": True}
    return found


def _lent(state: State, server: Wanted) -> bool:
    return bool((state["servers"].get(server["name"]) or {}).get("lent"))


def _on(stranger: State, server: Wanted) -> bool:
    return server["index"] in [card["index"] for card in stranger["gpus"]]


def _servers(strangers: Sequence[State], servers: Sequence[Wanted], adopting: bool) -> Iterable[Finding]:
    for one in strangers:
        on_card = [server for server in servers if _on(one, server)]
        on_port = [server for server in servers if {server["port"], server["nccl_port"]} & set(one["ports"])]
        hosts = ", ".join(dict.fromkeys(server["host"] for server in (*on_card, *on_port)))
        shared = len([other for other in strangers for server in on_card if _on(other, server)]) > 1
        blocked = one["blocked"]
        if not blocked and shared:
            blocked = "several SGLang servers use its GPU"
        if not blocked and any(server not in on_card for server in on_port):
            blocked = "it holds a port of a server on another GPU"
        seen = f"{foreign.sentence(one)}: {' '.join(one['argv'])}"
        if not hosts:
            cure = "nothing is needed: no selected server wants its GPU or a port of it"
            yield Finding("foreign-server", "note", seen, "any server there", cure)
        elif blocked:
            cure = f"stop it yourself, or leave the server out (--limit); adopt.yml cannot take it over: {blocked}"
            yield Finding("foreign-server", "error", seen, f"its GPU and ports free for {hosts}", cure, where=hosts)
        elif adopting:
            cure = "nothing is needed: this run shows it, and takes it over when that is confirmed"
            yield Finding("foreign-server", "note", seen, "a server to take over", cure, where=hosts)
        else:
            cure = f"take it over with playbooks/adopt.yml --limit {hosts}, or stop it yourself"
            yield Finding("foreign-server", "error", seen, f"its GPU and ports free for {hosts}", cure, where=hosts)


def _unfinished(state: State, servers: Sequence[Wanted]) -> Iterable[Finding]:
    for server in servers:
        was = state["foreign"]["unfinished"].get(server["name"])
        if was and not any(_on(one, server) for one in state["foreign"]["servers"]):
            yield Finding(
                "take-over-unfinished",
                "error",
                f"adopt.yml stopped pid {was['pid']} (of user {was['user']}, started {was['how']}) and did not finish",
                "a take-over that was finished or undone",
                f"run playbooks/adopt.yml --limit {server['host']} again, which goes on from there",
                where=server["host"],
            )


def _memory(state: State, servers: Sequence[Wanted]) -> Iterable[Finding]:
    cards = {card["index"]: card for card in state["gpus"]["gpus"]}
    rows = state["gpus"]["processes"] or []
    known = {pid for one in state["foreign"]["servers"] for pid in one["pids"]}
    foreign_cards = {card["index"] for one in state["foreign"]["servers"] for card in one["gpus"]}
    for server in servers:
        card, index = cards.get(server["index"]), server["index"]
        if card is None:
            continue
        on_card = [row for row in rows if row["uuid"] == card["uuid"]]
        ours = any(foreign.OUR_UNIT.fullmatch(row["unit"] or "") for row in on_card)
        # Without a pid it may be our own server, whose pid this driver gives as the node has it.
        runs = ours or bool(((state["servers"].get(server["name"]) or {}).get("unit") or {}).get("main_pid"))
        others = [
            row
            for row in on_card
            if row["pid"] is not None and row["pid"] not in known and not foreign.OUR_UNIT.fullmatch(row["unit"] or "")
        ]
        for row in (row for row in others if row.get("orphan")):
            yield Finding(
                "gpu-orphan",
                "warning",
                f"{holders.sentence(row)} was left behind on GPU {index} by an earlier server of ours",
                "no process without its server",
                "nothing is needed: it is ended before the server starts",
                where=server["host"],
            )
        for row in (row for row in others if not row.get("orphan")):
            yield Finding(
                "gpu-held",
                "error" if (row["used_mib"] or 0) >= FREE_MIB else "warning",
                f"{holders.sentence(row)} uses GPU {index}",
                f"less than {FREE_MIB:,} MiB of GPU {index} in use by others",
                "end that process yourself, lend the card (drain.yml), or leave the server out (--limit)",
                where=server["host"],
            )
        if not runs and not others and index not in foreign_cards and (card["memory_used_mib"] or 0) >= FREE_MIB:
            yield Finding(
                "gpu-held",
                "error",
                f"{card['memory_used_mib']:,} MiB of GPU {index} are in use by no process that this container shows",
                f"less than {FREE_MIB:,} MiB of GPU {index} in use by others",
                "look on the node (nvidia-smi) and in other containers that have this card, or leave the server out "
                "(--limit)",
                where=server["host"],
            )


def _files(paths: Iterable[str]) -> Iterable[Finding]:
    for path in paths:
        yield Finding(
            "unit-file-foreign",
            "error",
            f"{path} is there and not ours",
            "no file of another hand where our units go, which would be overwritten or would change them",
            "stop and disable what it starts, then move the file away or give it another name",
            where=path,
        )
