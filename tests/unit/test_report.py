"""Tables are for people: aligned, plain when piped, and they say what is missing."""

import pytest
from sglang_pve import report
from sglang_pve.findings import Finding

UNIT = {"active": "active", "sub": "running", "main_pid": 1, "since": "2026-12-01T04:59:08+00:00", "restarts": 0}
NAMES = {"gpu0": "ct200-gpu0", "gpu10": "ct200-gpu10"}


def seen(**change):
    return {
        "parameters": {"host": "10.0.0.2", "port": "30000", "gpu_uuid": "GPU-1"},
        "release": "a",
        "running_release": "a",
        "unit": UNIT,
        "healthy": True,
        "lent": None,
        "pools": {"max_total_num_tokens": 865586, "max_running_requests": 256},
        **change,
    }


def rows(names=NAMES, verified=(("gpu0", "a"), ("gpu10", "a")), **servers):
    state = {
        "servers": servers,
        "gpus": {"gpus": [{"uuid": "GPU-1", "memory_used_mib": 94868}]},
        "history": {"line": [dict(verified)] if verified else []},
    }
    return report.fleet_rows(names, state)


def test_a_fleet_is_shown_in_the_order_of_its_cards_with_what_is_missing():
    found = rows(gpu10=seen(), gpu2=seen())
    assert [(row["server"], row["in_inventory"], row["state"]) for row in found] == [
        ("ct200-gpu0", True, "down"),
        ("gpu2", False, "ready"),
        ("ct200-gpu10", True, "ready"),
    ]
    assert (found[0]["release"], found[0]["gpu_mib"], found[2]["gpu_mib"]) == (None, None, 94868)


def test_states_have_one_word():
    failed = seen(unit={**UNIT, "active": "failed"})
    again = seen(unit={"active": "activating", "sub": "auto-restart"})
    starting = seen(unit={"active": "activating", "sub": "start-post"})
    stopped = seen(unit={"active": "inactive"})
    lent = seen(unit={"active": "inactive"}, lent={"who": "ada", "since": "", "reason": ""})
    states = [report.server_state(one) for one in (seen(), seen(healthy=False), failed, again, starting, stopped, lent)]
    assert states == ["ready", "busy", "failed", "failed", "starting", "down", "lent"]


LOAN = {"who": "ada", "since": "2026-12-01T05:00:00Z", "reason": "training"}
STOPPED = {"unit": {"active": "inactive"}, "healthy": False, "running_release": None}


@pytest.mark.parametrize(
    ("servers", "verified", "word", "said"),
    [
        ({"gpu0": seen(), "gpu10": seen()}, {"gpu0": "a", "gpu10": "a"}, "ready", []),
        ({"gpu0": seen()}, {"gpu0": "a"}, "degraded", ["ct200-gpu10 is down"]),
        ({"gpu0": seen(), "gpu10": seen(**STOPPED)}, {"gpu0": "a", "gpu10": "a"}, "degraded", ["ct200-gpu10 is down"]),
        ({"gpu0": seen(**STOPPED), "gpu10": seen(**STOPPED)}, {"gpu0": "a", "gpu10": "a"}, "down", ["0 of 2"]),
        ({}, {}, "down", ["ct200-gpu0 is down"]),
        (
            {"gpu0": seen(release="b", running_release="b"), "gpu10": seen()},
            {"gpu0": "a", "gpu10": "a"},
            "degraded",
            ["ct200-gpu0 runs b, last verified was a: a deployment did not finish"],
        ),
        (
            {"gpu0": seen(release="b"), "gpu10": seen()},
            {"gpu0": "a", "gpu10": "a"},
            "degraded",
            ["ct200-gpu0 runs a, its link names b: a switch was cut short"],
        ),
        (
            {"gpu0": seen(), "gpu10": seen(), "gpu2": seen()},
            {"gpu0": "a", "gpu10": "a"},
            "degraded",
            ["gpu2 is not in the inventory"],
        ),
        (
            {"gpu0": seen(), "gpu10": seen(**STOPPED, lent=LOAN)},
            {"gpu0": "a", "gpu10": "a"},
            "ready",
            ["1 of 1", "ct200-gpu10 is lent to ada since 2026-12-01T05:00:00Z: training"],
        ),
    ],
)
def test_a_fleet_has_one_verdict_and_says_why(servers, verified, word, said):
    found, sentences = report.verdict(rows(verified=verified.items(), **servers))
    assert found == word
    assert [text for text in said if text not in "; ".join(sentences)] == []


def test_the_table_is_aligned_and_plain():
    lines = report.fleet_table(rows(gpu0=seen())).splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert words[1] == "ct200-gpu0 0 10.0.0.2:30000 a ready 2026-12-01 04:59:08 0 94,868 256 865,586"
    assert words[2] == "ct200-gpu10 10 - - down - - - - -"
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


def test_findings_are_shown_worst_first_and_what_was_not_checked_by_the_fact_that_is_missing():
    def finding(id, level, seen="seen", **more):
        return Finding(id, level, seen, "expected", "do it", **more)

    shown = report.findings_table(
        [
            finding("n", "note"),
            finding("x", "not checked", "not known: a"),
            finding("w", "warning", where="ct-gpu0"),
            finding("y", "not checked", "not known: a"),
            finding("z", "not checked", "not known: b"),
            finding("e", "error"),
        ]
    )
    paragraph = "  seen      seen\n  expected  expected\n  do        do it"
    assert shown == "\n".join(
        [
            f"ERROR e\n{paragraph}",
            f"WARNING w (ct-gpu0)\n{paragraph}",
            "NOT CHECKED 3\n  not known: a: x, y\n  not known: b: z\n  do        do it",
            f"NOTE n\n{paragraph}",
        ]
    )
    waived = report.waived_lines([(finding("e", "error"), "we know")])
    assert waived == "WAIVED error e\n  seen      seen\n  reason    we know"
    assert report.preflight_verdict([finding("e", "error"), finding("x", "not checked")], 1) == (
        "no",
        "1 error, 0 warnings, 1 not checked, 0 notes, 1 waived",
    )
    assert report.preflight_verdict([finding("w", "warning")], 0)[0] == "go"
