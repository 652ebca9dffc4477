"""Dropped entries: nothing of them is copied, everything else stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import strata
from strata.runtime.software.checking import checked
from tests.support.engine import Reader
from tests.support.latch import Latch
from tests.support.sources import material

NBYTES = 128


@pytest.mark.parametrize("submission", ["single", "group", "coalesced"])
@pytest.mark.parametrize("kinds", ["d" * 40, "s" * 40, "dddss" * 8])
def test_dropped_entries_are_passed_over(kinds: str, submission: str, schedule: str) -> None:
    each = material(kinds, NBYTES)
    rng = np.random.default_rng(3)
    reader = Reader(len(each), NBYTES)
    with checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=8, host_ring=4, workers=3, settings=strata.BatchSettings(4, 2, 2), share_dependencies=kinds[3] == "s",
        submission=submission,
    ) as streamer:
        for turn in range(4):
            dropped = set(np.flatnonzero(rng.random(40) < 0.5).tolist()) | ({38, 39} if turn else set())
            with streamer.begin(each.copies) as request:
                request.drop(sorted(dropped))
                read = []
                if turn % 2:
                    for span in request.spans(5):
                        assert [e for e in range(span.begin, span.end) if e in dropped] == [
                            span.begin + k for k in np.flatnonzero(~span.wanted)]
                        for slot in span:
                            read.append(slot.entry)
                            reader.read(slot, streamer.compute_stream)
                else:
                    for slot in request:
                        read.append(slot.entry)
                        reader.read(slot, streamer.compute_stream)
            assert read == [e for e in range(40) if e not in dropped]
            assert reader.wrong(each) == 0
            found = request.counters
            assert found.direct_copies + found.staged_copies + found.dropped == 40
            assert found.dropped + found.dropped_late == len(dropped)
            bytes_ = sum(each.payload(entry) for entry in range(40))
            assert found.direct_bytes + found.staged_bytes + found.dropped_bytes == bytes_
            if turn % 2 == 0:
                assert found.used_records + found.used_records_shared == len(read)


@pytest.mark.parametrize("batches", [(1, 1, 1), (8, 4, 4)], ids=str)
def test_what_lies_in_the_ring_is_late_and_the_rest_in_time(batches: tuple[int, int, int]) -> None:
    each = material("d" * 30, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, settings=strata.BatchSettings(*batches)) as streamer:
        with streamer.begin(each.copies) as request:
            assert request.acquire().entry == 0       # its group, of up to 8, is published
            request.abort()
        for ahead in (1, 3, 8):
            with streamer.begin(each.copies, run_ahead=ahead) as request:
                first = request.acquire_span(ahead)
                assert len(first) == ahead
                request.drop(slice(ahead, None))      # beyond what may be submitted while the span is held
                first.release()
                assert [slot.entry for slot in request] == []
            assert (request.counters.dropped, request.counters.dropped_late) == (30 - ahead, 0)
            assert request.counters.direct_copies == ahead
            assert (request.counters.copied_waits, request.counters.used_records) == (1, 1)


def test_late_drops_are_copied_counted_and_passed_over(hold: Callable[[int], Latch]) -> None:
    each = material("d" * 16, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, settings=strata.BatchSettings(8, 1, 1)) as streamer:
        with streamer.begin(each.copies) as request:
            request.acquire().release()               # all of its group was taken by then
            request.drop([3, 5, 5])
            request.drop(5)
            assert [slot.entry for slot in request] == [e for e in range(1, 16) if e not in (3, 5)]
        found = request.counters
        assert (found.dropped, found.dropped_late, found.direct_copies, found.skipped) == (0, 2, 16, 0)
        assert found.used_records == found.copied_waits == 14


def test_bad_entries_drop_nothing(software) -> None:
    each = material("d" * 20, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4) as streamer:
        with streamer.begin(each.copies) as request:
            request.acquire().release()
            held = request.acquire()
            cases = [
                (0, ValueError, "entries has 0"), ([1, 9], ValueError, "entries has 1"), (20, IndexError, "entries has 20"),
                ([12, -1], IndexError, "entries has -1"), (range(15, 25), IndexError, "entries has 24"),
                (range(10**30), IndexError, f"entries has {10**30 - 1}"), (range(2**64, 15, -1), IndexError, "entries has"),
                (slice(None), ValueError, "entries has 0"), (True, TypeError, "entries"), ("9", TypeError, "entries"),
                ([1.5], TypeError, "dtype float64"), (np.ones(19, bool), ValueError, "mask of 19"),
                (np.zeros((2, 2), np.int64), TypeError, "entries"), (None, TypeError, "entries"),
            ]
            for bad, error, words in cases:
                with pytest.raises(error, match=words):
                    request.drop(bad)
            for nothing in ([], range(0), slice(30, 40), np.zeros(20, bool), np.empty(0, np.uint8)):
                request.drop(nothing)
            held.release()
            mask = np.zeros(20, bool)
            mask[10] = True
            for good in (mask, np.array([12, 11], np.uint16), range(14, 12, -1), range(16, 20, 10**30), slice(18, 20)):
                request.drop(good)
            for entry in range(2, 10):
                with request.acquire() as slot:
                    assert slot.entry == entry
            with pytest.raises(strata.StrataError, match="entry 10 was dropped"):
                request.acquire()
            assert [slot.entry for slot in request] == [15, 17]
        with pytest.raises(strata.StrataError, match="finished"):
            request.drop(19)


def test_holes_cannot_be_indexed_and_cost_no_call(software) -> None:
    each = material("d" * 12, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6, run_ahead=1) as streamer:
        with streamer.begin(each.copies) as request:
            first = request.acquire()
            request.drop(range(1, 5))
            first.release()
            span = request.acquire_span(6)
            assert (span.begin, span.end, span.wanted.tolist(), span.nbytes.tolist()) == (1, 2, [False], [0])
            with pytest.raises(strata.StrataError, match="entry 1 was dropped"):
                span[0]
            assert list(span) == []
            span.release()
            request.skip(3)
            with request.acquire() as slot:
                assert slot.entry == 5
            request.drop(slice(6, None))
            request.finish()
        assert (request.counters.used_records, request.counters.copied_waits, request.counters.skipped) == (2, 2, 0)


def test_millions_are_dropped_at_once(software) -> None:
    n = 1_000_000
    source = strata.pinned_empty(64, np.uint8)
    copies = strata.ExpertCopies(np.full(n, source.ctypes.data, np.uint64), np.full(n, 8, np.int64), True)
    with strata.ExpertStreamer(64, gpu_ring=256, run_ahead=128, settings=strata.BatchSettings(32, 1, 1)) as streamer:
        with streamer.begin(copies) as request:
            first = request.acquire()
            request.drop(np.arange(200, n - 1))
            first.release()
            assert [slot.entry for slot in request] == [*range(1, 200), n - 1]
        assert request.counters.dropped == n - 201
