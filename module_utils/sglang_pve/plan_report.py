"""Ladders as a person reads them: each plan's sizes and estimate, how it differs, and the reasons of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .report import paint, table

HEADER = ("PLAN", "RUNNING", "ADMITTED", "SLOTS", "KV TOKENS", "TOKENS/S", "FREE GIB")


def ladder_text(name: str, ladder: Sequence[Mapping[str, Any]], colour: bool = False) -> str:
    """The ladder for ``name`` (a card type and who has it). ``ladder`` as sglang_plan returns it."""
    rows = [_row(plan) for plan in ladder]
    lines = [name, table(HEADER, rows)]
    lines += [f"{plan['id']}: {plan['differs']}" for plan in ladder if plan["differs"]]
    first = ladder[0]
    if first["argv"]:
        lines.append(f"{first['id']} is started with: {' '.join(first['argv'])}")
    lines += [f"  {reason}" for reason in first["reasons"]]
    if first.get("estimate"):
        lines.append(f"  {first['estimate']['basis']}")
    for finding in first["findings"]:
        where = f" {finding['where']}" if finding["where"] else ""
        said = f"{finding['seen']}; expected {finding['expected']}. {finding['cure']}"
        lines.append(f"{paint(finding['level'].upper(), finding['level'], colour)} {finding['id']}{where}: {said}")
    return "\n".join(lines)


def _row(plan: Mapping[str, Any]) -> tuple[str, ...]:
    pools, estimate = plan.get("pools") or {}, plan.get("estimate") or {}

    def number(value: Any) -> str:
        return "-" if value is None else f"{value:,.0f}"

    left = (plan.get("memory") or {}).get("outside_pools")
    return (
        plan["id"],
        number(pools.get("max_running_requests")),
        number(estimate.get("requests")),
        number(pools.get("max_mamba_cache_size")),
        number(pools.get("max_total_num_tokens")),
        number(estimate.get("tokens_per_s")),
        "-" if left is None else f"{left:.2f}",
    )
