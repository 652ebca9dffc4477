"""How requests end: finish, abort, cancel, exceptions, dropped objects; and that the next one may begin at once."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest

import strata
from strata import _hip
from tests.support.engine import Reader, read_rest, stream_all
from tests.support.latch import release_once_waited_for
from tests.support.sources import material

NBYTES = 160
RING = 4


def end_by_abort(request: strata.Request) -> None:
    request.abort()


def end_by_exception(request: strata.Request) -> None:
    class Trouble(Exception):
        pass

    with pytest.raises(Trouble), request:
        raise Trouble


def end_by_leaving(request: strata.Request) -> None:
    with request:
        pass


def end_by_cancel(request: strata.Request) -> None:
    request.cancel()
    with pytest.raises(strata.RequestAborted, match="cancelled"):
        request.acquire()


def end_by_cancel_from_another_thread(request: strata.Request) -> None:
    thread = threading.Thread(target=request.cancel)
    thread.start()
    thread.join()
    with pytest.raises(strata.RequestAborted, match="cancelled"):
        request.skip()


def end_by_finish(request: strata.Request) -> None:
    with pytest.raises(strata.StrataError, match=r"finish\(\) with \d+ of 13 entries consumed") as caught:
        request.finish()
    assert not isinstance(caught.value, strata.RequestAborted)


def end_by_leaving_a_cancelled_one(request: strata.Request) -> None:
    with pytest.raises(strata.RequestAborted, match="cancelled"), request:
        request.cancel()
        request.extend(strata.ExpertCopies.from_buffers([b"late"], False))


ENDS = [
    end_by_abort,
    end_by_exception,
    end_by_leaving,
    end_by_cancel,
    end_by_cancel_from_another_thread,
    end_by_finish,
    end_by_leaving_a_cancelled_one,
]


#: How long the compute stream is busy: ages for a request that is ended at once.
BUSY_NS = 20_000_000


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("kinds", ["d" * 13, "s" * 13, "ddsssDDSSdsds"])
def test_an_ended_request_leaves_nothing_in_the_next(end, kinds: str, software) -> None:
    """Its copies are queued behind a reuse wait, slots are held, kernels still read; the next begins at once."""
    first = material(kinds, NBYTES, seed=1)
    second = material("sd" * 6, NBYTES, seed=2)
    for batches in ((1, 1, 1), (2, 2, 2)):
        readers = [Reader(len(each), NBYTES) for each in (first, second)]
        settings = strata.BatchSettings(*batches)
        with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=3, settings=settings) as streamer:
            compute = streamer.compute_stream
            software.delay(compute, BUSY_NS)
            request = streamer.begin(first.copies)
            for _ in range(2):
                slot = request.acquire()
                readers[0].read(slot, compute)
                slot.release()
            held = request.acquire()  # its kernel is queued, too: the slot may not be written before that
            readers[0].read(held, compute)
            end(request)
            # Every released entry has its record, and the held one got its own.
            assert request.counters.used_records == 3
            assert request.consumed == 2
            with streamer.begin(second.copies) as following:
                read_rest(following, readers[1], compute)
            assert readers[0].wrong(first) == 0
            assert readers[1].wrong(second) == 0


def test_abort_waits_for_the_copies_that_wait_for_kernels(hold, software) -> None:
    """The held kernels are let go only once strata waits for its copy stream: it does wait."""
    first = material("d" * 13, NBYTES, seed=1)
    second = material("d" * 13, NBYTES, seed=2)
    readers = [Reader(len(each), NBYTES) for each in (first, second)]
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        compute = streamer.compute_stream
        with hold(compute) as latch:
            with streamer.begin(first.copies) as request:
                for _ in range(3):
                    slot = request.acquire()
                    readers[0].read(slot, compute)
                    slot.release()
                while request.issued < RING + 3:
                    pass
                watcher = release_once_waited_for(software, latch)
                request.abort()
            watcher.join()
            assert watcher.waited
            with streamer.begin(second.copies) as request:
                read_rest(request, readers[1], compute)
        assert readers[0].wrong(first) == 0
        assert readers[1].wrong(second) == 0


@pytest.mark.parametrize("point", range(0, 14))
@pytest.mark.parametrize("kinds", ["d" * 13, "s" * 13, "ddsssDDSSdsds"])
def test_abort_at_every_entry(kinds: str, point: int, schedule: str) -> None:
    first = material(kinds, NBYTES, seed=1)
    second = material("sdd" * 3, NBYTES, seed=2)
    settings = strata.BatchSettings(2, 3, 2)
    readers = [Reader(len(each), NBYTES) for each in (first, second)]
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=3, settings=settings) as streamer:
        compute = streamer.compute_stream
        with streamer.begin(first.copies) as request:
            for _ in range(min(point, 13)):
                slot = request.acquire()
                readers[0].read(slot, compute)
                slot.release()
            request.abort()
        counters = request.counters
        assert counters.used_records == counters.copied_waits == point if point < 14 else 13
        assert counters.fence_errors == 0
        assert counters.fences <= 1
        with streamer.begin(second.copies) as request:
            read_rest(request, readers[1], compute)
        assert readers[0].wrong(first) == 0
        assert readers[1].wrong(second) == 0


def test_abort_before_anything_was_taken() -> None:
    each = material("ds" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=2) as streamer:
        for _ in range(20):
            request = streamer.begin(each.copies)
            request.abort()
            assert request.counters.used_records == request.consumed == 0
        stream_all(streamer, each)


def test_aborted_skips_behind_a_held_slot_do_not_count_as_used() -> None:
    each = material("d" * 4, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        with streamer.begin(each.copies) as request:
            request.acquire()
            request.skip()
            request.acquire()
        # Entries 0 and 2 may have been read by kernels; 1 was not.
        assert request.counters.used_records == 2
        assert request.counters.skipped == 1
        stream_all(streamer, each)


def test_an_exception_passes_as_it_is() -> None:
    each = material("d" * 4, NBYTES)

    class Trouble(Exception):
        pass

    trouble = Trouble("the engine's own")
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        with pytest.raises(Trouble) as caught, streamer.begin(each.copies) as request:
            for _ in request:
                raise trouble
        assert caught.value is trouble
        assert caught.value.__context__ is None
        with pytest.raises(strata.RequestAborted, match="exception"):
            request.acquire()
        stream_all(streamer, each)


@pytest.mark.parametrize("left_at", [0, 3, 7])
def test_leaving_a_loop_early_aborts(left_at: int, caplog) -> None:
    caplog.set_level("INFO", "strata")
    each = material("d" * 8, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        with streamer.begin(each.copies) as request:
            for slot in request:
                if slot.entry == left_at:
                    break
        assert request.consumed == left_at
        assert request.counters.used_records == left_at + 1
        assert f"{left_at} of 8 entries consumed" in caplog.text
        stream_all(streamer, each)


def test_a_second_begin_is_refused_and_the_first_goes_on() -> None:
    each = material("d" * 8, NBYTES)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        with streamer.begin(each.copies) as request:
            held = request.acquire()
            for _ in range(2):
                with pytest.raises(strata.StrataError, match=r"still running: finish\(\) or abort\(\) it first"):
                    streamer.begin(each.copies)
            reader.read(held, streamer.compute_stream)
            held.release()
            read_rest(request, reader, streamer.compute_stream)
        assert reader.wrong(each) == 0


def test_a_finished_request_says_so() -> None:
    each = material("d" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        with streamer.begin(each.copies) as request:
            request.skip(3)
        for call in (
            request.acquire,
            request.skip,
            request.finish,
            lambda: request.extend(each.copies),
            lambda: next(request),
            request.__enter__,
        ):
            with pytest.raises(strata.StrataError, match="this request is finished") as caught:
                call()
            assert not isinstance(caught.value, strata.RequestAborted)
        request.abort()  # no-ops where it is over
        request.cancel()
        assert (len(request), request.issued, request.consumed) == (3, 3, 3)
        assert request.counters.skipped == 3
        # What is over cannot reach into what comes after it.
        with streamer.begin(each.copies) as following:
            request.cancel()
            request.abort()
            following.skip(3)
        assert following.counters.skipped == 3


def test_a_skip_past_the_end_skips_nothing() -> None:
    each = material("d" * 5, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        request.skip(2)
        words = r"entry 5 is past the end of the list \(5 entries\): n is 4, and 3 entries are left"
        with pytest.raises(IndexError, match=words):
            request.skip(4)
        with pytest.raises(IndexError, match=rf"n is {2**70}, and 3 entries are left"):
            request.skip(2**70)
        assert (request.consumed, request.counters.skipped) == (2, 2)
        request.skip(3)
        request.skip(0)
    assert request.counters.skipped == 5


def test_an_aborted_request_says_so() -> None:
    each = material("d" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(each.copies)
        slot = request.acquire()
        request.abort()
        request.abort()
        request.cancel()
        for call in (
            request.acquire,
            request.skip,
            request.finish,
            lambda: request.extend(each.copies),
            lambda: next(request),
            slot.release,
            slot.synchronize,
        ):
            with pytest.raises(strata.RequestAborted, match="aborted"):
                call()
        assert (len(request), request.consumed) == (3, 0)
        stream_all(streamer, each)


def test_a_cancelled_request_ends_at_the_next_call_whatever_it_is() -> None:
    each = material("d" * 6, NBYTES)

    def calls(request: strata.Request, slot: strata.Slot):
        return (
            request.acquire,
            request.skip,
            request.finish,
            slot.release,
            lambda: request.extend(each.copies),
            lambda: next(request),
        )

    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        for k in range(6):
            request = streamer.begin(each.copies)
            slot = request.acquire()
            request.cancel()
            with pytest.raises(strata.RequestAborted):
                calls(request, slot)[k]()
            assert request.counters.used_records == 1
            stream_all(streamer, each)


def test_cancel_ends_a_blocked_acquire(software) -> None:
    """Publication is held up in a driver call; the engine's thread waits, and another one cancels."""
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        software.inject("hipMemcpyAsync", 1, action="hang")
        request = streamer.begin(each.copies)

        def cancel() -> None:
            while not software.hanging_calls():
                pass
            request.cancel()
            software.release_hangs()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(strata.RequestAborted, match="cancelled at entry 0"):
            request.acquire()
        thread.join()
        stream_all(streamer, each)


