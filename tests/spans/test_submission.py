"""How copies are submitted: the same bytes, places and dependencies, fewer calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import strata
from strata.runtime.software.checking import checked
from tests.support.counting import SlotHistory
from tests.support.engine import Reader, read_rest
from tests.support.sources import material

NBYTES = 256


@pytest.mark.parametrize("submission", ["group", "coalesced"])
@pytest.mark.parametrize("batches", [(1, 1, 1), (5, 2, 3)], ids=str)
@pytest.mark.parametrize("kinds", ["d" * 29 + "s" * 23, "dDsSzZe" * 4])
def test_dependencies_and_bytes_are_those_of_single_copies(
    kinds: str, batches: tuple[int, int, int], submission: str, schedule: str
) -> None:
    each = material(kinds, NBYTES)
    settings = strata.BatchSettings(*batches)
    reader = Reader(len(each), NBYTES)
    with checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=8, host_ring=4, workers=2, settings=settings, submission=submission
    ) as streamer:
        history = SlotHistory(8)
        for _ in range(2):
            with streamer.begin(each.copies) as request:
                read_rest(request, reader, streamer.compute_stream)
            assert reader.wrong(each) == 0
            assert request.counters.matches(history.expected(each, streamer.settings, 4)) == {}


def test_one_batch_call_a_staged_group_but_for_pageable_buffers(software, pin_at_most: Callable[[int], None]) -> None:
    each = material("s" * 24, NBYTES)
    settings = strata.BatchSettings(1, 2, 4)
    for most, calls in ((2**20, {"hipMemcpyBatchAsync": 6, "hipMemcpyAsync": 0}),
                        (2 * NBYTES, {"hipMemcpyBatchAsync": 6, "hipMemcpyAsync": 12})):
        pin_at_most(most)
        software.reset_calls()
        with strata.ExpertStreamer(
            NBYTES, gpu_ring=8, host_ring=4, settings=settings, submission="group"
        ) as streamer, streamer.begin(each.copies) as request:
            for _slot in request:
                pass
            request.finish()
            found = {name: software.calls().get(name, 0) for name in calls}
        assert found == calls
        assert request.counters.staged_copy_calls == 24


def test_neighbours_become_one_copy_within_a_region_and_an_allocation() -> None:
    pool = strata.pinned_empty((64, NBYTES), np.uint8)
    pool[:] = np.arange(64, dtype=np.uint8)[:, None]
    addresses = pool.ctypes.data + NBYTES * np.arange(64, dtype=np.uint64)
    size = np.full(64, NBYTES, np.int64)

    def calls(order: np.ndarray, regions: np.ndarray | None, drop: tuple[int, ...] = (), slot_bytes: int = NBYTES) -> int:
        copies = strata.ExpertCopies(
            addresses[order], size, True, regions=None if regions is None else regions[order]
        )
        with strata.ExpertStreamer(
            slot_bytes, gpu_ring=64, settings=strata.BatchSettings(64, 1, 1), submission="coalesced"
        ) as streamer:
            assert streamer.settings.copy_batch == 64
            with streamer.begin(copies, run_ahead=64) as request:
                request.drop(list(drop))
                for span in request.spans(64):
                    span.synchronize()
                    image = span.array()
                    for k in np.flatnonzero(span.wanted):
                        assert (image[k, :NBYTES] == order[span.begin + k]).all()
        return request.counters.direct_copy_calls

    forward = np.arange(64)
    one = np.zeros(64, np.int64)
    assert calls(forward, one) == 1
    assert calls(forward, None) == 64                       # nobody said where an allocation ends
    assert calls(forward, np.full(64, -1)) == 64
    assert calls(forward, forward // 16) == 4               # four regions side by side
    assert calls(forward[::-1].copy(), one) == 64           # the sources do not follow on
    assert calls(forward, one, slot_bytes=NBYTES + 1) == 64  # the slots do not


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_what_is_left_of_a_group_is_one_batch_call(software, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    # gate_up and down lie in two regions: nothing follows on in both source and slot.
    each = 64
    pools = [strata.pinned_empty((each, NBYTES), np.uint8) for _ in range(2)]
    for k, pool in enumerate(pools):
        pool[:] = (2 * np.arange(each, dtype=np.uint8) + k)[:, None]
    addresses = np.stack([pool.ctypes.data + NBYTES * np.arange(each, dtype=np.uint64) for pool in pools], 1).ravel()
    copies = strata.ExpertCopies(
        addresses, np.full(2 * each, NBYTES, np.int64), True, offsets=np.tile([0, NBYTES], each),
        entry_starts=2 * np.arange(each + 1), regions=np.tile([0, 1], each))
    for served in (2**64 - 1, 0):
        software.configure(batch_calls=served)
        software.reset_calls()
        try:
            with strata.ExpertStreamer(
                2 * NBYTES, gpu_ring=64, settings=strata.BatchSettings(batch, 1, 1), submission="coalesced"
            ) as streamer, streamer.begin(copies) as request:
                for span in request.spans(64):
                    span.synchronize()
                    wanted = 2 * np.arange(span.begin, span.end)[:, None] + [0, 1]
                    assert (span.array() == np.repeat(wanted, NBYTES, 1)).all()
                copied = software.calls().get("hipMemcpyAsync", 0)
        finally:
            software.configure(batch_calls=2**64 - 1)
        found = request.counters
        assert (found.direct_copies, found.direct_copy_calls) == (each, 2 * each)
        groups = each // batch
        assert (found.batch_calls, found.refused_batches, copied) == (
            (groups, 0, 0) if served else (0, groups, 2 * each))


def test_lent_slots_are_taken_as_one_allocation_each(
    lend_slots: Callable[..., list[int]], make_stream: Callable[[], int]
) -> None:
    pool = strata.pinned_empty((16, NBYTES), np.uint8)
    memory = min(lend_slots(16, NBYTES))
    slots = [memory + k * NBYTES for k in range(16)]
    copies = strata.ExpertCopies(
        pool.ctypes.data + NBYTES // 2 * np.arange(32, dtype=np.uint64), np.full(32, NBYTES // 2, np.int64), True,
        entry_starts=2 * np.arange(17), regions=np.zeros(32, np.int64),
    )
    with strata.ExpertStreamer(
        NBYTES, slots=slots, compute_stream=make_stream(), settings=strata.BatchSettings(16, 1, 1), submission="coalesced"
    ) as streamer, streamer.begin(copies) as request:
        for _slot in request:
            pass
    assert request.counters.direct_copy_calls == 16         # the two segments of an entry are neighbours in its slot


def test_nothing_is_merged_across_a_dropped_entry(software) -> None:
    pool = strata.pinned_empty((24, NBYTES), np.uint8)
    copies = strata.ExpertCopies(
        pool.ctypes.data + NBYTES * np.arange(24, dtype=np.uint64), np.full(24, NBYTES, np.int64), True,
        regions=np.zeros(24, np.int64),
    )
    with strata.ExpertStreamer(
        NBYTES, gpu_ring=8, settings=strata.BatchSettings(8, 1, 1), submission="coalesced"
    ) as streamer, streamer.begin(copies) as request:
        first = request.acquire_span(8)
        request.drop([10, 11, 13])
        first.release()
        for _span in request.spans(8):
            pass
    assert (request.counters.direct_copy_calls, request.counters.dropped) == (1 + 3 + 1, 3)
