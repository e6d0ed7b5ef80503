"""Sizing: the explicit pools of one model on one card, from its total memory and the work it shall do."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from .memory import GIB, Engine, Geometry, MemoryFlags, Pools, Reserve

# What a card's total memory holds before the engine may use any: a card that nvidia-smi shows with 97,887 MiB offers
# 94.97 GiB to CUDA, and of 95.0 GiB free the engine saw 94.33 after making its context (measured).
DRIVER_AND_CONTEXT_GIB = 1.28
# Gone between the engine's first reading, which its formulas use, and "Load weight begin", which its log shows: the
# tokens it then made say 0.05 to 0.16 (measured). Held back, since which of the two 1.28 leads to differs by card.
BEFORE_WEIGHTS_GIB = 0.07
# What loading takes beside the tensors: 50.956 GiB of them took 51.05 (measured). The rotary table of 262,144
# positions alone is 0.0625, so this does not shrink with the checkpoint.
BESIDE_WEIGHTS_GIB = 0.1


def tokens_to_ask_for(predicted: int, page: int) -> int:
    """--max-total-tokens for a predicted pool: 1 % under it, so that the server reports exactly this; whole pages."""
    return math.floor(predicted * 0.99) // page * page


@dataclass(frozen=True)
class Demand:
    """What the work asks of the pools: at most ``limit`` requests at once, KV for ``mean_tokens`` each beside a prefix
    of ``shared`` tokens that is kept once, and for one request of ``max_tokens``."""

    limit: int
    mean_tokens: int
    max_tokens: int
    shared: int = 0

    def tokens(self, requests: int) -> int:
        """KV tokens of so many requests at their mean."""
        return requests * self.mean_tokens + self.shared


@dataclass(frozen=True)
class Budget:
    """One model on one card: everything that sizing needs and no flag changes. GiB, except ``mtp_bytes``.

    ``pre`` and ``post`` are free before and after the target's weights, ``margin`` stays free above every known need.
    """

    engine: Engine
    geometry: Geometry
    pre: float
    post: float
    mtp_bytes: int
    margin: float

    @classmethod
    def of(
        cls, engine: Engine, geometry: Geometry, total_mib: int, tensor_bytes: int, mtp_bytes: int, margin: float
    ) -> Budget:
        """From the card's total memory and the checkpoint's tensor bytes, ``mtp_bytes`` of them in the MTP head."""
        pre = total_mib / 1024 - DRIVER_AND_CONTEXT_GIB
        weights = (tensor_bytes - mtp_bytes) / GIB + BESIDE_WEIGHTS_GIB
        return cls(engine, geometry, pre, pre - BEFORE_WEIGHTS_GIB - weights, mtp_bytes, margin)

    @property
    def weights(self) -> float:
        return self.pre - BEFORE_WEIGHTS_GIB - self.post

    def pools(self, flags: MemoryFlags) -> Pools:
        return self.engine.pools(self.geometry, self.pre, self.post, flags)

    def reserve(self, flags: MemoryFlags) -> Reserve:
        return self.engine.reserve(self.geometry, flags, self.pools(flags), self.mtp_bytes, self.margin)

    def rest(self, flags: MemoryFlags) -> float:
        """GiB that the fraction keeps out of the pools."""
        return self.pre * (1 - flags.fraction)

    def settle(self, flags: MemoryFlags, left: Collection[str] = ()) -> MemoryFlags:
        """``flags`` with what they leave open, except the names in ``left``, which the engine shall choose: slots for
        the running requests, the largest fraction whose rest holds the reserve, tokens 1 % under the prediction.

        A fraction of 0 is open. It is found in thousandths by bisection: a larger one leaves less for the reserve
        and, through more tokens, asks for no less.
        """
        if self.geometry.linear_layers and flags.slots is None and flags.running is not None and "slots" not in left:
            flags = replace(flags, slots=flags.running * self.engine.slots_per_request(flags))
        if not flags.fraction:
            low, high = 1, 999
            while low < high:
                middle = (low + high + 1) // 2
                trial = replace(flags, fraction=middle / 1000)
                low, high = (middle, high) if self.reserve(trial).total <= self.rest(trial) else (low, middle - 1)
            flags = replace(flags, fraction=low / 1000)
        if flags.tokens is None and "tokens" not in left:
            flags = replace(flags, tokens=tokens_to_ask_for(self.pools(flags).tokens, flags.page))
        return flags

    def largest_running(self, flags: MemoryFlags, demand: Demand, left: Collection[str] = ()) -> int:
        """The most requests that run at once with the KV that ``demand`` asks for; 0 where not even one fits."""
        low, high = 0, demand.limit
        while low < high:
            middle = (low + high + 1) // 2
            pools = self.pools(self.settle(replace(flags, running=middle), left))
            fits = pools.running == middle and pools.tokens >= max(demand.tokens(middle), demand.max_tokens)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def breakdown(self, flags: MemoryFlags) -> dict[str, float | dict[str, float]]:
        """Where the card's memory goes, in GiB. Everything but ``total``, ``reserve`` and ``spare`` adds up to it."""
        pools, reserve = self.pools(flags), self.reserve(flags)
        parts = {
            "total": self.pre + DRIVER_AND_CONTEXT_GIB,
            "driver_and_context": DRIVER_AND_CONTEXT_GIB + BEFORE_WEIGHTS_GIB,
            "weights": self.weights,
            "state_slots": pools.state_gib,
            "speculative_states": pools.speculative_gib,
            "kv_tokens": pools.kv_gib,
            "kv_held_back": pools.rest_gib - pools.kv_gib,
            "outside_pools": self.rest(flags),
            "spare": self.rest(flags) - reserve.total,
        }
        held = {**vars(reserve), "total": reserve.total}
        rounded: dict[str, float | dict[str, float]] = {name: round(value, 3) for name, value in parts.items()}
        rounded["reserve"] = {name: round(value, 3) for name, value in held.items()}
        return rounded
