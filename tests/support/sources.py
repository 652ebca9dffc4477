"""Lists of entries of every kind, with the bytes that their slots must show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import strata

#: What a letter stands for in a list of kinds.
KINDS = {
    "d": "direct: one segment in pinned memory",
    "D": "direct: three segments in pinned memory, out of order, with gaps between them",
    "s": "staged: one segment in pageable memory",
    "S": "staged: three segments, pinned and pageable, out of order, with gaps between them",
    "z": "one pinned segment of zero bytes",
    "Z": "one pageable segment of zero bytes",
    "e": "no segments",
}

GAP = 13


@dataclass
class Material:
    """A list of copies, its sources, and what each entry's slot must hold.

    ``segments[i]`` are the (offset, bytes) of entry i, empty ones left out.
    """

    copies: strata.ExpertCopies
    kinds: str
    segments: list[list[tuple[int, npt.NDArray[np.uint8]]]]
    pools: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

    def __len__(self) -> int:
        return len(self.kinds)

    def wrong(self, entry: int, image: npt.NDArray[np.uint8]) -> int:
        """Count the payload bytes of an entry that differ in a slot's image."""
        return sum(
            int(np.count_nonzero(image[offset : offset + data.size] != data))
            for offset, data in self.segments[entry]
        )

    def extent(self, entry: int) -> int:
        """Bytes from the slot's start to the end of the entry's last byte."""
        return max((offset + data.size for offset, data in self.segments[entry]), default=0)

    def payload(self, entry: int) -> int:
        """Bytes of the entry's segments."""
        return sum(data.size for _, data in self.segments[entry])

    def take(self, begin: int, end: int) -> strata.ExpertCopies:
        """Entries ``[begin, end)`` as a list of their own."""
        return self.copies.take(np.arange(begin, end))


def material(kinds: str, nbytes: int = 256, seed: int = 0) -> Material:
    """Make entries of the given kinds, of at most `nbytes` from slot start to end, all with other bytes.

    Sizes differ from entry to entry by a few bytes, and no address is aligned on purpose.
    """
    unknown = set(kinds) - set(KINDS)
    assert not unknown, unknown
    rng = np.random.default_rng([seed, len(kinds), nbytes])
    pinned = strata.pinned_empty((len(kinds), nbytes), np.uint8)
    pageable = np.empty((len(kinds), nbytes), np.uint8)
    for pool in (pinned, pageable):
        pool[...] = rng.integers(0, 256, pool.shape, dtype=np.uint8)
    addresses: list[int] = []
    sizes: list[int] = []
    is_pinned: list[bool] = []
    offsets: list[int] = []
    starts: list[int] = [0]
    segments: list[list[tuple[int, npt.NDArray[np.uint8]]]] = []
    for entry, kind in enumerate(kinds):
        rows = []
        whole = nbytes - entry % 7
        if kind in "ds":
            rows = [(pinned if kind == "d" else pageable, 0, whole, 0)]
        elif kind in "DS":
            third = (whole - 2 * GAP) // 3
            pools = (pinned, pinned, pinned) if kind == "D" else (pageable, pinned, pageable)
            # (pool, where in the source, bytes, where in the slot): the slot's order is the reverse.
            rows = [
                (pools[0], 0, third, 2 * (third + GAP)),
                (pools[1], third, third, third + GAP),
                (pools[2], 2 * third, third - 1, 1),
            ]
        elif kind in "zZ":
            rows = [(pinned if kind == "z" else pageable, 5, 0, 3)]
        shown = []
        for pool, begin, size, offset in rows:
            data = pool[entry, begin : begin + size]
            addresses.append(pool.ctypes.data + entry * nbytes + begin)
            sizes.append(size)
            is_pinned.append(pool is pinned)
            offsets.append(offset)
            if size:
                shown.append((offset, data))
        segments.append(shown)
        starts.append(len(addresses))
    copies = strata.ExpertCopies(
        np.array(addresses, np.uint64),
        np.array(sizes, np.int64),
        np.array(is_pinned, np.bool_),
        offsets=np.array(offsets, np.int64),
        entry_starts=np.array(starts, np.int64),
    )
    assert len(copies) == len(kinds)
    return Material(copies, kinds, segments, (pinned, pageable))
