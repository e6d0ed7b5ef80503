"""Ready means answered: a server passes when its process lives, it is healthy, it answers a known question, and the
pools it reports are those that were planned."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

POOLS = ("max_total_num_tokens", "max_running_requests")


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


def wait_until_ready(
    not_ready: Callable[[], str], gone: Callable[[], str], deadline: float, pause_s: float = 1.0
) -> None:
    """Wait until ``not_ready`` returns "", until ``deadline`` (time.monotonic) at most.

    It returns why the server is not ready yet; ``gone`` returns why waiting is in vain, or "".
    """
    while True:
        why = not_ready()
        if not why:
            return
        vain = gone()
        if vain:
            raise GateError(vain)
        if time.monotonic() > deadline:
            raise GateError(f"{why} in time; the last lines of its journal say how far it came")
        time.sleep(pause_s)


def ask(base: str, question: str, expected: str, model: str, timeout_s: float = 120) -> str:
    """Ask a chat question with a known answer and return the text. Raises GateError when it does not hold."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 64,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    try:
        status, answer = fetch(f"{base}/v1/chat/completions", body, timeout_s)
    except OSError as error:
        raise GateError(f"healthy, but a chat completion failed: {error}") from error
    if status != 200:
        raise GateError(f"healthy, but a chat completion gave HTTP {status}: {str(answer)[:300]}")
    try:
        message = answer["choices"][0]["message"]
        text = str(message.get("content") or message.get("reasoning_content") or "")
        tokens = int(answer["usage"]["completion_tokens"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GateError(f"the chat completion has not the expected shape ({error!r}): {str(answer)[:300]}") from error
    if tokens < 1:
        raise GateError(f"the chat completion holds no token: {str(answer)[:300]}")
    if expected not in text:
        raise GateError(
            f"wrong answer: asked {question!r}, got {text[:200]!r}, expected it to contain {expected!r}; "
            "a server that is healthy and talks nonsense often has a broken checkpoint or an engine that misreads it"
        )
    return text


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
