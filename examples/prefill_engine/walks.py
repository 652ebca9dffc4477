"""Which experts a chunk streams, and when strata is told.

`AllExperts` gives strata the whole list at the beginning: copies run ahead of the compute, at the price of experts
that no token takes. `RoutedExperts` extends the request by the routed ones once a layer's routing is known.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

import strata
from examples.prefill_engine.expert_cache import ExpertCache
from examples.prefill_engine.host_experts import HostExperts
from examples.prefill_engine.streamers import Request, Streamer

__all__ = ["WALKS", "AllExperts", "RoutedExperts", "Walk"]

#: Names on the command line.
WALKS = ("all", "routed")


class Walk(Protocol):
    """One chunk's request."""

    request: Request

    def entries(self, layer: int, routed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Experts whose entries come next, in the order of the request; `routed` is (experts,) bool."""


class AllExperts:
    """Every expert that is not resident, layer by layer."""

    def __init__(self, streamer: Streamer, cache: ExpertCache, sources: HostExperts) -> None:
        self._absent = [cache.absent(layer) for layer in range(len(cache.slot_of))]
        self.request: Request = streamer.begin(strata.ExpertCopies.concatenate(
            sources.copies(layer, experts) for layer, experts in enumerate(self._absent)))

    def entries(self, layer: int, routed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        return self._absent[layer]


class RoutedExperts:
    """Only experts that a token takes. With ``long_prefill=False`` this is the short path, at 1/1/1."""

    def __init__(self, streamer: Streamer, cache: ExpertCache, sources: HostExperts, *,
                 long_prefill: bool) -> None:
        self._cache = cache
        self._sources = sources
        self.request: Request = streamer.begin(long_prefill=long_prefill)

    def entries(self, layer: int, routed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        absent = self._cache.absent(layer)
        wanted = absent[routed[absent]]
        self.request.extend(self._sources.copies(layer, wanted))
        return wanted
