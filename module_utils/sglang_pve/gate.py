"""Ready means answered: a server passes when its process lives, it is healthy, it answers a known question, and the
pools it reports are those that were planned."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any

POOLS = ("max_total_num_tokens", "max_running_requests")

LOOP_CHARS = 96
# Lines of SGLang 0.5.11's journal in the order of a start, and what it does from there on.
STAGES = (
    ("waits for the first server after this boot", "waiting for the first server after this boot"),
    ("Init torch distributed begin", "setting the card up"),
    ("Load weight begin", "loading weights"),
    ("Load weight end", "allocating pools"),
    ("Memory pool end", "preparing kernels"),
    ("Capture cuda graph begin", "capturing graphs"),
    ("Capture draft", "capturing graphs of the head"),
    ("Application startup complete", "warming up"),
    ("The server is fired up", "answering its first question"),
)


class GateError(Exception):
    """The server did not pass; the message says what was seen and what was expected."""


def fetch(url: str, body: Mapping[str, Any] | None = None, timeout_s: float = 30) -> tuple[int, Any]:
    """GET (or POST ``body`` as JSON) and return status and JSON, or the text where it is none."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    # Proxies of the environment must not stand between a container and its own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            status, text = answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode(errors="replace")
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def healthy(base: str, timeout_s: float = 25) -> bool:
    """True when /health answers 200. It runs a generation, for which the engine itself waits up to 20 s."""
    try:
        return fetch(f"{base}/health", timeout_s=timeout_s)[0] == 200
    except OSError:
        return False


def gone(unit: Mapping[str, Any], restarts: int) -> str:
    """Why there is nothing to wait for, of a unit's state (host.unit_states) and how often it had been restarted when
    the wait began; empty while there is."""
    ended = f"(result {unit.get('result')}, exit status {unit.get('exit_status')})"
    # Between the stop and the start of a restart it is down, and more is to come.
    if unit.get("active") in ("failed", "inactive") and not unit.get("job"):
        return f"is {unit.get('active')} {ended}"
    if unit.get("sub") == "auto-restart" or (unit.get("restarts") or 0) > restarts:
        return f"failed and is restarted by systemd {ended}"
    return ""


def wait_until_ready(
    not_ready: Callable[[], str],
    gone: Callable[[], str],
    deadline: float,
    pause_s: float = 1.0,
    until: float = math.inf,
) -> bool:
    """Wait until ``not_ready`` returns "", until ``deadline`` (time.monotonic) at most. True when it is ready.

    It returns why the server is not ready yet; ``gone`` returns why waiting is in vain, or "". False at ``until``, when
    there is still time.
    """
    while True:
        why = not_ready()
        if not why:
            return True
        vain = gone()
        if vain:
            raise GateError(vain)
        if time.monotonic() > deadline:
            raise GateError(f"{why} in time; the last lines of its journal say how far it came")
        if time.monotonic() > until:
            return False
        time.sleep(pause_s)


