"""Experts that stay in device memory: the least recently used one makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

import torch

__all__ = ["ExpertCache"]


class ExpertCache:
    """Rows of device memory that hold experts from call to call.

    Parameters
    ----------
    rows : int
        Experts that fit.
    row_bytes : int
        Bytes of a row: of a slot.
    device : torch.device

    Attributes
    ----------
    bytes : (rows, row_bytes) uint8 tensor
    hits, misses : int
        Experts that a call found, or did not find, since the cache was made.

    Notes
    -----
    Everything is queued on one compute stream, so a row may be refilled while earlier kernels still read it.
    """

    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None:
        self.bytes = torch.empty(rows, row_bytes, dtype=torch.uint8, device=device)
        self.hits = 0
        self.misses = 0
        self._row_of: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._free = list(range(rows - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def rows(self) -> int:
        """Experts that fit."""
        return self.bytes.shape[0]

    def split(self, layer: int, experts: Sequence[int]) -> tuple[dict[int, int], list[int]]:
        """Look up a layer's experts.

        Returns
        -------
        found : dict
            Row of each expert that is there; these are now the most recently used.
        missing : list of int
            The others, in the order given.
        """
        found: dict[int, int] = {}
        missing = []
        for expert in experts:
            row = self._row_of.get((layer, expert))
            if row is None:
                missing.append(expert)
            else:
                self._row_of.move_to_end((layer, expert))
                found[expert] = row
        self.hits += len(found)
        self.misses += len(missing)
        return found, missing

    def fill(self, layer: int, expert: int, slot: torch.Tensor, keep: Collection[int]) -> int | None:
        """Copy an expert from its slot, on the current stream.

        Parameters
        ----------
        layer, expert : int
        slot : (row_bytes,) uint8 tensor
        keep : collection of int
            Rows that this call still reads.

        Returns
        -------
        int or None
            Its row; None where every row is in `keep`.
        """
        if self._free:
            row = self._free.pop()
        else:
            oldest = next((key for key, row in self._row_of.items() if row not in keep), None)
            if oldest is None:
                return None
            row = self._row_of.pop(oldest)
        # Written down after the copy is queued: an error in between must not leave a row that lies.
        try:
            self.bytes[row].copy_(slot)
        except BaseException:
            self._free.append(row)
            raise
        self._row_of[layer, expert] = row
        return row

    def clear(self) -> None:
        """Forget everything: what was queued may not have run."""
        self._row_of.clear()
        self._free = list(range(self.rows - 1, -1, -1))
