"""What tune.yml measured: which plan of a ladder was the fastest for one card, checkpoint, stack and workload."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .release import canonical
from .report import table

HEADER = ("PLAN", "RELEASE", "TOKENS/S", "ESTIMATE", "ERROR %", "LATENCY S", "REQUESTS")


def key(card: str, checkpoint: str, stack: str, work: Mapping[str, Any]) -> dict[str, str]:
    """What a measurement is good for. ``checkpoint``: its digest; ``stack``: its id; ``work``: whatever else decides
    which plans there are (workload, profile, flags, ...), of which a hash is kept."""
    return {"card": card, "checkpoint": checkpoint, "stack": stack, "work": _hash(work)}


def fingerprint(plan: Mapping[str, Any]) -> str:
    """Names what a plan starts: another command line or environment is another plan, whatever it is called."""
    return _hash([plan["argv"], plan["env"]])


def _hash(content: Any) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:12]


def latest(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The newest ``tuned`` entry of the history for each key."""
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["event"] == "tuned" and isinstance(entry.get("key"), dict):
            found[canonical(entry["key"])] = dict(entry)
    return list(found.values())


def unfinished(entries: Iterable[Mapping[str, Any]], present: Mapping[str, str | None]) -> dict[str, str]:
    """Servers whose tuning has not put back what was there: server -> that release.

    ``present``: server -> the release that its link names. A run that was killed just after it had put a server back
    has not written so.
    """
    found: dict[str, str] = {}
    for entry in entries:
        server = str(entry.get("server"))
        if entry["event"] == "tuning":
            found[server] = str(entry.get("release"))
        elif entry["event"] in ("activated", "retired"):
            found.pop(server, None)
    return {server: release for server, release in found.items() if present.get(server, release) != release}


def sentences(tuning: Mapping[str, str]) -> list[str]:
    """What a person should know of servers that are being tuned, or that a killed run left so."""
    return [
        f"{server} is being tuned and does not serve what it did: release {release}. If no tune.yml is at work any "
        "more, playbooks/start.yml puts it back, and so do site.yml and another tune.yml"
        for server, release in sorted(tuning.items())
    ]


def prefer(
    ladder: Sequence[dict[str, Any]], tuned: Iterable[Mapping[str, Any]], own: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The ladder from the plan on that was the fastest under key ``own``; the whole one where none was measured.

    Each plan of ``ladder`` has its ``hash`` (fingerprint). A reason in the first one says why it is first, also when
    the plan that was the fastest is not in the ladder any more.
    """
    note = next((entry for entry in tuned if entry["key"] == own), None)
    if note is None:
        return list(ladder)
    at = [index for index, plan in enumerate(ladder) if plan["hash"] == note["plan_hash"]]
    measured = f"tune.yml measured {note['tokens_per_s']:,.0f} tokens/s with {note['plan']} on {note['time'][:10]}"
    if at:
        rest, said = list(ladder[at[0] :]), f"{measured}, the most of {len(note['trials'])} plans, so it goes first."
    else:
        rest, said = list(ladder), f"{measured}, which is not in this ladder any more: run it again."
    first = {**rest[0], "differs": "", "reasons": [*rest[0]["reasons"], said]}
    return [first, *rest[1:]]


def winner(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The fastest of the trials that passed; the earlier one of equals, None where none did."""
    passed = [trial for trial in trials if trial.get("load")]
    return max(passed, key=lambda trial: float(trial["load"]["output_tokens_per_s"]), default=None)


def text(server: str, trials: Sequence[Mapping[str, Any]]) -> str:
    """The table of trials, then why some failed, then the fastest.

    A trial: plan (batch/2), release, estimate (tokens/s or None), and after it ran load (as load.measure) or failed.
    """
    lines = [server, table(HEADER, [_row(trial) for trial in trials])]
    lines += [f"{trial['plan']} failed: {trial['failed']}" for trial in trials if trial.get("failed")]
    best = winner(trials)
    if best:
        lines.append(f"{best['plan']} is the fastest.")
    return "\n".join(lines)


def _row(trial: Mapping[str, Any]) -> tuple[str, ...]:
    load, estimate = trial.get("load"), trial.get("estimate")
    shown = "-" if estimate is None else f"{estimate:,.0f}"
    if not load:
        return (trial["plan"], trial["release"], "failed" if trial.get("failed") else "-", shown, "-", "-", "-")
    speed = float(load["output_tokens_per_s"])
    error = "-" if estimate is None or not speed else f"{(estimate / speed - 1) * 100:+.1f}"
    latency, requests = f"{load['mean_latency_s']:.2f}", f"{load['requests']:,}"
    return (trial["plan"], trial["release"], f"{speed:,.1f}", shown, error, latency, requests)