def chat(base: str, model: str, question: str, timeout_s: float, **more: Any) -> dict[str, Any]:
    """Ask a chat question and return the first choice. Raises GateError when there is none with a token in it."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        **more,
    }
    try:
        status, answer = fetch(f"{base}/v1/chat/completions", body, timeout_s)
    except OSError as error:
        raise GateError(f"healthy, but a chat completion failed: {error}") from error
    if status != 200:
        raise GateError(f"healthy, but a chat completion gave HTTP {status}: {str(answer)[:300]}")
    try:
        choice = dict(answer["choices"][0])
        choice["text"] = str(choice["message"].get("content") or choice["message"].get("reasoning_content") or "")
        tokens = int(answer["usage"]["completion_tokens"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise GateError(f"the chat completion has not the expected shape ({error!r}): {str(answer)[:300]}") from error
    if tokens < 1:
        raise GateError(f"the chat completion holds no token: {str(answer)[:300]}")
    return choice


def ask(base: str, question: str, expected: str, model: str, timeout_s: float = 120) -> str:
    """Ask a chat question with a known answer and return the text. Raises GateError when it does not hold."""
    text = str(chat(base, model, question, timeout_s, max_tokens=64)["text"])
    if expected not in text:
        raise GateError(
            f"wrong answer: asked {question!r}, got {text[:200]!r}, expected it to contain {expected!r}; "
            "a server that is healthy and talks nonsense often has a broken checkpoint or an engine that misreads it"
        )
    return text


def coherent(base: str, model: str, timeout_s: float = 120) -> None:
    """Raises GateError for an answer that repeats itself without end, or has log probabilities that are no numbers.

    An engine that refuses log probabilities with these flags is asked without them.
    """
    question, size = "Write five sentences about the sea.", {"max_tokens": 192}
    try:
        choice = chat(base, model, question, timeout_s, logprobs=True, **size)
    except GateError as error:
        if "logprob" not in str(error):
            raise
        choice = chat(base, model, question, timeout_s, **size)
    if loops(choice["text"]):
        raise GateError(
            f"it repeats itself without end: asked {question!r}, the answer ends in {choice['text'][-80:]!r}; "
            "a broken checkpoint, or a cache or attention kernel that computes nonsense, does that"
        )
    wrong = [item for item in (choice.get("logprobs") or {}).get("content") or [] if not _finite(item.get("logprob"))]
    if wrong:
        raise GateError(
            f"{len(wrong)} tokens have a log probability that is no number (first: {wrong[0]}), expected finite ones; "
            "a precision or kernel of this plan overflows on this card"
        )


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def loops(text: str) -> bool:
    """True when the last LOOP_CHARS characters are one piece, at most a quarter of them long, over and over."""
    tail = text[-LOOP_CHARS:]
    pieces = (tail[:size] for size in range(1, LOOP_CHARS // 4 + 1))
    return len(tail) == LOOP_CHARS and any((piece * LOOP_CHARS)[:LOOP_CHARS] == tail for piece in pieces)


def call_tool(base: str, model: str, timeout_s: float = 120) -> None:
    """Raises GateError unless a question that needs a tool gets a parsed call of it."""
    function = {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    question, tools = "What is the weather in Paris? Use the tool.", [{"type": "function", "function": function}]
    choice = chat(base, model, question, timeout_s, max_tokens=256, tools=tools)
    try:
        call = choice["message"]["tool_calls"][0]["function"]
        city = str(json.loads(call["arguments"])["city"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GateError(
            f"asked {question!r}, got no call of get_weather with a city but {choice['text'][:200]!r}; "
            "the flag --tool-call-parser does not fit this model, or the model does not call tools"
        ) from error
    if call.get("name") != "get_weather" or "paris" not in city.lower():
        raise GateError(f"asked {question!r}, got a call of {call!r}, expected get_weather with the city Paris")


def stage(lines: Iterable[str]) -> str:
    """How far a start has come, from the engine's own lines, oldest first."""
    reached = "starting"
    for text in lines:
        reached = next((words for mark, words in STAGES if mark in text), reached)
    return reached


def read_pools(base: str, timeout_s: float = 30) -> dict[str, Any]:
    """The pools that the server reports (tokens, requests), and its version."""
    try:
        status, info = fetch(f"{base}/server_info", timeout_s=timeout_s)
    except OSError as error:
        raise GateError(f"{base}/server_info failed: {error}") from error
    if status != 200 or not isinstance(info, dict):
        raise GateError(f"{base}/server_info gave HTTP {status}: {str(info)[:300]}")
    pools = {key: info.get(key) for key in (*POOLS, "version")}
    # At the top level is what was asked for; what came of it is in the scheduler's own state.
    inner = info.get("internal_states") or [{}]
    effective = inner[0].get("effective_max_running_requests_per_dp") if isinstance(inner[0], dict) else None
    if effective is not None:
        pools["max_running_requests"] = effective
    return pools


def compare_pools(reported: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    """Raises GateError when a planned pool is not what the server reports."""
    wrong = [
        f"{key}: server {reported.get(key)}, plan {planned[key]}"
        for key in POOLS
        if planned.get(key) is not None and reported.get(key) != planned[key]
    ]
    if wrong:
        raise GateError(
            f"the pools differ from the plan ({'; '.join(wrong)}); "
            "the card has less free memory than planned for, or something else uses it"
        )
