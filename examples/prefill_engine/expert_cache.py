"""The expert cache: device slots that hold experts for good, and lend some to the ring for a request.

Which experts are cached is fixed: the first of a shuffled order, evenly over the layers. The last slots are the ones
that a request borrows; while they are lent, their experts count as not resident, and they are read anew afterwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import strata
from examples.prefill_engine.backend import Backend
from examples.prefill_engine.config import ModelConfig
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.host_experts import HostExperts
from examples.prefill_engine.streamers import Streamer

__all__ = ["ExpertCache"]


class ExpertCache:
    """Slots in the order in which they are filled.

    Parameters
    ----------
    model : ModelConfig
    sources : HostExperts
    backend : Backend
    slots : int
        Slots of the cache, at most the number of experts of all layers.
    lent : int
        How many of them a request borrows: the last ones.

    Raises
    ------
    InputError
        If there are more slots than experts, or more are to be lent than there are.

    Attributes
    ----------
    addresses : list of int
        Device addresses of the slots.
    lent_addresses : list of int
        Those that a request borrows.
    """

    def __init__(self, model: ModelConfig, sources: HostExperts, backend: Backend, slots: int, lent: int) -> None:
        if lent > slots:
            raise InputError(f"gpu_ring is {lent}: the ring borrows its slots from the cache, and cache_slots "
                             f"is {slots}")
        if slots > model.layers * model.experts:
            raise InputError(f"cache_slots is {slots}: the model has {model.layers * model.experts} experts")
        self._sources = sources
        self._backend = backend
        random = np.random.Generator(np.random.PCG64([model.seed, 2]))
        order = np.stack([random.permutation(model.experts) for _ in range(model.layers)], axis=1)
        #: (layer, expert) of each slot.
        self.content = [(k % model.layers, int(order.ravel()[k])) for k in range(slots)]
        self.retained = slots - lent
        #: (layers, experts): the slot of an expert that is there during a request, else -1.
        self.slot_of = np.full((model.layers, model.experts), -1, np.int64)
        for slot, (layer, expert) in enumerate(self.content[:self.retained]):
            self.slot_of[layer, expert] = slot
        self.addresses = backend.allocate_slots(slots, model.expert_bytes)
        self.lent_addresses = self.addresses[self.retained:]
        if self.retained:
            with strata.ExpertStreamer(model.expert_bytes, slots=self.addresses[:self.retained],
                                       compute_stream=backend.stream) as filler:
                _fill(filler, self._copies(0, self.retained))

    def resident(self, layer: int) -> tuple[int, int, npt.NDArray[np.int64]]:
        """The layer's experts that are there during a request: slot of the first, distance to the next, numbers."""
        layers = len(self.slot_of)
        experts = [expert for _, expert in self.content[layer:self.retained:layers]]
        return layer, layers, np.array(experts, np.int64)

    def refill(self, streamer: Streamer) -> strata.Counters:
        """Read the experts of the lent slots anew, through the streamer that borrowed them."""
        return _fill(streamer, self._copies(self.retained, len(self.content)))

    def absent(self, layer: int) -> npt.NDArray[np.int64]:
        """Experts of a layer that a request must stream: those in pinned memory first."""
        experts = np.flatnonzero(self.slot_of[layer] < 0)
        return experts[np.argsort(~self._sources.pinned[layer, experts], kind="stable")]

    def wrong_slots(self) -> tuple[list[int], list[int]]:
        """Read all slots back; the numbers of retained and of lent ones that differ from the checkpoint."""
        wrong = [slot for slot, (layer, expert) in enumerate(self.content)
                 if not np.array_equal(self._backend.read_slot(slot), self._sources.expert_bytes(layer, expert))]
        return [s for s in wrong if s < self.retained], [s for s in wrong if s >= self.retained]

    def _copies(self, begin: int, end: int) -> strata.ExpertCopies:
        return strata.ExpertCopies.concatenate(
            self._sources.copies(layer, np.array([expert])) for layer, expert in self.content[begin:end])


def _fill(streamer: Streamer, copies: strata.ExpertCopies) -> strata.Counters:
    """One short request with as many entries as the ring has slots: entry ``i`` goes to slot ``i``."""
    with streamer.begin(copies, long_prefill=False) as request:
        request.skip(len(copies))  # no kernel reads them now; leaving waits until they have arrived
    return request.counters
