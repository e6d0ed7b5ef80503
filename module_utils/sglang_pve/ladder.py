"""A ladder: the plans of one profile in the order in which a canary tries them, each with fewer assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .plan import resolve

STEP_KEYS = {"differs", "flags", "mtp", "margin_gib", "profile"}


def climb(
    profile: Mapping[str, Any], profiles: Mapping[str, Mapping[str, Any]], **arguments: Any
) -> list[dict[str, Any]]:
    """The plan of ``profile`` and those that its ``ladder`` leads to; ``arguments`` are those of plan.resolve.

    A step changes the profile as it stands after the steps before it, or goes on with another one of ``profiles``.
    What the inventory sets wins over every step, so a step that changes nothing then, or gives no plan, is left out.
    Each plan has ``id`` (batch/2) and ``differs`` (how it differs from the one before; empty for the first). The first
    is there also when it is none: its findings say why.
    """
    own = {key: value for key, value in profile.items() if key != "ladder"}
    plans = [{**resolve(profile=own, **arguments), "id": f"{own.get('id', '')}/1", "differs": ""}]
    for step in profile.get("ladder") or []:
        own = _stepped(own, step, profiles)
        plan = resolve(profile=own, **arguments)
        if plan["argv"] and all(plan["argv"] != other["argv"] for other in plans):
            plans.append({**plan, "id": f"{profile['id']}/{len(plans) + 1}", "differs": step["differs"]})
    return plans


def _stepped(
    own: Mapping[str, Any], step: Mapping[str, Any], profiles: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The profile after one step. Raises ValueError for a step that says what no step may."""
    odd = set(step) - STEP_KEYS
    if odd or "differs" not in step:
        raise ValueError(f"profile {own.get('id')}: a step of its ladder has {', '.join(sorted(odd)) or 'no differs'}")
    if "profile" in step:
        own = {key: value for key, value in profiles[step["profile"]].items() if key != "ladder"}
    changed = {key: step[key] for key in ("mtp", "margin_gib") if key in step}
    return {**own, **changed, "flags": {**own["flags"], **(step.get("flags") or {})}}
