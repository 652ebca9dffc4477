"""Where the experts lie in host memory: some in pinned memory, the rest in the mapped checkpoint."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

import strata
from examples.prefill_engine.checkpoint import Checkpoint

__all__ = ["HostExperts"]


class HostExperts:
    """Host sources of all routed experts.

    Of each layer the same number of experts, chosen by the model's seed, is loaded into pinned memory, each as one
    block: a direct entry of one segment. The others stay in the map: staged entries of three segments.

    Parameters
    ----------
    checkpoint : Checkpoint
    pinned_share : float
        0 to 1.

    Attributes
    ----------
    pinned : (layers, experts) bool
    """

    def __init__(self, checkpoint: Checkpoint, pinned_share: float) -> None:
        model = checkpoint.model
        self._checkpoint = checkpoint
        self.pinned = np.zeros((model.layers, model.experts), bool)
        count = round(pinned_share * model.experts)
        random = np.random.Generator(np.random.PCG64([model.seed, 1]))
        for layer in range(model.layers):
            self.pinned[layer, random.permutation(model.experts)[:count]] = True
        strata.runtime.ensure()  # here, not on the threads below
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            self._copies = list(pool.map(self._load, range(model.layers)))

    def _load(self, layer: int) -> strata.ExpertCopies:
        """Fill the layer's pinned memory, and list its experts."""
        model = self._checkpoint.model
        block = strata.pinned_empty((int(self.pinned[layer].sum()), model.expert_bytes // 2), np.uint16)
        rows = iter(block)
        items: list[object] = []
        for expert in range(model.experts):
            segments = self._checkpoint.expert(layer, expert)
            if self.pinned[layer, expert]:
                row = next(rows)
                np.concatenate([segment.ravel() for segment in segments], out=row)
                items.append(row)
            else:
                items.append(segments)
        return strata.ExpertCopies.from_buffers(items, pinned=self.pinned[layer])

    def copies(self, layer: int, experts: npt.NDArray[np.int64]) -> strata.ExpertCopies:
        """Entries for experts of a layer, in this order."""
        return self._copies[layer].take(experts)

    def expert_bytes(self, layer: int, expert: int) -> npt.NDArray[np.uint8]:
        """An expert's bytes as they lie in a slot, from the checkpoint itself."""
        return np.concatenate([s.ravel() for s in self._checkpoint.expert(layer, expert)]).view(np.uint8)
