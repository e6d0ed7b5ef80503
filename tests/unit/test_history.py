"""The history decides what a rollback goes back to."""

import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_pve import history

GPUS = ("gpu0", "gpu1")


def verified(release, kind="deploy", **servers):
    return {"event": "verified", "kind": kind, "servers": {**dict.fromkeys(GPUS, release), **servers}}


def at(release, **servers):
    return {**dict.fromkeys(GPUS, release), **servers}


def test_a_rollback_goes_to_the_verified_release_before():
    assert history.rollback_target([verified("a"), verified("b")], at("b")) == at("a")


def test_twice_in_a_row_goes_further_back_then_refuses():
    entries = [verified("a"), verified("b"), verified("c")]
    assert history.rollback_target(entries, at("c")) == at("b")
    entries.append(verified("b", "rollback"))
    assert history.rollback_target(entries, at("b")) == at("a")
    entries.append(verified("a", "rollback"))
    with pytest.raises(history.HistoryError, match="nothing to go back to"):
        history.rollback_target(entries, at("a"))


def test_a_release_left_by_a_rollback_is_not_come_back_to():
    entries = [verified("a"), verified("b"), verified("a", "rollback"), verified("c")]
    assert history.rollback_target(entries, at("c")) == at("a")


def test_a_half_finished_deployment_goes_back_to_the_last_verified_state():
    entries = [verified("a"), verified("b"), {"event": "activated", "server": "gpu0", "release": "c"}]
    assert history.rollback_target(entries, at("b", gpu0="c")) == at("b")


def test_a_release_that_failed_is_no_target():
    entries = [verified("a"), {"event": "failed", "server": "gpu0", "release": "bad"}, verified("b")]
    assert history.rollback_target(entries, at("b")) == at("a")


def test_a_server_deployed_alone_goes_back_alone():
    entries = [verified("a"), verified("b"), verified("b", gpu1="x")]
    assert history.rollback_target(entries, at("b", gpu1="x")) == at("b")


def test_after_a_rollback_of_one_server_the_fleet_follows_it_and_never_bounces():
    entries = [verified("a"), verified("b")]
    entries.append(history.verified_entry(entries, "rollback", {"gpu1": "a"}, GPUS))
    assert entries[-1]["servers"] == at("a")
    assert history.rollback_target(entries, at("b", gpu1="a")) == at("a")


def test_a_release_deployed_twice_is_found_where_it_was_last():
    entries = [verified("a"), verified("b"), verified("a"), verified("c"), verified("a", "rollback")]
    assert history.rollback_target(entries, at("a")) == at("b")


def test_a_server_that_was_not_selected_keeps_what_it_was_verified_with():
    entries = [verified("a"), {"event": "activated", "server": "gpu1", "release": "half"}]
    entry = history.verified_entry(entries, "deploy", {"gpu0": "b"}, ("gpu0", "gpu1"))
    assert entry == {"event": "verified", "kind": "deploy", "servers": {"gpu0": "b", "gpu1": "a"}}
    assert history.verified_releases([*entries, entry]) == {"a", "b"}


def test_a_rollback_to_a_release_that_no_state_held_is_a_state_of_its_own():
    entries = [verified("a"), verified("b", gpu1="x")]
    entry = history.verified_entry(entries, "rollback", at("x"), GPUS)
    assert history.line([*entries, entry])[-1] == at("x")


def test_a_server_taken_out_leaves_the_verified_state():
    entry = history.verified_entry([verified("a")], "deploy", {"gpu0": "b"}, ("gpu0",))
    assert entry["servers"] == {"gpu0": "b"}


def test_a_server_added_later_stays_where_it_is():
    entries = [verified("a"), verified("b", gpu2="b")]
    assert history.rollback_target(entries, at("b", gpu2="b")) == at("a")


def test_no_history_is_refused_with_what_is_there():
    with pytest.raises(history.HistoryError, match="gpu0=none"):
        history.rollback_target([], {"gpu0": None})


