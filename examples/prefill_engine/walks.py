"""Which experts a chunk streams, and when strata is told.

`AllExperts` gives strata the whole list at the beginning: copies run ahead of the compute. Once a layer's routing is
known, it drops the experts that no token takes; those that lie in the ring by then came for nothing. `RoutedExperts`
extends the request by the routed ones once a layer's routing is known: nothing comes for nothing, and nothing runs
ahead. `chosen_walk` says which pays.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

import strata
from examples.prefill_engine.expert_cache import ExpertCache
from examples.prefill_engine.host_experts import HostExperts
from examples.prefill_engine.streamers import Request, Streamer

__all__ = ["CHOICES", "WALKS", "AllExperts", "RoutedExperts", "Walk", "chosen_walk", "expected_routed_share"]

#: Names on the command line; *auto* is the one that `chosen_walk` names.
WALKS = ("all", "routed")
CHOICES = (*WALKS, "auto")

#: The expected share of a layer's experts that are routed from which on the whole list is given ahead.
ALL_FROM = 0.5


def expected_routed_share(tokens: int, top_k: int, experts: int) -> float:
    """The expected share of experts that some token takes, 0 to 1, where each token takes any `top_k` of them alike."""
    return 1.0 - (1.0 - top_k / experts) ** tokens


def chosen_walk(tokens: int, top_k: int, experts: int) -> str:
    """The walk that pays for a chunk of so many tokens: *all* or *routed*."""
    return "all" if expected_routed_share(tokens, top_k, experts) >= ALL_FROM else "routed"


class Walk(Protocol):
    """One chunk's request."""

    request: Request

    def entries(self, layer: int, routed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Experts whose entries come next, in the order of the request; `routed` is (experts,) bool."""


class AllExperts:
    """Every expert that is not resident, layer by layer; what no token takes is dropped once that is known."""

    def __init__(self, streamer: Streamer, cache: ExpertCache, sources: HostExperts) -> None:
        self._absent = [cache.absent(layer) for layer in range(len(cache.slot_of))]
        self._first = np.concatenate([[0], np.cumsum([len(absent) for absent in self._absent])])
        self.request: Request = streamer.begin(strata.ExpertCopies.concatenate(
            sources.copies(layer, experts) for layer, experts in enumerate(self._absent)))

    def entries(self, layer: int, routed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        absent = self._absent[layer]
        self.request.drop(self._first[layer] + np.flatnonzero(~routed[absent]))
        return absent


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
