"""What a prefill leaves behind: numbers to compare, counters, times. Fingerprints are SHA-256 of the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import strata

__all__ = ["Outcome", "Routing", "digest"]


def digest(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 of arrays: their types, shapes and bytes."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return state.hexdigest()


@dataclass(frozen=True)
class Routing:
    """A layer's choices, (tokens, top_k) int64, and their weights, float32."""

    chosen: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float32]

    @classmethod
    def join(cls, chunks: list[Routing]) -> Routing:
        """The chunks of a prompt as one."""
        return cls(np.concatenate([c.chosen for c in chunks]), np.concatenate([c.shares for c in chunks]))

    def fingerprint(self) -> str:
        """Of choices and weights."""
        return digest([self.chosen, self.shares])


@dataclass(frozen=True)
class Outcome:
    """Result of `Engine.prefill`.

    Attributes
    ----------
    tokens, first_token : int
        Length of the prompt, and the id that would come next.
    residual : (tokens, hidden) float32
        The residual stream after the last layer.
    routing : list of Routing
        One a layer.
    gdn : dict
        Layer to its carried ``matrix`` and ``conv``, of each Gated DeltaNet layer.
    counters, refill_counters : strata.Counters
        Of the chunks' requests, and of filling the lent slots again.
    run_wall_s, prefill_s, ttft_s : float
        Seconds until the last chunk was computed; until the lent slots were filled again, too; until the first
        token was known.
    """

    tokens: int
    first_token: int
    residual: npt.NDArray[np.float32]
    routing: list[Routing]
    gdn: dict[int, dict[str, npt.NDArray[np.float32]]]
    counters: strata.Counters
    refill_counters: strata.Counters
    run_wall_s: float
    prefill_s: float
    ttft_s: float

    @property
    def tokens_per_second(self) -> float:
        """Prompt tokens a second, filling the lent slots again included."""
        return self.tokens / self.prefill_s

    def routing_fingerprints(self) -> list[str]:
        """One a layer."""
        return [routing.fingerprint() for routing in self.routing]

    def gdn_fingerprints(self) -> list[str]:
        """One a Gated DeltaNet layer."""
        return [digest(state.values()) for state in self.gdn.values()]

    def fingerprint(self) -> str:
        """Of everything that was computed: residual stream, routing, states, first token."""
        parts = [digest([self.residual, np.array(self.first_token)]), *self.routing_fingerprints(),
                 *self.gdn_fingerprints()]
        return hashlib.sha256("".join(parts).encode()).hexdigest()
