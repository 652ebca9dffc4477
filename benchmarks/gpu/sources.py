"""The experts in host memory, the same for every peer of a size: a pinned pool and a pageable one.

Every expert has bytes of its own (random, made by the device), so that a copy that came too early, too late or
from elsewhere shows in the sum over all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

import strata
from benchmarks.gpu.cases import Size, mixed_split

__all__ = ["Sources"]

_CHUNK_BYTES = 2**28


class Sources:
    """Pools of a size, made at first use.

    Parameters
    ----------
    size : Size
    device : torch.device
        Makes the random bytes.
    """

    def __init__(self, size: Size, device: torch.device) -> None:
        self.size = size
        self.device = device
        self._pinned: torch.Tensor | None = None
        self._pageable: torch.Tensor | None = None
        self._sums: dict[tuple[str, int], torch.Tensor] = {}

    @property
    def pinned(self) -> torch.Tensor:
        """(experts, nbytes) uint8 in pinned memory."""
        if self._pinned is None:
            n, nbytes = self.size.pinned, self.size.nbytes
            # Not torch's own allocator, which rounds up to a power of two and keeps a record for every copy.
            pool = torch.from_numpy(strata.pinned_empty((n, nbytes), np.uint8))
            step = max(1, _CHUNK_BYTES // nbytes)
            generator = torch.Generator(self.device).manual_seed(nbytes)
            for first in range(0, n, step):
                count = min(step, n - first)
                words = torch.empty((count, nbytes // 4), dtype=torch.int32, device=self.device)
                pool[first:first + count].view(torch.int32).copy_(words.random_(generator=generator))
            self._pinned = pool
        return self._pinned

    @property
    def pageable(self) -> torch.Tensor:
        """(experts, nbytes) uint8 on the heap: other bytes than the pinned pool's."""
        if self._pageable is None:
            n = self.size.pageable
            pool = torch.empty((n, self.size.nbytes), dtype=torch.uint8)
            torch.add(self.pinned[:n].view(torch.int32), 1, out=pool.view(torch.int32))
            self._pageable = pool
        return self._pageable

    def make(self, pageable: bool) -> None:
        """Make the pools now, so that no case pays for them."""
        assert len(self.pinned)
        if pageable:
            assert len(self.pageable)

    def places(self, memory: str, entries: int) -> list[tuple[bool, int]]:
        """Whether each entry is pinned, and its row in its pool. A list longer than a pool goes round in it."""
        if memory == "mixed":
            direct, staged = mixed_split(entries)
        else:
            direct, staged = (entries, 0) if memory == "pinned" else (0, entries)
        return ([(True, i % self.size.pinned) for i in range(direct)]
                + [(False, j % self.size.pageable) for j in range(staged)])

    def tensors(self, memory: str, entries: int) -> list[torch.Tensor]:
        """One (nbytes,) uint8 tensor an entry."""
        return [(self.pinned if pinned else self.pageable)[row] for pinned, row in self.places(memory, entries)]

    def addresses(self, memory: str, entries: int) -> npt.NDArray[np.uint64]:
        """(entries,) uint64: where each entry's bytes begin."""
        return np.array([tensor.data_ptr() for tensor in self.tensors(memory, entries)], np.uint64)

    def copies(self, memory: str, entries: int) -> strata.ExpertCopies:
        """The list as strata takes it."""
        pinned = np.array([pinned for pinned, _ in self.places(memory, entries)], np.bool_)
        nbytes = np.full(entries, self.size.nbytes, np.int64)
        return strata.ExpertCopies(self.addresses(memory, entries), nbytes, pinned)

    def total(self, memory: str, entries: int) -> torch.Tensor:
        """(nbytes / 4,) int32: the sum over the entries, word by word, modulo 2**32, added up on the host."""
        key = (memory, entries)
        if key not in self._sums:
            total = torch.zeros(self.size.nbytes // 4, dtype=torch.int32)
            for tensor in self.tensors(memory, entries):
                total.add_(tensor.view(torch.int32))
            self._sums[key] = total
        return self._sums[key]
