"""The begin fence: when the copies wait for what was queued before the request, and that the wait holds."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import strata
from tests.support.counting import SlotHistory
from tests.support.engine import Reader, read_rest
from tests.support.sources import Material, material

NBYTES = 192
RING = 4


def run(streamer: strata.ExpertStreamer, each: Material, stream: int, **arguments) -> strata.Counters:
    reader = Reader(len(each), NBYTES)
    with streamer.begin(each.copies, **arguments) as request:
        assert request.compute_stream == stream
        read_rest(request, reader, stream)
    assert reader.wrong(each) == 0
    return request.counters


def test_owned_slots_and_the_same_stream_need_no_fence() -> None:
    each = material("dds" * 4, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        for _ in range(3):
            assert run(streamer, each, streamer.compute_stream).begin_waits == 0
            same = {"compute_stream": streamer.compute_stream}
            assert run(streamer, each, streamer.compute_stream, **same).begin_waits == 0


def test_lent_slots_need_one_each_time_and_are_fresh_behind_it(make_stream, lend_slots) -> None:
    each = material("dds" * 4, NBYTES)
    stream = make_stream()
    slots = lend_slots(RING, NBYTES)
    with strata.ExpertStreamer(NBYTES, slots=slots, compute_stream=stream) as streamer:
        assert streamer.slots == tuple(slots)
        for _ in range(3):
            counters = run(streamer, each, stream)
            expected = SlotHistory(RING).expected(each, streamer.settings, streamer.host_ring, begin_waits=1)
            assert counters.matches(expected) == {}


def test_another_compute_stream_needs_one_for_the_old_one(make_stream) -> None:
    each = material("dds" * 4, NBYTES)
    history = SlotHistory(RING)
    one, other = make_stream(), make_stream()
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, compute_stream=one) as streamer:
        for stream, waits in ((one, 0), (other, 1), (other, 0), (one, 1), (one, 0)):
            counters = run(streamer, each, stream, compute_stream=stream)
            expected = history.expected(each, streamer.settings, streamer.host_ring, begin_waits=waits)
            assert counters.matches(expected) == {}


def test_lent_slots_and_another_stream_need_one_for_each(make_stream, lend_slots) -> None:
    each = material("d" * 9, NBYTES)
    one, other = make_stream(), make_stream()
    with strata.ExpertStreamer(NBYTES, slots=lend_slots(RING, NBYTES), compute_stream=one) as streamer:
        for stream, waits in ((one, 1), (other, 2), (other, 1), (one, 2)):
            assert run(streamer, each, stream, compute_stream=stream).begin_waits == waits


def test_slots_for_one_request_then_the_owned_ones_again(lend_slots) -> None:
    each = material("dds" * 4, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        owned = streamer.slots
        history = SlotHistory(RING)
        for lent in (None, lend_slots(RING, NBYTES), lend_slots(RING, NBYTES), None, None):
            if lent is not None:
                history.forget()
            counters = run(streamer, each, streamer.compute_stream, slots=lent)
            assert streamer.slots == (owned if lent is None else tuple(lent))
            waits = int(lent is not None)
            expected = history.expected(each, streamer.settings, streamer.host_ring, begin_waits=waits)
            assert counters.matches(expected) == {}
            if lent is not None:
                history.forget()  # owned slots are fresh behind the lent ones' fence


def test_the_null_stream_can_be_lent(lend_slots) -> None:
    each = material("ddsS" * 4, NBYTES)
    with strata.ExpertStreamer(NBYTES, slots=lend_slots(RING, NBYTES), compute_stream=0) as streamer:
        assert streamer.compute_stream == 0
        assert run(streamer, each, 0).begin_waits == 1


def test_a_lent_copy_stream_is_used_and_left_alone(make_stream, software) -> None:
    each = material("dds" * 4, NBYTES)
    copies, compute = make_stream(), make_stream()
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, copy_stream=copies, compute_stream=compute) as streamer:
        assert (streamer.copy_stream, streamer.compute_stream) == (copies, compute)
        software.call_log(True)
        assert run(streamer, each, compute).begin_waits == 0
        software.call_log(False)
        streams = {call.stream for call in software.logged_calls() if call.function == "hipMemcpyAsync"}
        assert streams == {copies, compute}  # the copies, and the reader's
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, copy_stream=copies, compute_stream=compute) as streamer:
        with streamer.begin(each.copies) as request:
            read_rest(request, reader, compute)
    assert reader.wrong(each) == 0


def peek(slots: tuple[int, ...], nbytes: int) -> list[bytes]:
    """What lies in the slots now, without asking the device."""
    return [ctypes.string_at(address, nbytes) for address in slots]


@pytest.mark.parametrize("kinds", ["d" * 7, "s" * 7, "dsd" * 3])
@pytest.mark.parametrize("case", ["same stream", "lent slots", "another stream", "lent slots, another stream"])
def test_kernels_of_the_last_request_read_on_while_the_next_is_issued(
    kinds: str, case: str, make_stream, lend_slots, hold
) -> None:
    """The readers of the first request are held back; the second one's copies must wait for them."""
    first = material("d" * RING, NBYTES, seed=1)
    second = material(kinds, NBYTES, seed=2)
    readers = [Reader(len(each), NBYTES) for each in (first, second)]
    one, other = make_stream(), make_stream()
    later = other if "another" in case else one
    lent = {"slots": lend_slots(RING, NBYTES)} if "lent" in case else {"gpu_ring": RING}
    with strata.ExpertStreamer(NBYTES, host_ring=RING, compute_stream=one, **lent) as streamer:
        with streamer.begin(first.copies) as request:
            latch = hold(one)
            read_rest(request, readers[0], one)
        # No stream was synchronized: the reads are queued behind the hold.
        before = peek(streamer.slots, NBYTES - 6)
        with latch, streamer.begin(second.copies, compute_stream=later) as request:
            for _ in range(RING):
                slot = request.acquire()  # published: all its calls are submitted
                readers[1].read(slot, later)
                slot.release()
            assert peek(streamer.slots, NBYTES - 6) == before
            latch.release()
            read_rest(request, readers[1], later)
        assert readers[0].wrong(first) == 0
        assert readers[1].wrong(second) == 0


def test_lent_slots_that_the_engine_itself_still_reads(make_stream, lend_slots, hold) -> None:
    """Work that strata knows nothing of: queued on the compute stream before the first request."""
    from strata import _hip

    each = material("ddsd", NBYTES)
    stream = make_stream()
    slots = lend_slots(RING, NBYTES)
    own = strata.pinned_empty((RING, NBYTES), np.uint8)
    own[...] = 0
    for address in slots:
        _hip.memset_async(address, 0x5C, NBYTES, stream)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, slots=slots, compute_stream=stream) as streamer:
        latch = hold(stream)
        for k, address in enumerate(slots):
            _hip.memcpy_d2h_async(own[k].ctypes.data, address, NBYTES, stream)
        with latch, streamer.begin(each.copies) as request:
            for _ in range(RING):
                slot = request.acquire()
                reader.read(slot, stream)
                slot.release()
            latch.release()
        assert reader.wrong(each) == 0
    assert (own == 0x5C).all()
