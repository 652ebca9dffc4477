"""Sources: a pinned and a pageable pool, filled once, in which every entry has a place of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from strata import _host_memory
from strata.copies import ExpertCopies
from strata.pinned import pinned_empty
from strata.tools.replay.case import Case, InputError

__all__ = ["Sources", "source_offsets"]

_ALIGNMENT = 64
_SEED = 20_240_229
_FILL_PART = 2**26  # bytes, each with a generator of its own
_FILL_WORDS = 2**15  # of 8 bytes: what is generated stays in the cache until it is stored
_FILL_THREADS = 8

_Bytes = npt.NDArray[np.uint8]


def source_offsets(pool_bytes: int, entry_bytes: int, count: int) -> npt.NDArray[np.int64]:
    """Choose where each entry's source begins in its pool.

    Parameters
    ----------
    pool_bytes, entry_bytes : int
        The pool holds one entry at least.
    count : int
        Entries.

    Returns
    -------
    (count,) int64 array
        Multiples of `entry_bytes` until the pool is full; each further turn begins 64 bytes later, so that
        the offsets stay distinct, and only where these are used up at odd bytes. They repeat where the
        pool has no further place at all.
    """
    turns: list[npt.NDArray[np.int64]] = []
    found = 0
    for shift in _shifts(min(entry_bytes, pool_bytes - entry_bytes + 1)):
        if found >= count:
            break
        turns.append(np.arange(shift, pool_bytes - entry_bytes + 1, entry_bytes, dtype=np.int64))
        found += len(turns[-1])
    if not turns:
        return np.empty(0, np.int64)
    return np.resize(np.concatenate(turns), count)


def _shifts(limit: int) -> Iterator[int]:
    for odd in range(min(_ALIGNMENT, limit)):
        yield from range(odd, limit, _ALIGNMENT)


class Sources:
    """The pools of a case, and each entry's place in them.

    Parameters
    ----------
    case : Case
    pool_bytes : int
        Bytes of each pool; a pool is no larger than its entries need.

    Attributes
    ----------
    copies : ExpertCopies
        The request. Its entries are direct or staged by what the runtime says of their memory.
    pool_bytes : dict of str to int
        Bytes of the ``pinned`` and the ``pageable`` pool; 0 where the case has no such entries.
    distinct : int
        Different source addresses.

    Raises
    ------
    InputError
        A pool would not hold one entry, or the runtime's idea of which entries are direct is not the case's.
    HipError
        The pinned pool could not be pinned.
    MemoryError
        The system has no room for the pageable pool.
    """

    def __init__(self, case: Case, pool_bytes: int) -> None:
        if pool_bytes < case.expert_bytes:
            raise InputError(f"pool is {pool_bytes} bytes; one entry of this case needs {case.expert_bytes}")
        n = len(case)
        staged = case.is_staged()
        self._pools: dict[bool, _Bytes] = {}
        self._staged = staged
        self._nbytes = case.expert_bytes
        self._offsets = np.zeros(n, np.int64)
        addresses = np.zeros(n, np.uint64)
        self.pool_bytes = {"pinned": 0, "pageable": 0}
        _check_memory(sum(min(pool_bytes, count * case.expert_bytes) for count in (case.direct, case.staged)))
        for kind, pageable, count in (("pinned", False, case.direct), ("pageable", True, case.staged)):
            if count == 0:
                continue
            size = min(pool_bytes, count * case.expert_bytes)
            pool = _pageable(size) if pageable else pinned_empty(size, np.uint8)
            offsets = source_offsets(size, case.expert_bytes, count)
            self._pools[pageable] = pool
            self._offsets[staged == pageable] = offsets
            addresses[staged == pageable] = np.uint64(pool.ctypes.data) + offsets.astype(np.uint64)
            self.pool_bytes[kind] = size
        _fill_all(self._pools.values())
        self.distinct = len(np.unique(addresses))
        self.copies = ExpertCopies(addresses, np.full(n, case.expert_bytes, np.int64))
        if not np.array_equal(self.copies.staged != 0, staged):
            entry = int(np.flatnonzero((self.copies.staged != 0) != staged)[0])
            kind = "staged" if staged[entry] else "direct"
            raise InputError(f"entry {entry} is {kind} in the case; the runtime says otherwise of its memory")

    def source(self, entry: int) -> _Bytes:
        """View what entry `entry` streams: uint8, shape (expert_bytes,)."""
        offset = int(self._offsets[entry])
        return self._pools[bool(self._staged[entry])][offset : offset + self._nbytes]


def _check_memory(nbytes: int) -> None:
    """Refuse pools for which there is no memory, where the system says how much there is: they would be filled."""
    available = _host_memory.available()
    if available is not None and nbytes > available:
        raise InputError(f"pool: both together are {nbytes:,} bytes, and {available:,} bytes of memory are available: "
                         "a smaller pool is wanted, in which sources wrap round")


def _pageable(nbytes: int) -> _Bytes:
    """Memory of the process's own heap, as a loaded checkpoint's: nothing of it is pinned."""
    try:
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    except MemoryError:
        raise MemoryError(f"no host memory for the pageable pool of {nbytes} bytes") from None
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + nbytes]


def _fill_all(pools: Iterable[_Bytes]) -> None:
    """Fill with a reproducible pattern; on several threads, since memory's first touch is slow."""
    parts = [pool[begin : begin + _FILL_PART] for pool in pools for begin in range(0, len(pool), _FILL_PART)]
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1, _FILL_THREADS) or 1) as threads:
        for _ in threads.map(_fill, parts, range(len(parts))):
            pass


def _fill(part: _Bytes, number: int) -> None:
    generator = np.random.Generator(np.random.SFC64((_SEED, number)))
    words = part[: len(part) // 8 * 8].view(np.uint64)
    for begin in range(0, len(words), _FILL_WORDS):
        some = words[begin : begin + _FILL_WORDS]
        some[:] = generator.integers(0, 2**64, len(some), dtype=np.uint64)
    rest = part[len(words) * 8 :]
    rest[:] = generator.integers(0, 256, len(rest), dtype=np.uint8)
