from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strata.settings import BatchSettings

class CopyPlan:
    """Maximal copy groups and ownership groups of one list of entries.

    Parameters
    ----------
    jobs : (n,) array of int
        ``-1`` for a direct entry, else the entry's job; jobs increase along the list, gaps are allowed.
    gpu_ring, host_ring : int
        Depths of the rings, at least 1.
    settings : BatchSettings
        Batches; clamped to the rings.
    host_pinned : (host_ring,) array of bool, optional
        Which host buffers are pinned. Default: all.
    merged : bool, optional
        Whether the copies are coalesced, so that a direct group may be as long as the ring.

    Attributes
    ----------
    ends : (n,) int64 array, read-only
        Exclusive end of each entry's copy group.
    ownership_ends : (staged entries,) int64 array, read-only
        Exclusive end of each staged entry's ownership group; both index and value are ordinals among
        the list's staged entries.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and what is allowed.

    Notes
    -----
    Immutable, hence thread-safe. Time and memory are linear in the list.
    """
    def __init__(
        self,
        jobs: Sequence[int] | npt.NDArray[Any],
        *,
        gpu_ring: int,
        host_ring: int,
        settings: BatchSettings,
        host_pinned: Sequence[bool] | npt.NDArray[Any] | None = None,
        merged: bool = False,
    ) -> None: ...
    @property
    def ends(self) -> npt.NDArray[np.int64]: ...
    @property
    def ownership_ends(self) -> npt.NDArray[np.int64]: ...
    @property
    def settings(self) -> BatchSettings: ...
    @property
    def gpu_ring(self) -> int: ...
    @property
    def host_ring(self) -> int: ...
    def __len__(self) -> int: ...
    def group(self, i: int) -> tuple[int, int]:
        """The copy group ``(begin, end)`` of entry `i`.

        Raises
        ------
        IndexError
            If the plan has no entry `i`.
        TypeError
            If `i` is no integer.
        """
    def counts(self) -> dict[str, int]:
        """Records and waits of a warmed run: every GPU slot was used before.

        Returns
        -------
        dict of str to int
            ``direct_copied_records``, ``direct_reuse_waits``, ``staged_copied_records``,
            ``staged_reuse_waits``, ``dma_done_records``, ``host_reuse_waits``.
        """
