"""The planner against what the real engine said: pools of every log, and estimates against measured speeds.

Prints a table, then logs_matched=N/N max_token_error_pct=... max_speed_error_pct=... as the last line. A log matches
when slots and running requests are exact, KV tokens within 0.5 %, and a failing start fails with the engine's words.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "module_utils")]

from sglang_pve.memory import MemoryFlags  # noqa: E402
from sglang_pve.report import table  # noqa: E402

from tests.unit.planning import ENGINE, GEOMETRY, STARTS  # noqa: E402
from tests.unit.test_estimate import SPEEDS, speed  # noqa: E402


def main() -> None:
    rows, errors, matched = [], [], 0
    for start in STARTS:
        seen, flags = start["seen"], MemoryFlags.read(start["flags"], GEOMETRY)
        pools = ENGINE.pools(GEOMETRY, seen["pre"], seen["post"], flags)
        if "fails" in seen:
            matched += pools.problem == seen["fails"]
            rows.append((start["name"], "fails", "fails" if pools.problem else "starts", "-", "-", "-"))
            continue
        error = abs(pools.tokens / seen["tokens"] - 1) * 100
        errors.append(error)
        matched += (pools.slots, pools.running) == (seen["slots"], seen["running"]) and error <= 0.5
        rows.append((start["name"], seen["running"], pools.running, seen["tokens"], pools.tokens, f"{error:.3f}"))
    print(table(("LOG", "RUNNING", "COMPUTED", "KV TOKENS", "COMPUTED", "ERROR %"), rows))
    speeds = [(one, speed(one["flags"], one["running"])) for one in SPEEDS]
    off = [(found / one["tokens_per_s"] - 1) * 100 for one, found in speeds]
    cells = [
        (one["name"], one["running"], f"{one['tokens_per_s']:.0f}", f"{found:.0f}", f"{error:+.1f}")
        for (one, found), error in zip(speeds, off)
    ]
    print(table(("ON AN H200", "RUNNING", "TOKENS/S", "ESTIMATE", "ERROR %"), cells))
    worst = max(map(abs, off))
    print(f"logs_matched={matched}/{len(STARTS)} max_token_error_pct={max(errors):.3f} max_speed_error_pct={worst:.1f}")
    if matched < len(STARTS):
        sys.exit(1)


if __name__ == "__main__":
    main()
