"""Make the kept table and JSON of one GPU run from its result files.

What stands under "## What follows" in an existing OUT.md is kept: it is written by hand.

usage: report.py RESULTS OUT
RESULTS: what machine.py wrote, of one or more calls, in one folder. Writes OUT.md and OUT.json; prints last
batch_over_start_flags=... batch_reduced_over_start_flags=... interactive_over_batch_at_8=...
reference_bound_fraction=..., in one line.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import yaml

# R = 256, bfloat16 state, 512 in, 256 out: 131,072 tokens of prefill at 790 TFLOP/s take 8.9 s, 256 steps at 4.3 TB/s
# (weights 53.8 GB, states read and written 38.7 GB, KV 10.9 GB a step) 6.1 s. Both rates were measured on an H200.
BOUND_TOKENS_PER_S = 4370
NOTES = "## What follows"
HEADINGS = ("case", "load", "running", "slots", "KV tokens", "tokens/s", "of bound", "mean latency s", "requests")
HEADINGS += ("mean output", "free when ready", "least free", "planned least", "start s")
MEANING = """\
Measured with `tests/gpu/` on {gpu} ({gpu_gib} GiB), {date}: SGLang {engine}, stack {stack} ({stack_id}),
PyTorch {torch} of that machine, driver {driver}, Python {python}; one run each. A ballast leaves {leave_gib} GiB
free, so that the card stands in for one with {planned_for[memory_total_mib]} MiB, for which the plans were made; **its
speed remains that card's own**.

* Weights are random (`--load-format dummy`): pools, memory and speed are real, answers are noise. The gate checks that
  an answer comes, not what it says. With MTP the engine simulates acceptance (`SGLANG_SIMULATE_ACC_LEN=3.3`).
* Every server was started by the product's own start script. The load is a closed loop of 512 requests in flight (384
  in the first runs and with lengths that vary, 8 where it says so) over uncapped connections, 512 random tokens in,
  256 out. Before the measured window comes a warm-up as long as one running limit, or 8 requests. Latency is a
  client's, waiting in the queue included.
* Memory in GiB. *Least free* is the least of the card's free memory during a load, read every 20 ms; *planned least* is
  what the plan says must be left there, its margin of 1 GiB and rounding included.
* *Of bound*: tokens/s against {bound:,}, a fixed bound of this card for 256 running with bfloat16 state.
"""


def planned_least(memory: dict[str, Any]) -> float | None:
    """GiB that a plan leaves free while a chunk is filled and all requests run; None for a bare command line."""
    if not memory:
        return None
    needs = sum(memory["reserve"][part] for part in ("padding", "workspace", "graphs", "context", "serving"))
    return round(memory["outside_pools"] + memory["kv_held_back"] - needs, 2)


def cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def cut(ratio: float) -> str:
    """Three digits, cut and not rounded: a bound that is nearly met is not met."""
    return f"{math.floor(ratio * 1000) / 1000:.3f}"


def rows(results: list[dict[str, Any]]) -> list[list[str]]:
    found = []
    sizes = ("max_running_requests", "max_mamba_cache_size", "max_total_num_tokens")
    for result in results:
        pools, ready = result.get("pools", {}), result.get("free_when_ready_gib")
        for load in result["loads"] or [{"load": "did not start"}]:
            speed = load.get("tokens_per_s")
            full = str(load["load"]).startswith("full")
            found.append(
                [result["case"], load["load"]]
                + [cell(pools.get(key)) for key in sizes]
                + [cell(speed), cut(speed / BOUND_TOKENS_PER_S) if full and speed else "-"]
                + [cell(load.get("mean_latency_s")), f"{load.get('measured', 0)} of {load.get('asked', 0)}"]
                + [cell(load.get("mean_output")), cell(ready and round(ready, 2)), cell(load.get("least_free_gib"))]
                + [cell(planned_least(result["plan"]["memory"])), cell(result.get("start_s"))]
            )
    return found


def differences(results: list[dict[str, Any]]) -> list[str]:
    """One line for each case's pools against its plan, and each problem."""
    lines = []
    for result in results:
        planned, reported = result["plan"]["pools"], result.get("pools", {})
        if planned and all(reported.get(key) == value for key, value in planned.items()):
            lines.append(f"* {result['case']}: the server reports exactly the planned pools.")
        elif planned:
            lines.append(f"* {result['case']}: planned {planned}, reported {reported}.")
        lines += [f"* {result['case']}: **{name}**: {text}" for name, text in result.get("problems", {}).items()]
        for load in result["loads"]:
            if load.get("errors"):
                lines.append(f"* {result['case']}, {load['load']}: **failed**, first error {load['errors'][0]}")
    return lines


def last_line(results: list[dict[str, Any]]) -> str:
    speeds = {(r["case"], load["load"]): load.get("tokens_per_s") for r in results for load in r["loads"]}

    def ratio(over: tuple[str, str], under: tuple[str, str] | float) -> str:
        top, bottom = speeds.get(over), under if isinstance(under, (int, float)) else speeds.get(under)
        return cut(top / bottom) if top and bottom else "not-measured"

    start, reduced = ("start-flags", "full"), ("batch-reduced", "full")
    values = {
        "batch_over_start_flags": ratio(("batch", "full"), start),
        "batch_reduced_over_start_flags": ratio(reduced, start),
        "interactive_over_batch_at_8": ratio(("interactive", "at-8-long"), ("batch", "at-8")),
        "reference_bound_fraction": ratio(reduced, BOUND_TOKENS_PER_S),
    }
    return " ".join(f"{name}={value}" for name, value in values.items())


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit((__doc__ or "").strip())
    folder, page = Path(sys.argv[1]), Path(f"{sys.argv[2]}.md")
    machine = json.loads((folder / "machine.json").read_text())
    cases = yaml.safe_load((Path(__file__).parent / "cases.yml").read_text())["cases"]
    files = [folder / f"{case['name']}.json" for case in cases]
    results = [json.loads(path.read_text()) for path in files if path.exists()]
    kept = page.read_text() if page.exists() else ""
    notes = kept[kept.index(NOTES) : kept.rindex("```text")] if NOTES in kept else NOTES
    table = ["| " + " | ".join(row) + " |" for row in [list(HEADINGS), ["---"] * len(HEADINGS), *rows(results)]]
    line = last_line(results)
    title = f"# SGLang {machine['engine']} on {machine['gpu']}, {machine['date']}"
    parts = [title, MEANING.format(**machine, bound=BOUND_TOKENS_PER_S), "\n".join(table), "## Against the plans"]
    parts += ["\n".join(differences(results)), notes, f"```text\n{line}\n```"]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(part.strip() for part in parts) + "\n")
    whole = {"machine": machine, "bound_tokens_per_s": BOUND_TOKENS_PER_S, "summary": line, "cases": results}
    Path(f"{sys.argv[2]}.json").write_text(json.dumps(whole, indent=1) + "\n")
    print("\n".join(table), line, sep="\n")


if __name__ == "__main__":
    main()
