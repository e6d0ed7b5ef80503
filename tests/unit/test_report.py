"""Tables are for people: aligned, plain when piped, and they say what is missing."""

from sglang_pve import report
from sglang_pve.findings import Finding

UNIT = {"active": "active", "sub": "running", "main_pid": 1}


def seen(**change):
    return {
        "parameters": {"host": "10.0.0.2", "port": "30000"},
        "release": "a",
        "running_release": "a",
        "unit": UNIT,
        "healthy": True,
        "pools": {"max_total_num_tokens": 865586, "max_running_requests": 256},
        **change,
    }


def rows(**servers):
    names = {"gpu0": "ct200-gpu0", "gpu10": "ct200-gpu10"}
    return {row["gpu"]: row for row in report.fleet_rows(names, {"servers": servers})}


def test_a_fleet_is_shown_in_the_order_of_its_cards_with_what_is_missing():
    found = rows(gpu10=seen(), gpu2=seen())
    assert [row["server"] for row in found.values()] == ["ct200-gpu0", "gpu2 (not in the inventory)", "ct200-gpu10"]
    assert (found[0]["state"], found[0]["release"], found[10]["state"]) == ("down", None, "ready")


def test_states_have_one_word():
    failed = seen(unit={**UNIT, "active": "failed"})
    again = seen(unit={"active": "activating", "sub": "auto-restart"})
    starting = seen(unit={"active": "activating", "sub": "start-post"})
    stopped = seen(unit={"active": "inactive"})
    states = [report.server_state(one) for one in (seen(), seen(healthy=False), failed, again, starting, stopped)]
    assert states == ["ready", "busy", "failed", "failed", "starting", "down"]


def test_a_switch_that_was_killed_shows_both_releases():
    assert rows(gpu0=seen(release="b"))[0]["release"] == "a (link b)"


def test_the_table_is_aligned_and_plain():
    lines = report.fleet_table(list(rows(gpu0=seen()).values())).splitlines()
    assert lines[0].split() == [
        "SERVER",
        "GPU",
        "LISTEN",
        "PORT",
        "RELEASE",
        "STATE",
        "RUNNING",
        "LIMIT",
        "KV",
        "TOKENS",
    ]
    assert lines[1].split() == ["ct200-gpu0", "0", "10.0.0.2", "30000", "a", "ready", "256", "865,586"]
    assert lines[2].split() == ["ct200-gpu10", "10", "-", "-", "-", "down", "-", "-"]
    assert lines[0].index("STATE") == lines[1].index("ready") == lines[2].index("down")
    assert "\033" not in "".join(lines)
    assert [line for line in lines if line != line.rstrip()] == []


def test_colour_does_not_move_a_column():
    plain = report.table(["A", "B"], [["ready", "1"], ["down", "22"]])
    painted = report.table(["A", "B"], [["ready", "1"], ["down", "22"]], colour=True)
    assert painted.replace("\033[32m", "").replace("\033[31m", "").replace("\033[0m", "") == plain
    assert "\033[32m" in painted


def test_findings_come_worst_first_with_what_to_do():
    text = report.findings_table([Finding("n", "note", "a", "b", "c"), Finding("e", "error", "x", "y", "z", "gpu0")])
    assert text.splitlines() == [
        "ERROR e (gpu0)",
        "  seen      x",
        "  expected  y",
        "  do        z",
        "NOTE n",
        "  seen      a",
        "  expected  b",
        "  do        c",
    ]
