"""A compute stream lent to one request: whose it is, and that nothing touches it once the request has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import strata
from strata import _hip
from tests.support.engine import Reader, read_rest, stream_all
from tests.support.scripts import ended_well, run_script
from tests.support.sources import Material, material

NBYTES = 96
RING = 4


def passing(streamer: strata.ExpertStreamer, each: Material, stream: int | None = None, **lent) -> strata.Counters:
    """One request, every byte checked, on a stream of its own where one is given."""
    reader = Reader(len(each), NBYTES)
    with streamer.begin(each.copies, compute_stream=stream, **lent) as request:
        read_rest(request, reader, request.compute_stream)
    assert reader.wrong(each) == 0
    return request.counters


def test_the_streamers_stream_never_changes(make_stream) -> None:
    """What an engine reads before begin() is what a request without a stream of its own runs on."""
    each = material("dds" * 3, NBYTES)
    other = make_stream()
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        own = streamer.compute_stream
        with streamer.begin(each.copies, compute_stream=other) as request:
            assert (streamer.compute_stream, request.compute_stream) == (own, other)
            request.skip(len(each))
        assert (streamer.compute_stream, request.compute_stream) == (own, other)
        with streamer.begin(each.copies) as following:
            assert (streamer.compute_stream, following.compute_stream) == (own, own)
            following.skip(len(each))
        streamer.begin(each.copies, compute_stream=other).abort()
        assert streamer.compute_stream == own
    assert (request.compute_stream, following.compute_stream) == (other, own)  # after close, too


@pytest.mark.parametrize("end", ["finish", "abort", "held", "exception", "cancel", "nothing listed"])
@pytest.mark.parametrize("lend", ["owned slots", "lent slots"])
def test_a_stream_that_is_gone_after_its_request(end: str, lend: str, schedule, lend_slots, make_stream, software) -> None:
    """No call names the stream after the end, and one wait of the copy stream stands for what was queued there."""
    each = material("dds" * 4, NBYTES)
    own = make_stream()
    lent = {"slots": lend_slots(RING, NBYTES)} if lend == "lent slots" else {"gpu_ring": RING}
    with strata.ExpertStreamer(NBYTES, compute_stream=own, **lent) as streamer:
        for _ in range(2):
            stream = _hip.create_stream()
            if end == "finish":
                passing(streamer, each, stream)
            elif end == "nothing listed":
                streamer.begin(compute_stream=stream).finish()
            else:
                request = streamer.begin(each.copies, compute_stream=stream)
                request.acquire().release()
                if end == "held":
                    request.acquire()
                if end == "exception":
                    with pytest.raises(KeyError), request:
                        raise KeyError
                elif end == "cancel":
                    request.cancel()
                    with pytest.raises(strata.RequestAborted):
                        request.acquire()
                else:
                    request.abort()
            software.call_log(True)
            _hip.destroy_stream(stream)
            counters = passing(streamer, each)
            software.call_log(False)
            assert counters.begin_waits == 1 + (lend == "lent slots")
            touched = [call.function for call in software.logged_calls() if call.stream == stream]
            assert set(touched) <= {"hipStreamDestroy"}
            assert passing(streamer, each).begin_waits == int(lend == "lent slots")


def test_kernels_left_on_a_stream_that_is_gone_are_waited_for(make_stream, software) -> None:
    """The readers of a request on its own stream are held back by an event; the stream goes, its work does not."""
    first, second = material("d" * RING, NBYTES, seed=1), material("dsd" * 3, NBYTES, seed=2)
    readers = [Reader(len(each), NBYTES) for each in (first, second)]
    gate = make_stream()
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        stream = _hip.create_stream()
        with streamer.begin(first.copies, compute_stream=stream) as request:
            latch = software.hold(gate)
            event = _hip.create_event()
            _hip.record_event(event, gate)
            _hip.wait_event(stream, event)
            for _ in range(RING):
                slot = request.acquire()
                _hip.memcpy_d2h_async(readers[0]._images[slot.entry].ctypes.data, slot.address, slot.nbytes, stream)
                readers[0]._entries.append((slot.entry, slot.nbytes))
                slot.release()
        _hip.destroy_stream(stream)
        with streamer.begin(second.copies) as request:
            for _ in range(RING):
                slot = request.acquire()
                readers[1].read(slot, request.compute_stream)
                slot.release()
            latch.release()
            read_rest(request, readers[1], request.compute_stream)
        assert readers[1].wrong(second) == 0
        assert readers[0].wrong(first) == 0
        _hip.destroy_event(event)


GONE = r"{name} {stream:#x}, which was lent to this {whom}, is gone"


@pytest.mark.parametrize("when", ["acquire", "release", "finish", "abort"])
@pytest.mark.parametrize("kinds", ["d" * 9, "ssd" * 3])
def test_a_stream_that_goes_during_its_request_is_named(when: str, kinds: str) -> None:
    """The request fails, says which stream, and the streamer serves the next one."""
    each = material(kinds, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=2) as streamer:
        for _ in range(2):
            stream = _hip.create_stream()
            request = streamer.begin(each.copies, compute_stream=stream)
            if when == "finish":
                request.skip(len(each))
            slot = request.acquire() if when in ("release", "abort") else None
            _hip.destroy_stream(stream)
            call: Callable[[], object] = slot.release if when == "release" else getattr(request, when)
            named = GONE.format(name="compute_stream", stream=stream, whom="request")
            if when == "abort":
                call()  # an engine that aborts wants no error; the kernels are waited for all the same
            else:
                with pytest.raises(strata.HipError, match=named):
                    call()
            assert _hip.last_error() == 0
            assert stream_all(streamer, each).begin_waits == 0  # the device was waited for
            assert not streamer._core.broken


def test_a_stream_of_the_streamers_that_is_gone_is_named(lend_slots) -> None:
    each = material("d" * 5, NBYTES)
    compute = _hip.create_stream()
    with strata.ExpertStreamer(NBYTES, slots=lend_slots(RING, NBYTES), compute_stream=compute) as streamer:
        passing(streamer, each)
        _hip.destroy_stream(compute)
        with pytest.raises(strata.HipError, match=GONE.format(name="compute_stream", stream=compute, whom="streamer")):
            streamer.begin(each.copies)
        another = _hip.create_stream()
        with pytest.raises(strata.HipError, match=r"compute_stream.*lent to this streamer, is gone"):
            streamer.begin(each.copies, compute_stream=another)
        _hip.destroy_stream(another)
    copies = _hip.create_stream()
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, copy_stream=copies) as streamer:
        passing(streamer, each)
        _hip.destroy_stream(copies)
        with pytest.raises(strata.HipError, match=GONE.format(name="copy_stream", stream=copies, whom="streamer")):
            passing(streamer, each)


def test_the_mark_of_an_end_fails(make_stream, software) -> None:
    """Without the mark the device is waited for, and the failure is the request's."""
    each = material("dds" * 3, NBYTES)
    stream = make_stream()
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(each.copies, compute_stream=stream)
        request.skip(len(each))
        software.inject("hipEventRecord", 1, 719)
        with pytest.raises(strata.HipError, match=r"hipEventRecord failed with .*\(719\)"):
            request.finish()
        software.clear_injections()
        assert passing(streamer, each).begin_waits == 0


