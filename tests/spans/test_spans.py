"""Spans: where they are cut, what they wait for, what they record, what is an error."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import strata
from strata import _hip
from tests.planner.oracle import oracle_ends
from tests.support.engine import Reader
from tests.support.sources import material

NBYTES = 128


def expected_span(
    begin: int, limit: int, ends: Sequence[int], lists: Sequence[int], addresses: Sequence[int], consumed: int
) -> int:
    """The end of the span that begins at an entry, grown one entry at a time by the rules; `begin` where none fits."""
    ring = len(addresses)
    best = begin
    for end in range(begin + 1, begin + limit + 1):
        if end > ends[-1] or any(begin < cut < end for cut in lists) or (end - 1) // ring != begin // ring:
            break
        places = [addresses[entry % ring] for entry in range(begin, end)]
        gaps = {after - before for before, after in itertools.pairwise(places)}
        if len(gaps) > 1 or any(gap < NBYTES for gap in gaps):
            break
        if ends[end - 1] <= consumed + ring:
            best = end
    return best


@pytest.mark.parametrize("batches", [(1, 1, 1), (3, 4, 2), (8, 4, 4)], ids=str)
@pytest.mark.parametrize("kinds", ["d" * 20 + "s" * 21, "dddss" * 6, "DSzZe" * 5])
def test_spans_are_cut_by_the_rules(kinds: str, batches: tuple[int, int, int], schedule: str) -> None:
    gpu_ring, host_ring = 8, 4
    each = material(kinds, NBYTES)
    lists = [11, len(each)]
    ends = oracle_ends([int(j) for j in each.copies.jobs()], gpu_ring, host_ring, *batches, None, lists)
    reader = Reader(len(each), NBYTES)
    settings = strata.BatchSettings(*batches)
    with strata.ExpertStreamer(NBYTES, gpu_ring=gpu_ring, host_ring=host_ring, settings=settings) as streamer:
        stride = streamer.slots[1] - streamer.slots[0]
        for limit in (1, 3, 8):
            request = streamer.begin(each.take(0, 11))
            request.extend(each.take(11, len(each)))
            count = 0
            for span in request.spans(limit):
                assert span.end == expected_span(span.begin, limit, ends, lists, streamer.slots, request.consumed)
                assert (span.slot, span.address) == (span.begin % gpu_ring, streamer.slots[span.begin % gpu_ring])
                assert span.stride == stride
                assert span.nbytes.tolist() == [each.extent(entry) for entry in range(span.begin, span.end)]
                assert span.wanted.all()
                for k, slot in enumerate(span):
                    assert (slot.entry, slot.address) == (span.begin + k, span.address + k * stride)
                    reader.read(slot, streamer.compute_stream)
                count += 1
            request.finish()
            assert reader.wrong(each) == 0
            # One wait and one record, however long the span was.
            assert request.counters.copied_waits == request.counters.used_records == count


def test_held_spans_entries_and_skips_follow_one_another(schedule: str) -> None:
    each = material("ddds" * 8, NBYTES)
    lists, batches = [len(each)], (3, 2, 2)
    ends = oracle_ends([int(j) for j in each.copies.jobs()], 9, 4, *batches, None, lists)
    reader = Reader(len(each), NBYTES)
    rng = np.random.default_rng(5)
    with strata.ExpertStreamer(NBYTES, gpu_ring=9, host_ring=4, settings=strata.BatchSettings(*batches)) as streamer:
        with streamer.begin(each.copies) as request:
            held: list[strata.Slot | strata.Span] = []
            taken = 0
            while taken < len(each) or held:
                what = rng.integers(0, 4)
                consumed = request.consumed
                if held and (what == 0 or taken == len(each)):
                    held.pop(0).release()
                    continue
                if taken == len(each) or ends[taken] > consumed + 9:
                    continue
                if what == 1:
                    slot = request.acquire()
                    reader.read(slot, streamer.compute_stream)
                    held.append(slot)
                    taken += 1
                elif what == 2:
                    request.skip()
                    taken += 1
                else:
                    span = request.acquire_span(int(rng.integers(1, 10)))
                    assert span.begin == taken
                    for slot in span:
                        reader.read(slot, streamer.compute_stream)
                    held.append(span)
                    taken = span.end
        assert reader.wrong(each) == 0


@pytest.mark.parametrize("order", [
    [0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [0, 2, 4, 6, 1, 3, 5, 7], [0, 1, 2, 5, 6, 7, 3, 4],
    [4, 0, 1, 3, 5, 7, 2, 6],
], ids=str)
def test_lent_slots_are_one_span_where_they_lie_at_one_distance(order: list[int], make_stream: Callable[[], int]) -> None:
    each = material("d" * 24, NBYTES)
    memory = _hip.malloc(8 * (NBYTES + 32))
    stream = make_stream()
    slots = [memory + k * (NBYTES + 32) for k in order]
    reader = Reader(len(each), NBYTES)
    try:
        with strata.ExpertStreamer(NBYTES, slots=slots, compute_stream=stream) as streamer:
            with streamer.begin(each.copies) as request:
                for span in request.spans(8):
                    ends = list(range(1, 25))
                    assert span.end == expected_span(span.begin, 8, ends, [24], slots, request.consumed)
                    assert span.stride == (NBYTES if len(span) == 1 else slots[span.slot + 1] - slots[span.slot]) or (
                        len(span) == 1
                    )
                    for slot in span:
                        reader.read(slot, stream)
            assert reader.wrong(each) == 0
    finally:
        _hip.free(memory)


def test_bad_limits_and_releases_change_nothing(software) -> None:
    each = material("d" * 20, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6, settings=strata.BatchSettings(2, 1, 1)) as streamer:
        with streamer.begin(each.copies) as request:
            for bad, error in ((0, ValueError), (-1, ValueError), (7, ValueError), (True, TypeError), (2.0, TypeError)):
                for call in (request.acquire_span, request.spans):
                    with pytest.raises(error, match=f"limit is {bad}"):
                        call(bad)
            first = request.acquire_span(2)
            second = request.acquire_span(3)
            with pytest.raises(strata.StrataError, match="cannot be released before entry 0"):
                second.release()
            with pytest.raises(strata.StrataError, match="part of a span"):
                first[0].release()
            for index in (2, -3):
                with pytest.raises(IndexError, match="the span has 2 entries"):
                    first[index]
            with pytest.raises(TypeError, match="indexed by an integer"):
                first[0:1]
            assert first[-1].entry == 1
            inner = first[1]
            first.release()
            for call in (first.release, first.synchronize, first.array, lambda: first[0], inner.synchronize, inner.array):
                with pytest.raises(strata.StrataError, match="was released before"):
                    call()
            assert (request.consumed, request.released) == (2, 2)
            second.release()
            for slot in request:
                assert slot.entry >= 5
        with pytest.raises(strata.StrataError, match="finished"):
            request.acquire_span(1)
        with pytest.raises(strata.StrataError, match="was released before"):
            second.release()


def test_what_may_be_held_cuts_a_span_and_then_refuses_it() -> None:
    each = material("d" * 20, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, settings=strata.BatchSettings(4, 1, 1)) as streamer:
        with streamer.begin(each.copies) as request:
            spans = [request.acquire_span(3), request.acquire_span(8)]
            assert [(span.begin, span.end) for span in spans] == [(0, 3), (3, 8)]
            with pytest.raises(strata.StrataError, match="entry 8 cannot be published while 8 slots are held"):
                request.acquire_span(8)
            spans[0].release()          # three of the four slots that the next group needs
            with pytest.raises(strata.StrataError, match="entry 8 cannot be published while 5 slots are held"):
                request.acquire_span(8)
            spans[1].release()
            assert len(request.acquire_span(8)) == 8
            request.abort()


def test_contexts_release_and_leave_an_ended_request_alone(software) -> None:
    each = material("d" * 12, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6) as streamer:
        with streamer.begin(each.copies) as request:
            with request.acquire() as slot:
                assert slot.held
            with request.acquire_span(3) as span, pytest.raises(strata.StrataError, match="part of a span"):
                span[0].release()
            assert not slot.held
            assert not span.held
            with pytest.raises(ZeroDivisionError), request.acquire_span(2):
                raise ZeroDivisionError
            assert request.consumed == 6
            with request.acquire() as slot:
                slot.release()
            with request.acquire_span(2) as span:
                request.abort()
        assert request.counters.used_records == 5
        for late in (span.release, lambda: span[0]):
            with pytest.raises(strata.StrataError, match="aborted"):
                late()


def test_a_loop_that_is_left_keeps_its_last_span_until_finish(software) -> None:
    each = material("d" * 12, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6) as streamer, streamer.begin(each.copies) as request:
        for span in request.spans(6):
            if span.end == 12:
                break
        assert span.held
        request.finish()
        assert not span.held