def test_a_line_cut_short_by_a_crash_is_counted_and_swallows_nothing(tmp_path: Path):
    path = tmp_path / "history.jsonl"
    history.append(path, [verified("a")])
    with path.open("a") as handle:
        handle.write('{"event": "verif')
    history.append(path, [verified("b")])
    entries, broken = history.read(path)
    assert [entry["servers"]["gpu0"] for entry in entries] == ["a", "b"]
    assert broken == 1


def test_notes_say_what_cannot_be_read_and_when_the_clock_went_back():
    entries = [{"time": "2026-12-01T05:00:00Z"}, {}, {"time": "2026-12-01T06:00:00Z"}]
    assert history.notes(entries[:2], 0, "2026-12-01T05:00:00Z") == []
    assert "2 lines of the history cannot be read" in history.notes([], 2, history.timestamp())[0]
    said = "knows 2026-12-01T06:00:00Z, and after it 2026-12-01T05:30:00Z"
    assert said in history.notes(entries, 0, "2026-12-01T05:30:00Z")[0]
    entries.append({"time": "2026-12-01T05:30:00Z"})
    assert said in history.notes(entries, 0, "2026-12-02T05:00:00Z")[0]


def test_a_missing_history_is_empty(tmp_path: Path):
    assert history.read(tmp_path / "none") == ([], 0)


def _append_many(path, name):
    for number in range(50):
        history.append(path, [{"event": "activated", "server": name, "release": str(number)}])


def test_two_writers_lose_nothing(tmp_path: Path):
    path = tmp_path / "deep" / "history.jsonl"
    path.parent.mkdir()
    writers = [multiprocessing.Process(target=_append_many, args=(path, name)) for name in GPUS]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    entries, broken = history.read(path)
    assert (len(entries), broken) == (100, 0)
    assert all(json.dumps(entry) for entry in entries)


@given(st.lists(st.one_of(st.sampled_from("abcd"), st.just("rollback")), max_size=20))
def test_rollbacks_never_bounce(steps):
    """Whatever was deployed and rolled back: going back again and again visits every state once and then refuses."""
    entries, present = [], None
    for step in steps:
        if step != "rollback":
            present = step
            entries.append(verified(step))
        elif present is not None:
            try:
                present = history.rollback_target(entries, at(present))["gpu0"]
            except history.HistoryError:
                continue
            entries.append(verified(present, "rollback"))
    depth = len(history.line(entries))
    for _ in range(depth):
        try:
            present = history.rollback_target(entries, at(present))["gpu0"]
        except history.HistoryError:
            break
        entries.append(verified(present, "rollback"))
    if present is not None:
        with pytest.raises(history.HistoryError):
            history.rollback_target(entries, at(present))


def test_a_waiver_is_kept_once_for_each_release_and_reason():
    waiver = {"rule": "a-rule", "reason": "why", "releases": ["r1"]}
    (entry,) = history.new_waivers([], [waiver])
    assert entry == {"event": "waived", **waiver}
    known = [{"schema": 1, "time": "2026-12-01T05:00:00Z", **entry}]
    assert history.new_waivers(known, [waiver]) == []
    others = [{**waiver, "releases": ["r2"]}, {**waiver, "reason": "another"}]
    assert [one["event"] for one in history.new_waivers(known, others)] == ["waived", "waived"]
    assert history.waivers([*known, {"event": "verified", "servers": {}}]) == {"r1": {"a-rule": "why"}}


def going(**servers):
    return {"event": "rollback", "servers": servers}


def activated(server, release):
    return {"event": "activated", "server": server, "release": release}


@pytest.mark.parametrize(
    ("entries", "target"),
    [
        ([], None),
        ([going(gpu0="a"), activated("gpu0", "a")], {"gpu0": "a"}),
        ([going(gpu0="a"), verified("a", "rollback")], None),
        ([going(gpu0="a"), activated("gpu0", "c")], None),
        ([going(gpu0="a"), activated("gpu1", "c")], {"gpu0": "a"}),
        ([going(gpu0="a"), going(gpu0="b")], {"gpu0": "b"}),
    ],
)
def test_a_rollback_that_was_stopped_is_known_until_it_ended_or_a_deployment_began(entries, target):
    assert history.unfinished_rollback([verified("a"), verified("b"), *entries]) == target
