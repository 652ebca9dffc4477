"""What the random requests stream: entries of every kind, in memory full of random bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np

import strata
from tests.model import contract

NBYTES = 64
ROWS = 1024

#: How an entry lies in memory: its segments' sizes. A whole one's size varies.
SHAPES = {"whole": (0,), "segments": (9, 10, 11), "empty segment": (17, 0), "no bytes": (0, 0), "nothing": ()}


@dataclass(frozen=True)
class Entry:
    """Segments of an entry: (pinned, place in its pool, bytes, offset in the slot)."""

    segments: tuple[tuple[bool, int, int, int], ...]

    @property
    def item(self) -> contract.Item:
        """What the model knows of it."""
        full = [segment for segment in self.segments if segment[2]]
        return contract.Item(tuple(n for _, _, n, _ in full), any(not pinned for pinned, _, _, _ in full))

    @property
    def extent(self) -> int:
        """Bytes from the slot's start to its last byte's end."""
        return max((offset + n for _, _, n, offset in self.segments if n), default=0)


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """A list in runs of one kind, as checkpoints are: pinned, pageable, or both in one entry."""
    found: list[Entry] = []
    for _ in range(draw(st.integers(1, 4))):
        pinned = draw(st.sampled_from([(True,), (True,), (False,), (False,), (True, False), (False, True)]))
        shape = draw(st.sampled_from(["whole"] * 4 + list(SHAPES)))
        place = draw(st.integers(0, 2**15))
        for entry in range(draw(st.integers(1, 12))):
            segments, offset = [], 1
            for k, size in enumerate(SHAPES[shape]):
                if shape == "whole":
                    size, offset = NBYTES - (place + entry) % 11, 0
                segments.append((pinned[k % len(pinned)], place + 331 * entry + 97 * k, size, offset))
                offset += size + 7
            found.append(Entry(tuple(reversed(segments))))
    return found


class Sources:
    """Pinned and pageable memory full of random bytes, and rows to which slots are read back."""

    def __init__(self) -> None:
        rng = np.random.default_rng(20260101)
        self.pinned = strata.pinned_empty(2**16, np.uint8)
        self.pageable = np.empty(2**16, np.uint8)
        for pool in (self.pinned, self.pageable):
            pool[:] = rng.integers(0, 256, pool.size, dtype=np.uint8)
        self.images = strata.pinned_empty((ROWS, NBYTES), np.uint8)
        self.images[:] = 0xA5

    def copies(self, listed: Sequence[Entry]) -> strata.ExpertCopies:
        """The entries as strata takes them."""
        pools = {True: self.pinned.ctypes.data, False: self.pageable.ctypes.data}
        rows = [segment for entry in listed for segment in entry.segments]
        starts = np.cumsum([0, *(len(entry.segments) for entry in listed)])
        return strata.ExpertCopies(
            np.array([pools[pinned] + place for pinned, place, _, _ in rows], np.uint64),
            np.array([n for _, _, n, _ in rows], np.int64),
            np.array([pinned for pinned, _, _, _ in rows], np.bool_),
            offsets=np.array([offset for _, _, _, offset in rows], np.int64),
            entry_starts=np.array(starts, np.int64),
        )

    def row(self, row: int) -> int:
        """Address of a row to read a slot back to."""
        return int(self.images[row].ctypes.data)

    def shows(self, row: int, entry: Entry) -> bool:
        """Whether a row shows an entry's bytes."""
        image = self.images[row]
        return all(
            bool((image[offset : offset + n] == (self.pinned if pinned else self.pageable)[place : place + n]).all())
            for pinned, place, n, offset in entry.segments
        )
