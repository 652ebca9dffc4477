"""Sources: where each entry lies, and what is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import _hip
from strata.tools.replay import InputError, load_case
from strata.tools.replay.pools import Sources, source_offsets

MEMORY_UNREGISTERED, MEMORY_PINNED = 0, 1


@given(st.integers(1, 300), st.integers(0, 900), st.integers(0, 400))
def test_offsets_are_distinct_while_the_pool_has_room(entry_bytes: int, spare: int, count: int) -> None:
    pool_bytes = entry_bytes + spare
    offsets = source_offsets(pool_bytes, entry_bytes, count)
    assert offsets.shape == (count,)
    assert ((offsets >= 0) & (offsets + entry_bytes <= pool_bytes)).all()
    places = pool_bytes - entry_bytes + 1
    assert len(np.unique(offsets)) == min(count, places)
    first_turn = min(count, pool_bytes // entry_bytes)
    assert offsets[:first_turn].tolist() == [i * entry_bytes for i in range(first_turn)]


def test_offsets_of_the_reference_are_distinct_and_aligned() -> None:
    offsets = source_offsets(2**30, 1_382_400, 13_938)
    assert len(np.unique(offsets)) == 13_938
    assert (offsets % 64 == 0).all()


def test_odd_bytes_are_used_only_after_all_aligned_ones() -> None:
    # Entries of 100 bytes in 250: aligned turns begin at 0 and 64, two entries and one.
    assert source_offsets(250, 100, 6).tolist() == [0, 100, 64, 1, 101, 65]


def test_memory_is_what_the_case_says(small: dict[str, Any], case_file: Callable[[Any], str]) -> None:
    case = load_case(case_file(small))
    sources = Sources(case, 10 * 4096)
    assert sources.pool_bytes == {"pinned": 10 * 4096, "pageable": 10 * 4096}
    assert sources.distinct == 74
    assert np.array_equal(sources.copies.staged != 0, case.is_staged())
    for entry, staged in enumerate(case.is_staged()):
        view = sources.source(entry)
        assert view.ctypes.data == int(sources.copies.addresses[entry])
        assert view.nbytes == 4096
        kind, _ = _hip.memory_type(view.ctypes.data)
        assert kind == (MEMORY_UNREGISTERED if staged else MEMORY_PINNED)


def test_contents_differ_between_entries_and_repeat_between_runs(
    small: dict[str, Any], case_file: Callable[[Any], str]
) -> None:
    case = load_case(case_file({**small, "expert_bytes": 61}))
    sources, again = Sources(case, 700), Sources(case, 700)
    contents = [sources.source(entry).tobytes() for entry in range(len(case))]
    assert len(set(contents)) == len(case)
    assert [again.source(entry).tobytes() for entry in range(len(case))] == contents


def test_pool_below_an_entry_is_refused(small: dict[str, Any], case_file: Callable[[Any], str]) -> None:
    with pytest.raises(InputError, match="pool is 4095 bytes; one entry of this case needs 4096"):
        Sources(load_case(case_file(small)), 4095)


def test_only_the_pools_that_are_needed(small: dict[str, Any], case_file: Callable[[Any], str]) -> None:
    case = load_case(case_file({**small, "staged_copies": 0, "counters": {}}))
    assert Sources(case, 2**20).pool_bytes == {"pinned": 45 * 4096, "pageable": 0}
