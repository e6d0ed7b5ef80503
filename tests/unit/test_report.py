"""Tables are for people: aligned, plain when piped, and they say what is missing."""

import pytest
from sglang_pve import report
from sglang_pve.findings import Finding

UNIT = {"active": "active", "sub": "running", "main_pid": 1, "since": "2026-12-01T04:59:08+00:00", "restarts": 0}
SELF = {"pid": 2, "uuid": "GPU-1", "used_mib": 94868, "user": "sglang", "command": "python", "own": True}
CARD = {"index": 0, "uuid": "GPU-1", "memory_used_mib": 94868}
NAMES = {"gpu0": "ct200-gpu0", "gpu10": "ct200-gpu10"}


def seen(**change):
    return {
        "parameters": {"host": "10.0.0.2", "port": "30000", "gpu_uuid": "GPU-1"},
        "release": "a",
        "running_release": "a",
        "unit": UNIT,
        "healthy": True,
        "lent": None,
        "gpu": {"uuid": "GPU-1", "used_mib": 94868, "holders": [SELF]},
        "pools": {"max_total_num_tokens": 865586, "max_running_requests": 256},
        **change,
    }


def rows(names=NAMES, verified=(("gpu0", "a"), ("gpu10", "a")), strangers=(), selected=None, **servers):
    state = {
        "foreign": {"servers": list(strangers)},
        "servers": servers,
        "gpus": {"gpus": [CARD], "processes": [{"pid": 7, "uuid": "GPU-1", "used_mib": 94868, "name": "train\n.py"}]},
        "releases": {"a": {"manifest": {"plan": {"profile": "batch"}}, "error": ""}},
        "history": {"line": [dict(verified)] if verified else []},
    }
    return report.fleet_rows(names, state, selected)


def test_a_fleet_is_shown_in_the_order_of_its_cards_with_what_is_missing():
    found = rows(gpu10=seen(), gpu2=seen())
    assert [(row["server"], row["in_inventory"], row["state"]) for row in found] == [
        ("ct200-gpu0", True, "down"),
        ("gpu2", False, "ready"),
        ("ct200-gpu10", True, "ready"),
    ]
    assert (found[0]["release"], found[0]["gpu_mib"], found[2]["gpu_mib"]) == (None, 94868, 94868)
    assert [row["profile"] for row in found] == [None, "batch", "batch"]
    assert [row["server"] for row in rows(selected=["gpu10"], gpu10=seen(), gpu2=seen())] == ["ct200-gpu10"]


def test_states_have_one_word():
    failed = seen(unit={**UNIT, "active": "failed"})
    again = seen(unit={"active": "activating", "sub": "auto-restart"})
    starting = seen(unit={"active": "activating", "sub": "start-post"})
    stopped = seen(unit={"active": "inactive"})
    stopping = seen(unit={"active": "deactivating"})
    # One whose last requests were ended by force has failed for systemd, and is lent all the same.
    lent = [seen(unit={"active": active}, lent=LOAN) for active in ("inactive", "failed")]
    each = (seen(), seen(healthy=False), failed, again, starting, stopping, stopped, *lent)
    states = ["ready", "busy", "failed", "failed", "starting", "stopping", "down", "lent", "lent"]
    assert [report.server_state(one) for one in each] == states


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
            {"gpu0": seen(release_error="release a was altered"), "gpu10": seen()},
            {"gpu0": "a", "gpu10": "a"},
            "degraded",
            ["2 of 2 servers are ready", "ct200-gpu0: release a was altered"],
        ),
        (
            {"gpu0": seen(**STOPPED), "gpu10": seen()},
            {"gpu0": "a", "gpu10": "a"},
            "degraded",
            ["ct200-gpu0 is down"],
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


def test_a_container_that_cannot_be_read_is_shown_and_degrades_the_others():
    gone = report.unreachable_rows(NAMES, ["gpu0"])
    assert report.verdict(gone, ["no route to it"]) == ("down", ["0 of 1 servers are ready", "no route to it"])
    word, said = report.verdict([*rows(gpu0=seen(), gpu10=seen()), *gone], ["no route to it"])
    assert (word, said) == ("degraded", ["2 of 3 servers are ready", "no route to it"])
    assert report.fleet_table(gone).splitlines()[1].split() == ["ct200-gpu0", "0", "-", "-", "unreachable", *"-----"]


def test_what_somebody_wrote_stays_one_line_and_steers_no_terminal():
    loan = {"who": "ada\n", "since": "2026-12-01T05:00:00Z", "reason": 'it\'s\n\033[31m "für" Bob'}
    said = report.verdict(rows(gpu0=seen(), gpu10=seen(**STOPPED, lent=loan)))[1]
    assert said[-1] == 'ct200-gpu10 is lent to ada since 2026-12-01T05:00:00Z: it\'s [31m "für" Bob'


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


STRANGER = {
    "pid": 412,
    "kind": "server",
    "user": "ada",
    "how": "by hand (tmux)",
    "port": 8000,
    "gpus": [{"index": 10, "uuid": "GPU-10"}],
    "argv": ["python3", "-m", "sglang.launch_server", "--api-key", "***"],
    "pids": [412, 413],
    "stopped": False,
}
TRAINER = {**SELF, "pid": 77, "user": "bob", "command": "python train.py", "used_mib": 2000, "own": False}
UNSEEN = {**SELF, "pid": None, "user": "", "command": "", "own": False}


def test_who_else_is_on_a_card_is_said_and_does_no_harm_to_the_verdict():
    gpu = {"uuid": "GPU-1", "used_mib": 96868, "holders": [SELF, TRAINER, UNSEEN]}
    found = rows(gpu0=seen(gpu=gpu), gpu10=seen(), strangers=[STRANGER])
    word, sentences = report.verdict(found)
    assert word == "ready"
    what = "an SGLang server of user ada, started by hand (tmux), on port 8000, GPU 10"
    assert sentences[1:] == [
        "pid 77 (python train.py, of user bob, 2,000 MiB) is on the card of ct200-gpu0",
        f"pid 412 ({what}) is on the card of ct200-gpu10",
    ]


def test_memory_of_an_unseen_process_is_said_where_the_server_itself_does_not_run():
    gpu = {"uuid": "GPU-1", "used_mib": 94868, "holders": [UNSEEN]}
    _, sentences = report.verdict(rows(gpu0=seen(gpu=gpu, unit={"active": "inactive"}), gpu10=seen()))
    assert "a process that this container does not see (94,868 MiB) is on the card of ct200-gpu0" in sentences


def test_what_is_taken_over_is_shown_with_what_takes_its_place():
    server = {"host": "ct200-gpu10", "index": 10}
    to = {"release": "1e14", "parameters": {"host": "10.0.0.2", "port": 30010}}
    text = report.takeovers_text([{"server": server, "was": STRANGER, "to": to}], confirmed=False)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == "ct200-gpu10 10 412 ada by hand (tmux) 8000 10.0.0.2:30010 1e14"
    assert lines[2] == "ct200-gpu10 runs as: python3 -m sglang.launch_server --api-key ***"
    assert lines[3].startswith("Nothing was touched.")
    stopped = report.takeovers_text(
        [{"server": server, "was": {**STRANGER, "stopped": True}, "to": to}], confirmed=True
    )
    assert "  stopped  " in stopped and "Nothing was touched" not in stopped
    assert "nothing was touched" in report.takeovers_text([], confirmed=True)


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