def test_a_begin_that_fails_behind_the_mark_loses_no_order(make_stream, lend_slots, software) -> None:
    """The event of the mark is recorded again for the lent slots: the wait for the mark stays queued."""
    each = material("d" * 9, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        passing(streamer, each, make_stream())
        software.inject("hipStreamWaitEvent", 2, 719)
        with pytest.raises(strata.HipError, match="719"):
            streamer.begin(each.copies, slots=lend_slots(RING, NBYTES))
        software.clear_injections()
        assert passing(streamer, each).begin_waits == 0


# --- the calling thread's device ---------------------------------------------------------------------------------


def test_a_request_that_leaves_the_thread_on_another_device_says_so() -> None:
    script = """
    from strata import _hip
    streamer = strata.ExpertStreamer(64, gpu_ring=4, device=1)
    def verdict(call):
        try:
            call()
        except strata.StrataError as problem:
            say(type(problem).__name__, "|", problem)
        say(_hip.current_device())
        control.clear_injections()
        _hip.use_device(0)
    for how in ("abort", "cancelled", "finish", "close"):
        other = _hip.create_stream()
        _hip.use_device(1); stream = _hip.create_stream(); _hip.use_device(0)
        request = streamer.begin(direct, compute_stream=stream)
        if how == "finish":
            request.skip(64)
        else:
            request.acquire()
        if how == "cancelled":
            request.cancel()
        # In on the first call of the engine's thread, out on the next two, which fail.
        control.thread_role("engine")
        for nth in (2, 3):
            control.inject("hipSetDevice", nth, 100, thread="engine")
        verdict({"abort": request.abort, "cancelled": request.acquire, "finish": request.finish,
                 "close": streamer.close}[how])
        control.thread_role(None)
    say(streamer.closed)
    """
    out = ended_well(run_script(script, STRATA_SOFTWARE_DEVICES="2"))
    left = "the calling thread is left on device 1: setting it back to device 0 failed with hipErrorNoDevice (100)"
    assert out == [
        f"StrataError | the request has ended (it was aborted), but {left}", "1",
        f"RequestAborted | the request was cancelled at entry 1; {left}", "1",
        f"StrataError | the request is finished, but {left}", "1",
        f"StrataError | the request has ended (its streamer was closed), but {left}", "1",
        "True",
    ]
