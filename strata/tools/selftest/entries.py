"""Lists of entries for streaming, with the bytes that each slot must hold afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from strata.copies import ExpertCopies
from strata.tools.selftest.sources import Pool

__all__ = ["KINDS", "Entries", "make_entries", "make_kinds"]

#: Of what entries a list is.
KINDS = ("direct", "staged", "mixed")


class Entries:
    """Entries with payloads from two pools, in one list or in several extensions.

    Attributes
    ----------
    kinds : list of bool
        Whether each entry is staged.
    copies : ExpertCopies
        The whole list.
    """

    def __init__(self, kinds: list[bool], segments: list[list[tuple[Pool, int, int, int]]]) -> None:
        self.kinds = kinds
        self._segments = segments  # of each entry: pool, offset in it, bytes, offset in the slot
        flat = [segment for entry in segments for segment in entry]
        starts = np.cumsum([0] + [len(entry) for entry in segments], dtype=np.int64)
        self.copies = ExpertCopies(
            [pool.address + offset for pool, offset, _, _ in flat],
            [nbytes for _, _, nbytes, _ in flat],
            [pool.pinned for pool, _, _, _ in flat],
            offsets=[place for _, _, _, place in flat],
            entry_starts=starts,
        )
        if [bool(staged) for staged in self.copies.staged] != kinds:
            raise AssertionError("the list of entries is not what the fixture wants")
        self._extents = [max((place + n for _, _, n, place in entry if n), default=0) for entry in segments]

    def __len__(self) -> int:
        return len(self.kinds)

    def extent(self, entry: int) -> int:
        """Bytes from the slot's begin to the entry's last."""
        return self._extents[entry]

    @property
    def copy_calls(self) -> dict[str, int]:
        """Copies of the list: one a segment of a direct entry, one a staged entry, none for no bytes."""
        direct = sum(
            n > 0 for kind, entry in zip(self.kinds, self._segments, strict=True) if not kind for _, _, n, _ in entry
        )
        staged = sum(kind and extent > 0 for kind, extent in zip(self.kinds, self._extents, strict=True))
        return {"direct_copy_calls": direct, "staged_copy_calls": staged}

    @property
    def payload(self) -> dict[str, int]:
        """Bytes of the list."""
        totals = {False: 0, True: 0}
        for kind, entry in zip(self.kinds, self._segments, strict=True):
            totals[kind] += sum(n for _, _, n, _ in entry)
        return {"direct_bytes": totals[False], "staged_bytes": totals[True]}

    def first_wrong(self, entry: int, slot: npt.NDArray[np.uint8]) -> int | None:
        """Offset of the first byte in a slot's copy that is not the entry's, or None."""
        for pool, offset, nbytes, place in self._segments[entry]:
            read, wanted = slot[place : place + nbytes], pool.window(offset, nbytes)
            if not np.array_equal(read, wanted):
                return place + int(np.argmax(read != wanted))
        return None

    def parts(self, cuts: Sequence[int]) -> list[list[bool]]:
        """The kinds, cut before each of some entries."""
        edges = [0, *cuts, len(self)]
        return [self.kinds[a:b] for a, b in pairwise(edges)]

    def extensions(self, cuts: Sequence[int]) -> list[ExpertCopies]:
        """The copies, cut in the same way."""
        edges = [0, *cuts, len(self)]
        return [self.copies.take(np.arange(a, b)) for a, b in pairwise(edges)]


def make_kinds(rng: np.random.Generator, kind: str, entries: int) -> list[bool]:
    """Whether each entry of a list is staged: all are (*staged*), none is (*direct*), or runs of 1 to 12 (*mixed*)."""
    if kind != "mixed":
        return [kind == "staged"] * entries
    kinds: list[bool] = []
    staged = bool(rng.integers(2))
    while len(kinds) < entries:
        kinds += [staged] * int(rng.integers(1, 13))
        staged = not staged
    return kinds[:entries]


def make_entries(
    rng: np.random.Generator, kinds: list[bool], pinned: Pool, pageable: Pool, slot_bytes: int, generation: int,
    *, ragged: bool = True,
) -> Entries:
    """Make payloads for a list of kinds.

    Parameters
    ----------
    rng : numpy.random.Generator
        For the shape of ragged entries.
    kinds : list of bool
        Whether each entry is staged.
    pinned, pageable : Pool
    slot_bytes : int
    generation : int
        Lists of different generations have different bytes everywhere.
    ragged : bool
        Entries of all sizes, of up to three segments with gaps between them, some of them empty; else all
        are one segment that fills the slot.
    """
    listed = []
    for index, staged in enumerate(kinds):
        main = pageable if staged else pinned
        if not ragged:
            shape = [(main, slot_bytes, 0)]
        elif not staged and rng.integers(16) == 0:
            shape = []  # nothing to copy, but a slot all the same
        else:
            shape = []
            place = 0
            count = int(rng.integers(1, 4))
            for segment in range(count):
                place += int(rng.integers(0, 40)) * int(segment > 0)
                empty = segment > 0 and rng.integers(12) == 0
                nbytes = 0 if empty else int(rng.integers(1, (slot_bytes - place) // (count - segment) - 80))
                # A staged entry is one with a pageable segment; others of its segments may be pinned.
                pool = pinned if staged and segment and rng.integers(4) == 0 else main
                shape.append((pool, nbytes, place))
                place += nbytes
        listed.append([
            (pool, pool.offset(generation, 3 * index + number, nbytes), nbytes, place)
            for number, (pool, nbytes, place) in enumerate(shape)
        ])
    return Entries(kinds, listed)