def test_cancel_from_another_thread_while_the_loop_runs() -> None:
    each = material("ds" * 2000, 64)
    with strata.ExpertStreamer(64, gpu_ring=RING) as streamer:
        for at in (1, 100, 2500):
            request = streamer.begin(each.copies)
            reached = threading.Event()

            def cancel(request=request, reached=reached) -> None:
                reached.wait()
                request.cancel()

            thread = threading.Thread(target=cancel)
            thread.start()
            with pytest.raises(strata.RequestAborted), request:
                for slot in request:
                    if slot.entry == at:
                        reached.set()
                        thread.join()
            assert at <= request.consumed <= at + 1
            assert request.counters.used_records == at + 1
        stream_all(streamer, material("ds" * 50, 64))


def test_a_dropped_request_is_aborted_with_a_warning() -> None:
    each = material("ds" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        for taken in (0, 2):
            request = streamer.begin(each.copies)
            for _ in range(taken):
                request.acquire().release()
            with pytest.warns(ResourceWarning, match=r"dropped without finish\(\) or abort\(\)"):
                del request
            stream_all(streamer, each)


def test_a_request_that_is_dropped_with_its_loop_is_aborted_when_collected() -> None:
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        for slot in streamer.begin(each.copies):
            assert slot.entry == 0
            break
        with pytest.warns(ResourceWarning, match="dropped"):  # noqa: PT031
            del slot
            gc.collect()
        stream_all(streamer, each)


def test_a_held_slot_keeps_its_request_running() -> None:
    each = material("d" * 2, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        slot = streamer.begin(each.copies).acquire()
        slot.synchronize()
        assert each.wrong(0, slot.array()) == 0
        with pytest.raises(strata.StrataError, match="still running"):
            streamer.begin()
        with pytest.warns(ResourceWarning, match="dropped"):  # noqa: PT031
            slot.release()
            gc.collect()
        stream_all(streamer, each)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dropped_request_is_aborted_even_where_warnings_are_errors() -> None:
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(each.copies)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del request  # an exception cannot leave a finalizer; the interpreter says so on stderr
        stream_all(streamer, each)


class Owner(bytearray):
    """A source that can be seen to go."""


@pytest.mark.parametrize("end", [None, *ENDS[:4]], ids=lambda end: end.__name__ if end else "finish")
def test_sources_live_until_the_end_and_no_longer(end) -> None:
    rows = [Owner(bytes([k]) * NBYTES) for k in range(13)]
    gone = [weakref.ref(row) for row in rows]
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(strata.ExpertCopies.from_buffers(rows[:6], False))
        request.extend(strata.ExpertCopies.from_buffers(rows[6:], False))
        rows.clear()
        gc.collect()
        assert all(ref() is not None for ref in gone)
        if end is None:
            request.skip(13)
            request.finish()
        else:
            end(request)
        gc.collect()
        assert all(ref() is None for ref in gone)


def test_closing_ends_the_running_request() -> None:
    each = material("ds" * 6, NBYTES)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
    request = streamer.begin(each.copies)
    request.acquire().release()
    slot = request.acquire()
    streamer.close()
    assert streamer.closed
    assert (len(request), request.consumed) == (12, 1)
    assert request.counters.used_records == 2
    assert streamer.counters == request.counters
    request.abort()
    request.cancel()
    for call in (request.acquire, request.skip, request.finish, slot.release, slot.synchronize):
        with pytest.raises(strata.StrataError):
            call()


def test_use_after_close_is_refused() -> None:
    each = material("d" * 2, NBYTES)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
    counters = stream_all(streamer, each)
    streamer.close()
    streamer.close()
    for use in (
        lambda: streamer.begin(each.copies),
        lambda: streamer.begin(),
        lambda: streamer.slots,
        lambda: streamer.copy_stream,
        lambda: streamer.compute_stream,
        streamer.__enter__,
    ):
        with pytest.raises(strata.StrataError, match="this streamer is closed"):
            use()
    assert "closed" in repr(streamer)
    assert streamer.counters == counters  # what was done stays known


def test_close_waits_for_the_last_readers_of_owned_slots(hold, software) -> None:
    each = material("d" * RING, NBYTES)
    reader = Reader(len(each), NBYTES)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
    with hold(streamer.compute_stream) as latch:
        with streamer.begin(each.copies) as request:
            read_rest(request, reader, streamer.compute_stream)
        watcher = release_once_waited_for(software, latch)
        streamer.close()
        watcher.join()
        assert watcher.waited
    assert reader.wrong(each, closed=True) == 0


def test_what_was_lent_outlives_the_streamer(make_stream, lend_slots) -> None:
    each = material("d" * 9, NBYTES)
    compute, copies = make_stream(), make_stream()
    slots = lend_slots(RING, NBYTES)
    with strata.ExpertStreamer(NBYTES, slots=slots, copy_stream=copies, compute_stream=compute) as streamer:
        stream_all(streamer, each)
    for stream in (compute, copies):
        _hip.synchronize_stream(stream)
    for address in slots:
        _hip.memset_async(address, 1, NBYTES, compute)
    _hip.synchronize_stream(compute)


@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("kinds", ["d" * 12, "s" * 12, "dds" * 4])
def test_a_failed_copy_is_raised_with_its_entry_and_slot(kinds: str, nth: int, software) -> None:
    each = material(kinds, NBYTES)
    settings = strata.BatchSettings(4, 2, 2)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6, host_ring=4, settings=settings) as streamer:
        stream_all(streamer, each)
        software.inject("hipMemcpyAsync", nth, status=700)
        with pytest.raises(strata.HipError) as caught, streamer.begin(each.copies) as request:
            request.skip(12)
        error = caught.value
        assert (error.call, error.status, error.name) == ("hipMemcpyAsync", 700, "hipErrorIllegalAddress")
        assert (error.entry, error.slot) == (nth - 1, (nth - 1) % 6)
        counters = request.counters
        assert counters.direct_copy_calls + counters.staged_copy_calls == nth - 1
        assert request.consumed <= request.issued < nth
        assert _hip.last_error() == 0  # nothing of it is left to the engine's thread
        software.clear_injections()
        stream_all(streamer, each)


@pytest.mark.parametrize(
    ("call", "nth", "entry"), [("hipStreamWaitEvent", 1, 0), ("hipStreamWaitEvent", 3, 2), ("hipEventRecord", 2, 1)]
)
def test_a_failed_call_of_the_engines_own_thread(call: str, nth: int, entry: int, software) -> None:
    """Counted by thread: the issuer has calls of the same name."""
    each = material("d" * RING, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        software.thread_role("engine")
        try:
            software.inject(call, nth, status=400, thread="engine")
            with pytest.raises(strata.HipError) as caught, streamer.begin(each.copies) as request:
                for _ in range(RING):
                    request.acquire().release()
        finally:
            software.thread_role(None)
        error = caught.value
        assert (error.call, error.status, error.entry, error.slot) == (call, 400, entry, entry)
        assert error.name == "hipErrorInvalidHandle" or error.name == "hipErrorInvalidResourceHandle"
        software.clear_injections()
        stream_all(streamer, each)
