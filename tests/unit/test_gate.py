"""The gate against real HTTP servers that are well, late, wrong, or broken in one way each."""

import threading
import time

import pytest
from sglang_pve import gate

CHAT = {"choices": [{"message": {"content": "42"}}], "usage": {"completion_tokens": 2}}
INFO = {"max_total_num_tokens": 1000, "max_running_requests": None, "version": "0.5.11"}
EFFECTIVE = {**INFO, "internal_states": [{"effective_max_running_requests_per_dp": 64}]}


def chat(**change):
    return {"/v1/chat/completions": (200, {**CHAT, **change})}


def ask(base):
    return gate.ask(base, "What is 17 + 25?", "42", "m")


def test_a_right_answer_passes(serve):
    assert ask(serve(chat())) == "42"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (chat(choices=[{"message": {"content": "%%%%"}}]), "wrong answer.*%%%%.*expected it to contain '42'"),
        (chat(choices=[]), "not the expected shape"),
        (chat(usage={"completion_tokens": 0}), "no token"),
        ({"/v1/chat/completions": (500, "Internal Server Error")}, "HTTP 500: Internal"),
        ({"/v1/chat/completions": (200, "<html>")}, "not the expected shape"),
    ],
)
def test_a_wrong_answer_is_told_in_its_own_words(serve, answers, words):
    with pytest.raises(gate.GateError, match=words):
        ask(serve(answers))


def test_a_server_that_is_gone_is_told(serve):
    with pytest.raises(gate.GateError, match="a chat completion failed"):
        ask("http://127.0.0.1:9")


def test_an_answer_in_the_reasoning_part_counts(serve):
    assert ask(serve(chat(choices=[{"message": {"content": None, "reasoning_content": "it is 42"}}]))) == "it is 42"


def test_what_came_of_a_limit_counts_and_not_what_was_asked_for(serve):
    pools = gate.read_pools(serve({"/server_info": (200, EFFECTIVE)}))
    assert (pools["max_total_num_tokens"], pools["max_running_requests"]) == (1000, 64)
    gate.compare_pools(pools, {"max_total_num_tokens": 1000, "max_running_requests": 64, "max_mamba_cache_size": None})


def test_pools_that_differ_are_told_with_both(serve):
    pools = gate.read_pools(serve({"/server_info": (200, {**INFO, "max_running_requests": 48})}))
    with pytest.raises(gate.GateError, match="max_running_requests: server 48, plan 64"):
        gate.compare_pools(pools, {"max_total_num_tokens": 1000, "max_running_requests": 64})


@pytest.mark.parametrize("answer", [(503, "starting"), (200, "[]"), (200, "nonsense")])
def test_a_server_info_that_is_none_is_told(serve, answer):
    with pytest.raises(gate.GateError, match="server_info gave HTTP"):
        gate.read_pools(serve({"/server_info": answer}))


def not_ready(base):
    return lambda: "" if gate.healthy(base) else f"{base}/health was not 200"


def test_waiting_ends_when_the_server_is_healthy(serve):
    answers = {"/health": (503, "")}
    base = serve(answers)
    threading.Timer(0.3, lambda: answers.update({"/health": (200, "")})).start()
    gate.wait_until_ready(not_ready(base), lambda: "", time.monotonic() + 30, pause_s=0.05)
    assert gate.healthy(base)


def test_waiting_ends_when_the_unit_is_gone_or_time_is_up(serve):
    base = serve({"/health": (503, "")})
    with pytest.raises(gate.GateError, match="unit is failed"):
        gate.wait_until_ready(not_ready(base), lambda: "unit is failed", time.monotonic() + 30, pause_s=0.01)
    with pytest.raises(gate.GateError, match="was not 200 in time"):
        gate.wait_until_ready(not_ready(base), lambda: "", time.monotonic() - 1, pause_s=0.01)


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ({"active": "activating", "sub": "start-post"}, ""),
        ({"active": "active", "restarts": 3}, ""),
        ({"active": "failed"}, "is failed (result exit-code, exit status 15)"),
        ({"active": "inactive"}, "is inactive (result"),
        # A restart stops first: for a moment the unit is down, with the start still to come.
        ({"active": "inactive", "job": 2990}, ""),
        ({"active": "failed", "job": 2990}, ""),
        ({"active": "activating", "sub": "auto-restart"}, "failed and is restarted by systemd"),
        ({"active": "activating", "sub": "start-post", "restarts": 4}, "failed and is restarted by systemd"),
    ],
)
def test_a_unit_that_ended_is_not_waited_for(unit, words):
    found = gate.gone({"sub": "", "restarts": 3, "result": "exit-code", "exit_status": 15, "job": 0, **unit}, 3)
    assert words in found and bool(found) == bool(words)


def test_a_proxy_of_the_environment_is_not_asked(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert gate.healthy(serve({"/health": (200, "")}))


def said(text, **more):
    return chat(choices=[{"message": {"content": text, **more.pop("message", {})}, **more}])


def logprobs(*values):
    return {"logprobs": {"content": [{"token": "t", "logprob": value} for value in values]}}


def test_coherent_text_with_numbers_passes(serve):
    gate.coherent(serve(said("The sea is wide. " + "".join(map(str, range(60))), **logprobs(-0.5, 0))), "m")


@pytest.mark.parametrize("text", ["!" * 200, "So it is. " + "the sea " * 30, "Well. " + "abcdefghijklmnopqrstuvwx" * 6])
def test_endless_repetition_is_told(serve, text):
    with pytest.raises(gate.GateError, match="repeats itself without end"):
        gate.coherent(serve(said(text)), "m")


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf"), "0"])
def test_log_probability_that_is_no_number_is_told(serve, value):
    with pytest.raises(gate.GateError, match="1 tokens have a log probability that is no number"):
        gate.coherent(serve(said("The sea.", **logprobs(-0.5, value))), "m")


def call(name, arguments):
    return said(None, message={"tool_calls": [{"function": {"name": name, "arguments": arguments}}]})


def test_tool_call_passes(serve):
    gate.call_tool(serve(call("get_weather", '{"city": "Paris, France"}')), "m")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (said("<tool_call>get_weather</tool_call>"), "--tool-call-parser does not fit"),
        (call("get_weather", "{city"), "no call of get_weather with a city"),
        (call("get_time", '{"city": "Paris"}'), "expected get_weather with the city Paris"),
    ],
)
def test_tool_call_that_is_none_is_told(serve, answers, words):
    with pytest.raises(gate.GateError, match=words):
        gate.call_tool(serve(answers), "m")


def test_stage_is_the_last_that_the_engine_named():
    lines = ["Load weight begin. avail mem=93 GB", "noise", "Capture cuda graph begin. This can take up", "noise"]
    assert gate.stage(lines) == "capturing graphs"
    assert gate.stage([]) == "starting"


def test_patience_ends_a_wait_that_goes_on():
    now = time.monotonic()
    assert not gate.wait_until_ready(lambda: "late", lambda: "", now + 60, pause_s=0, until=now)
