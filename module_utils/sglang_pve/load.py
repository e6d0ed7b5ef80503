"""A closed loop of requests against one server: whoever is answered asks again. What it measures is a plan's speed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import time
from collections.abc import Mapping
from typing import Any

# Token ids that every served model has; text would have to be looked up in its vocabulary.
TOKENS = range(1000, 30000)
# A server that refuses is not asked again at once.
PAUSE_S = 0.2
# Files that this process has open besides its connections.
FILES = 64
ERRORS_SHOWN = 3


class LoadError(Exception):
    """Nothing could be measured; the message says what the server did instead."""


class _Loop:
    """One load. ``done``: (end in seconds of time.monotonic, seconds, output tokens) of each answer, in their order."""

    def __init__(self, host: str, port: int, work: Mapping[str, int], seed: int) -> None:
        self.host, self.port, self.work = host, port, work
        self.random = random.Random(seed)
        shared = min(work.get("shared_prefix_tokens", 0), work["mean_input_tokens"])
        self.prefix = [self.random.choice(TOKENS) for _ in range(shared)]
        self.done: list[tuple[float, float, int]] = []
        self.errors: list[str] = []

    def _request(self) -> bytes:
        own = max(self.work["mean_input_tokens"] - len(self.prefix), 0 if self.prefix else 1)
        ids = [*self.prefix, *(self.random.choice(TOKENS) for _ in range(own))]
        sampling = {"max_new_tokens": self.work["mean_output_tokens"], "temperature": 0, "ignore_eos": True}
        body = json.dumps({"input_ids": ids, "sampling_params": sampling}).encode()
        # HTTP/1.0: the answer comes whole, and ends with the connection.
        head = f"POST /generate HTTP/1.0\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def _ask(self) -> int:
        """One request; the output tokens of its answer. Raises OSError, ValueError, KeyError or TypeError."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(self._request())
            await writer.drain()
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            # Also of one that is given up: the server ends a request whose client has gone.
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        status = head.split(b"\r\n")[0].decode(errors="replace")
        if " 200 " not in f"{status} ":
            raise ValueError(f"{status or 'no answer'}: {body[:200].decode(errors='replace')}")
        return int(json.loads(body)["meta_info"]["completion_tokens"])

    async def _worker(self) -> None:
        while True:
            begin = time.monotonic()
            try:
                tokens = await self._ask()
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.errors.append(str(error) or repr(error))
                await asyncio.sleep(PAUSE_S)
                continue
            end = time.monotonic()
            self.done.append((end, end - begin, tokens))

    async def _warm(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while len(self.done) < self.work["concurrency"] and time.monotonic() < end:
            await asyncio.sleep(0.05)

    async def run(self, seconds: float) -> int:
        """Load the server; returns how many of ``done`` were the warm-up. What is in flight at the end is given up."""
        workers = [asyncio.ensure_future(self._worker()) for _ in range(self.work["concurrency"])]
        try:
            await self._warm(seconds)
            warm = len(self.done)
            await asyncio.sleep(seconds)
            return warm
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


def _allow_files(count: int) -> None:
    """Let this process have so many connections open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + FILES if hard == resource.RLIM_INFINITY else min(count + FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def measure(host: str, port: int, work: Mapping[str, int], seconds: float, seed: int = 7) -> dict[str, Any]:
    """Keep ``work["concurrency"]`` requests of the workload's mean lengths running, and measure for ``seconds``.

    Before that comes a warm-up that is not measured: one answer for each that is running, for ``seconds`` at most.
    Time counts from the last answer of the warm-up to the last one measured, so that answers that come in waves are
    counted whole.
    Returns output_tokens_per_s, requests, seconds, mean_latency_s, concurrency, failed (requests) and errors (the first
    few, in words). Raises LoadError when there was no answer, or none after the warm-up.
    """
    _allow_files(work["concurrency"])
    loop = _Loop("127.0.0.1" if host in ("0.0.0.0", "::") else host, port, work, seed)
    warm = asyncio.run(loop.run(seconds))
    measured = loop.done[warm:]
    if not warm or not measured:
        why = f": {loop.errors[0]}" if loop.errors else ""
        raise LoadError(
            f"{len(loop.done)} answers in {2 * seconds:.0f} s with {work['concurrency']} requests at a time{why}; "
            "expected some in each half of it. Give it more seconds, or a workload that this server can do"
        )
    passed = measured[-1][0] - loop.done[warm - 1][0]
    return {
        "output_tokens_per_s": round(sum(tokens for _end, _took, tokens in measured) / max(passed, 1e-6), 1),
        "requests": len(measured),
        "seconds": round(passed, 1),
        "mean_latency_s": round(sum(took for _end, took, _tokens in measured) / len(measured), 2),
        "concurrency": work["concurrency"],
        "failed": len(loop.errors),
        "errors": list(dict.fromkeys(loop.errors))[:ERRORS_SHOWN],
    }
