"""Shared dependencies: exactly what stream order gives is not asked for."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import pytest

import strata
from strata.runtime.software.checking import checked
from strata.tools.replay.sharing import shared_counts
from tests.support.engine import Reader, read_rest
from tests.support.sources import material

NBYTES = 128
CASE = json.loads((resources.files("strata") / "data" / "reference_request.json").read_text())


def test_the_reference_request_makes_9348_dependency_calls() -> None:
    direct, staged = CASE["direct_pinned_copies"], CASE["staged_copies"]
    each = material("d" * 8 + "s" * 8, 64)
    picked = np.concatenate([np.arange(direct) % 8, 8 + np.arange(staged) % 8])
    copies = each.copies.take(picked)
    settings = strata.BatchSettings(8, 16, 16)
    with strata.ExpertStreamer(
        64, gpu_ring=96, host_ring=16, workers=3, settings=settings, share_dependencies=True
    ) as streamer:
        for _ in range(2):          # the first one warms the ring: every slot was used by such a request
            with streamer.begin(copies) as request:
                for _slot in request:
                    pass
    counters = request.counters
    found = {
        "copied records": counters.direct_copied_records + counters.staged_copied_records,
        "copied waits": counters.copied_waits,
        "reuse waits": counters.direct_reuse_waits + counters.staged_reuse_waits,
        "used records": counters.used_records,
        "dma_done records": counters.dma_done_records,
        "host waits": counters.host_reuse_waits,
    }
    assert found == {
        "copied records": 2160, "copied waits": 2160, "reuse waits": 2153, "used records": 2160, "dma_done records": 358,
        "host waits": 357,
    }
    assert sum(found.values()) + counters.begin_waits + counters.fences == 9348
    assert counters.copied_waits + counters.copied_waits_shared == len(copies)
    assert counters.used_records + counters.used_records_shared == len(copies)
    assert counters.host_reuse_waits + counters.host_reuse_waits_shared == staged - 16
    plan = strata.CopyPlan(copies.jobs(), gpu_ring=96, host_ring=16, settings=settings)
    assert counters.matches(shared_counts(plan, copies.jobs())) == {}


@pytest.mark.parametrize("batches", [(1, 1, 1), (4, 3, 2), (3, 2, 4)], ids=str)
@pytest.mark.parametrize("kinds", ["d" * 29, "s" * 23, "dddss" * 6])
def test_bytes_and_order_with_sharing(kinds: str, batches: tuple[int, int, int], schedule: str) -> None:
    each = material(kinds, NBYTES)
    reader = Reader(len(each), NBYTES)
    with checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=7, host_ring=4, workers=2, settings=strata.BatchSettings(*batches), share_dependencies=True
    ) as streamer:
        for turn in range(3):
            with streamer.begin(each.copies) as request:
                if turn == 1:
                    for span in request.spans(5):
                        for slot in span:
                            reader.read(slot, streamer.compute_stream)
                else:
                    read_rest_released(request, reader, streamer.compute_stream)
            assert reader.wrong(each) == 0
            assert request.released == request.consumed == len(each)


def read_rest_released(request: strata.Request, reader: Reader, stream: int) -> None:
    """Entry by entry; `released` moves at once, `consumed` by groups."""
    for entry in range(len(request)):
        slot = request.acquire()
        reader.read(slot, stream)
        slot.release()
        assert request.released == entry + 1
        assert request.consumed <= request.released


def test_released_runs_ahead_until_the_group_of_the_oldest_is_complete(software) -> None:
    each = material("d" * 16, NBYTES)
    with strata.ExpertStreamer(
        NBYTES, gpu_ring=8, settings=strata.BatchSettings(4, 1, 1), share_dependencies=True
    ) as streamer, streamer.begin(each.copies) as request:
        seen = []
        for _ in range(6):
            request.acquire().release()
            seen.append((request.released, request.consumed))
        assert seen == [(1, 0), (2, 0), (3, 0), (4, 4), (5, 4), (6, 4)]
        request.flush()
        assert (request.released, request.consumed) == (6, 6)
        request.flush()
        assert request.counters.used_records == 2
        assert request.counters.used_records_shared == 4
        request.skip(2)         # the group's end again
        assert (request.released, request.consumed) == (8, 8)
        request.acquire().release()
        request.abort()         # what is pending has its record
        assert request.counters.used_records == 4


def test_pending_is_recorded_before_an_acquire_blocks_or_refuses(software) -> None:
    each = material("d" * 12, NBYTES)
    with strata.ExpertStreamer(
        NBYTES, gpu_ring=4, settings=strata.BatchSettings(3, 1, 1), share_dependencies=True
    ) as streamer, streamer.begin(each.copies) as request:
        # Groups are [0, 3), [3, 4), [4, 7), [7, 8), ...
        slots = [request.acquire() for _ in range(4)]
        slots[0].release()
        assert (request.released, request.consumed) == (1, 0)
        with pytest.raises(strata.StrataError, match="entry 4 cannot be published while 3 slots are held"):
            request.acquire()
        assert request.consumed == 1         # recorded before it says so
        for slot in slots[1:3]:
            slot.release()
        assert request.acquire().entry == 4  # its group ends at 7 = 3 + 4
        request.abort()


def test_what_an_aborted_request_left_pending_protects_its_slots(schedule: str) -> None:
    each = material("d" * 24, NBYTES)
    reader = Reader(len(each), NBYTES)
    with checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=8, settings=strata.BatchSettings(4, 1, 1), share_dependencies=True
    ) as streamer:
        for held in (0, 1, 2):
            request = streamer.begin(each.copies)
            for _ in range(3):
                slot = request.acquire()
                reader.read(slot, streamer.compute_stream)
                slot.release()
            kept = [request.acquire() for _ in range(held)]
            for slot in kept:
                reader.read(slot, streamer.compute_stream)
            request.abort()
            assert request.counters.used_records == 1
            with streamer.begin(each.copies) as request:
                read_rest(request, Reader(len(each), NBYTES), streamer.compute_stream)
            assert reader.wrong(each) == 0
