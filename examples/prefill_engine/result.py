"""What a prefill leaves behind: numbers to compare, counters, times. Fingerprints are SHA-256 of the bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import strata

__all__ = ["PrefillResult", "Routing", "digest"]


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
class PrefillResult:
    """Result of `Engine.prefill`.

    Attributes
    ----------
    tokens, first_token : int
        Length of the prompt, and the id that would come next.
    ids, positions : (tokens,) int64
        The prompt, and where each token stood when it was computed.
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
    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
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

    def position_records(self) -> list[bytes]:
        """One a token: its position, its id, and SHA-256 of what was computed there.

        Notes
        -----
        ``<qq``, then 32 bytes: of the row of the residual stream, and of every layer's choices and their weights.
        """
        chosen = np.stack([routing.chosen for routing in self.routing], axis=1)
        shares = np.stack([routing.shares for routing in self.routing], axis=1)
        return [
            struct.pack("<qq", position, token)
            + hashlib.sha256(self.residual[k].tobytes() + chosen[k].tobytes() + shares[k].tobytes()).digest()
            for k, (position, token) in enumerate(zip(self.positions.tolist(), self.ids.tolist(), strict=True))
        ]

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
