"""A slot in the engine's hands: its array, its context, and what a loop over the request holds."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import strata
from tests.support.engine import stream_all
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

NBYTES = 96
RING = 4


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


# --- what array() shows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", ["d" * 64, "dsD" * 11])
def test_an_array_shows_the_bytes_without_further_waiting(kinds: str, schedule) -> None:
    each = material(kinds, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        for k, slot in enumerate(request):
            shown = slot.array() if k % 2 else np.asarray(slot)
            assert (shown.dtype, shown.shape) == (np.uint8, (each.extent(slot.entry),))
            assert each.wrong(slot.entry, shown) == 0


def test_an_engine_that_knows_need_not_wait(hold) -> None:
    each = material("d" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        slot = request.acquire()
        slot.synchronize()
        slot.release()
        with hold(streamer.copy_stream):
            request.extend(each.copies)
            request.skip(2)
            slot = request.acquire()
            unread = slot.array(wait=False)     # returns although the copy is held back
        assert each.wrong(0, slot.array()) == 0
        assert unread.ctypes.data == slot.address
        slot.release()
        request.skip(2)


def test_a_wait_for_an_array_ends_as_others_do(hold) -> None:
    each = material("d" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, stall_timeout=1.0) as streamer:
        with hold(streamer.copy_stream) as latch:
            request = streamer.begin(each.copies)
            slot = request.acquire()
            for look in (slot.array, lambda: np.asarray(slot)):
                with pytest.raises(strata.StallError, match="the bytes of entry 0 have not arrived"):
                    look()
            request.cancel()
            latch.release()
            with pytest.raises(strata.RequestAborted):
                slot.array()


@pytest.mark.parametrize("look", [lambda s: s.array(), lambda s: s.array(wait=False), np.asarray, np.array])
def test_a_slot_that_is_not_held_has_no_array(look) -> None:
    each = material("d" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(each.copies)
        released, held = request.acquire(), request.acquire()
        released.release()
        with pytest.raises(strata.StrataError, match=r"slot 0 \(entry 0\) was released before"):
            look(released)
        request.abort()
        with pytest.raises(strata.RequestAborted, match="aborted"):
            look(held)


def test_wait_is_named() -> None:
    each = material("d", NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        with request.acquire() as slot, pytest.raises(TypeError, match="wait is 3"):
            slot.array(wait=3)


@pytest.mark.parametrize("end", ["close", "drop", "abort and close"])
@pytest.mark.parametrize("look", [lambda s: s.array(), np.asarray, lambda s: s.array()[3:].view(np.uint8)])
def test_an_array_outlives_its_streamer(end: str, look, software) -> None:
    """Its memory is freed with the last array, and not before."""
    each = material("d" * RING, NBYTES)
    before = software.live()["device_bytes"]
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
    request = streamer.begin(each.copies)
    slots = [request.acquire() for _ in range(RING)]
    arrays = [look(slot) for slot in slots]
    shown = [np.array(array) for array in arrays]
    while slots and not end.startswith("abort"):
        slots.pop(0).release()
    if end.startswith("abort"):
        request.abort()
    else:
        request.finish()
    if end != "drop":
        streamer.close()
    del streamer, request, slots
    for array, copy in zip(arrays, shown, strict=True):
        assert np.array_equal(array, copy)
        array[...] = 1                      # it may be written, too
    del arrays[1:]
    assert software.live()["device_bytes"] > before
    del array, arrays
    assert software.live()["device_bytes"] == before


def test_without_arrays_close_frees_the_slots(software) -> None:
    each = material("d" * RING, NBYTES)
    before = software.live()["device_bytes"]
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
    with streamer.begin(each.copies) as request:
        for slot in request:
            slot.array()
    streamer.close()                            # the slot is still there, its array is not
    assert software.live()["device_bytes"] == before
    assert slot.entry == RING - 1


def test_elsewhere_it_is_refused_by_name() -> None:
    """Under a runtime whose memory the host cannot read: not an array of one object."""
    script = """
    import numpy as np
    import strata
    from strata import _hip
    from strata.runtime import software
    _hip.load("rocm", str(software.library_path()))     # as far as strata can see
    rows = strata.pinned_empty((4, 64), np.uint8)
    copies = strata.ExpertCopies.from_buffers(list(rows))
    with strata.ExpertStreamer(64, gpu_ring=4) as streamer, streamer.begin(copies) as request:
        slot = request.acquire()
        for look in (slot.array, lambda: np.asarray(slot), lambda: np.array([1]) + slot):
            try:
                print(look())
            except strata.StrataError as problem:
                print(problem)
        print(hasattr(slot, "__array_interface__"), slot.__cuda_array_interface__["shape"])
        request.abort()
    """
    out = ended_well(run_script(script, prologue=""))
    lies = "slot 0 (entry 0) lies in device memory, which the host cannot address: use __cuda_array_interface__, or copy it"
    assert out == [
        "array() needs the software runtime; on a device use __cuda_array_interface__",
        f"{lies} to the host",
        f"{lies} to the host",
        "False (64,)",
    ]


# --- contexts ----------------------------------------------------------------------------------------------------


def test_a_slots_context_releases_it() -> None:
    each = material("ds" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        with request.acquire() as slot:
            assert (slot.entry, request.consumed) == (0, 0)
        assert request.consumed == 1
        with request.acquire() as slot:
            slot.release()                      # by hand: nothing is left to do
        with pytest.raises(ZeroDivisionError), request.acquire() as slot:
            raise ZeroDivisionError             # an engine that goes on has its slot given back
        assert request.consumed == 3
        for slot in request:
            with slot:
                pass
        assert request.consumed == 6
        with pytest.raises(strata.StrataError, match="was released before"), slot:
            pass


def test_a_slots_context_after_the_requests_end() -> None:
    each = material("ds" * 3, NBYTES)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
    request = streamer.begin(each.copies)
    with request.acquire():
        request.abort()
    request = streamer.begin(each.copies)
    with request.acquire():
        streamer.close()


def test_contexts_out_of_order_say_so() -> None:
    each = material("ds" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(each.copies)
        first = request.acquire()
        with pytest.raises(strata.StrataError, match="entry 1 cannot be released before entry 0"), request.acquire():
            pass
        first.release()
        request.abort()


@pytest.mark.parametrize("taken", [0, 1, 8, 15])
def test_entries_that_nobody_took_are_told(taken: int, caplog) -> None:
    each = material("d" * 16, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8) as streamer:
        with caplog.at_level(logging.WARNING, "strata"), streamer.begin(each.copies) as request:
            for _ in range(taken):
                request.acquire().release()
        assert [(r.name, r.levelname) for r in caplog.records] == [("strata", "WARNING")]
        assert f"left with {taken} of 16 entries consumed" in caplog.text


@pytest.mark.parametrize("reason", ["exception", "abort", "complete", "cancel", "empty", "close"])
def test_a_reason_or_a_complete_list_is_not_told(reason: str, caplog) -> None:
    each = material("d" * 6, NBYTES)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=8)
    with caplog.at_level(logging.DEBUG, "strata"):
        try:
            with streamer.begin(None if reason == "empty" else each.copies) as request:
                if reason == "exception":
                    raise KeyError
                if reason == "complete":
                    request.skip(6)
                if reason == "close":
                    streamer.close()
                elif reason in ("abort", "cancel"):
                    getattr(request, reason)()
        except (KeyError, strata.RequestAborted):
            assert reason in ("exception", "cancel")
    assert caplog.records == []
    streamer.close()


# --- what a loop holds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["slot", "no slot", "a released slot"])
def test_a_dropped_request_ends_at_once(left: str, no_collector, recwarn) -> None:
    """No cycle: neither collector nor close() is needed for the next begin()."""
    each = material("ds" * 8, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(each.copies)
        gone = weakref.ref(request)
        for slot in request:
            if left == "a released slot":
                slot.release()
            if slot.entry == 2:
                break
        if left == "no slot":
            del slot
            del request
        elif left == "slot":
            del request, slot
        else:
            del request                         # what a released slot says of itself needs no request
            assert "released" in repr(slot)
        assert gone() is None
        assert [w.category for w in recwarn.list] == [ResourceWarning]
        stream_all(streamer, each)


def test_a_held_slot_keeps_its_request(no_collector, recwarn) -> None:
    each = material("ds" * 8, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        slot = next(streamer.begin(each.copies))
        with pytest.raises(strata.StrataError, match="still running"):
            streamer.begin(each.copies)
        slot.synchronize()
        del slot
        stream_all(streamer, each)


def test_a_loop_whose_slots_nobody_keeps(no_collector) -> None:
    """Each turn, and finish(), gives the last one back all the same."""
    each = material("ds" * 8, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        for k in range(16):
            assert next(request).entry == k
            assert request.consumed == k
        request.finish()
        assert request.consumed == 16


def test_a_loop_and_its_slot_agree_on_who_released() -> None:
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        first = next(request)
        second = next(request)
        assert ("released" in repr(first), "held" in repr(second)) == (True, True)
        with pytest.raises(strata.StrataError, match="was released before"):
            first.release()
        second.release()
        assert next(request).entry == 2
        assert request.consumed == 2
        request.abort()
