"""A closed loop of requests against one server: as many workers as asked, connections not capped."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import aiohttp

VOCABULARY = 248320
INPUT_TOKENS = 512


class Loop:
    """One load: ``count`` completions are awaited, of which the first ``warm_up`` are not measured."""

    def __init__(self, base: str, load: dict[str, Any], running: int) -> None:
        if load.get("wave"):
            load = {**load, "concurrency": running, "requests": running, "warm_up": 0}
        if "waves" in load:
            load = {**load, "requests": load["waves"] * running, "warm_up": running}
        self.url, self.load = f"{base}/generate", load
        self.warm_up, self.count = load["warm_up"], load["warm_up"] + load["requests"]
        self.done: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.random = random.Random(7)
        self.stop_ids = self.random.sample(range(1000, VOCABULARY), load.get("stop_ids", 0))

    def body(self) -> dict[str, Any]:
        ids = [self.random.randrange(1000, 200000) for _ in range(INPUT_TOKENS)]
        sampling: dict[str, Any] = {"max_new_tokens": self.load["output"], "temperature": 0, "ignore_eos": True}
        if self.stop_ids:
            sampling = {"max_new_tokens": self.load["output"], "temperature": 1, "stop_token_ids": self.stop_ids}
        body: dict[str, Any] = {"input_ids": ids, "sampling_params": sampling}
        return {**body, "return_logprob": True, "logprob_start_len": 0} if self.load.get("logprobs") else body

    async def worker(self, session: aiohttp.ClientSession) -> None:
        while len(self.done) < self.count and len(self.errors) < 10:
            begin = time.monotonic()
            try:
                async with session.post(self.url, json=self.body()) as answer:
                    found = await answer.json(content_type=None)
                tokens = int(found["meta_info"]["completion_tokens"])
            except (aiohttp.ClientError, KeyError, TypeError, ValueError, OSError) as error:
                self.errors.append(f"{error!r}"[:300])
                continue
            end = time.monotonic()
            self.done.append({"end": end, "seconds": end - begin, "tokens": tokens})

    async def run(self, limit_s: float) -> None:
        """Until enough are done; whatever is in flight then is given up. Raises nothing for the time limit."""
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self.begin = time.monotonic()
            # Whoever is answered asks again, until enough are done.
            workers = [asyncio.create_task(self.worker(session)) for _ in range(self.load["concurrency"])]
            watch = asyncio.create_task(self.enough())
            await asyncio.wait([watch], timeout=limit_s)
            for task in (*workers, watch):
                task.cancel()
            await asyncio.gather(*workers, watch, return_exceptions=True)

    async def enough(self) -> None:
        while len(self.done) < self.count and len(self.errors) < 10:
            await asyncio.sleep(0.01)

    def result(self) -> dict[str, Any]:
        measured = self.done[self.warm_up : self.count]
        out: dict[str, Any] = {"load": self.load["name"], "concurrency": self.load["concurrency"]}
        out["errors"] = self.errors[:5]
        out.update(warm_up=self.warm_up, asked=self.count - self.warm_up, measured=len(measured))
        if not measured:
            return out
        begin = self.done[self.warm_up - 1]["end"] if self.warm_up else self.begin
        tokens, seconds = sum(one["tokens"] for one in measured), measured[-1]["end"] - begin
        out.update(seconds=round(seconds, 2), output_tokens=tokens, tokens_per_s=round(tokens / seconds, 1))
        out["mean_output"] = round(tokens / len(measured), 1)
        out["longest_output"] = max(one["tokens"] for one in measured)
        out["mean_latency_s"] = round(sum(one["seconds"] for one in measured) / len(measured), 2)
        return out


def run(base: str, load: dict[str, Any], running: int, limit_s: float) -> dict[str, Any]:
    """Load the server at ``base`` for ``limit_s`` seconds at most; what was measured, also when it ended early."""
    loop = Loop(base, load, running)
    asyncio.run(loop.run(limit_s))
    return loop.result()
