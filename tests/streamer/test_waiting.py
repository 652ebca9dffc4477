"""Waits of the engine's thread: timeouts, stalls, and what they say."""

from __future__ import annotations

import threading
import time

import pytest

import strata
from tests.support.engine import stream_all
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

NBYTES = 96
RING = 4


def wait_until_it_hangs(software) -> None:
    while not software.hanging_calls():
        pass


def test_a_timeout_says_who_waits_and_the_request_goes_on(software) -> None:
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        software.inject("hipMemcpyAsync", 2, action="hang")
        with streamer.begin(each.copies) as request:
            request.acquire(timeout=60).release()
            wait_until_it_hangs(software)
            for timeout in (0, 0.0, 0.01, 1e-9):
                with pytest.raises(TimeoutError, match="entry 1 was not published within") as caught:
                    request.acquire(timeout=timeout)
                assert not isinstance(caught.value, strata.StrataError)
                assert "the issuer is in hipMemcpyAsync at entry 1, slot 1" in str(caught.value)
            assert (request.issued, request.consumed) == (1, 1)
            software.release_hangs()
            for entry in range(1, 6):
                slot = request.acquire(timeout=60)
                assert slot.entry == entry
                slot.release()
    assert request.counters.copied_waits == 6


def test_a_published_entry_needs_no_time(software) -> None:
    each = material("d" * RING, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(each.copies) as request:
        while request.issued < RING:
            pass
        for _ in range(RING):
            request.acquire(timeout=0).release()


@pytest.mark.parametrize("timeout", [float("inf"), 1e12, 1e300], ids=str)
def test_a_timeout_may_be_as_long_as_one_likes(timeout: float, software) -> None:
    each = material("d", NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        software.inject("hipMemcpyAsync", 1, action="hang")
        with streamer.begin(each.copies) as request:
            wait_until_it_hangs(software)
            thread = threading.Timer(0.05, software.release_hangs)
            thread.start()
            request.acquire(timeout=timeout).release()
            thread.join()


def test_a_wait_without_progress_is_a_stall(software) -> None:
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, stall_timeout=0.05) as streamer:
        software.inject("hipMemcpyAsync", 3, action="hang")
        request = streamer.begin(each.copies)
        request.skip(2)
        wait_until_it_hangs(software)
        words = r"entry 2 was not published and nothing moved for 0\.05 s"
        with pytest.raises(strata.StallError, match=words) as caught:
            request.acquire()
        assert isinstance(caught.value, TimeoutError)
        assert "the issuer is in hipMemcpyAsync at entry 2, slot 2" in str(caught.value)
        software.release_hangs()
        request.abort()
        stream_all(streamer, each)


def test_a_stall_of_a_worker_names_the_worker(software) -> None:
    each = material("s" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=2, workers=1, stall_timeout=0.05) as streamer:
        software.inject("hipEventSynchronize", 1, action="hang")
        request = streamer.begin(each.copies)
        request.skip(2)
        wait_until_it_hangs(software)
        with pytest.raises(strata.StallError) as caught:
            request.acquire()
        assert "the issuer waits for the source of entry 2" in str(caught.value)
        assert "worker 0 is in hipEventSynchronize at job 2, for the DMA of buffer 0" in str(caught.value)
        software.release_hangs()
        request.abort()
        stream_all(streamer, each)


def test_a_paused_engine_is_no_stall() -> None:
    each = material("ds" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, stall_timeout=0.05) as streamer:
        with streamer.begin(each.copies) as request:
            for slot in request:
                if slot.entry in (0, 5):
                    threading.Event().wait(0.12)  # longer than the timeout; nobody waits for strata meanwhile


def test_slow_progress_is_no_stall(software) -> None:
    each = material("s" * 24, NBYTES)
    software.cost("copy", stream_ns=10_000_000)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=1, workers=1, stall_timeout=0.15) as streamer:
        with streamer.begin(each.copies) as request:
            request.skip(24)  # 0.24 s of copies, one after the other
    software.clear_costs()


def test_nobody_spins_while_the_engine_does_something_else(software) -> None:
    """After a failure, and while slots are held, strata's threads sleep until the engine comes back."""
    each = material("s" * 40, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=2, workers=2) as streamer:
        for fails in (False, True):
            if fails:
                software.inject("hipMemcpyAsync", 3, status=700)
            request = streamer.begin(each.copies)
            if not fails:
                request.skip(2)
            threading.Event().wait(0.05)  # whatever can be done ahead is done
            before = time.process_time()
            threading.Event().wait(0.3)
            assert time.process_time() - before < 0.1  # of all threads; one that spins takes 0.3
            if fails:
                with pytest.raises(strata.HipError):
                    request.acquire()
            else:
                request.abort()
        software.clear_injections()
        stream_all(streamer, each)


def test_a_hung_driver_call_breaks_the_streamer_and_is_named() -> None:
    """Tear-down gives up on a call that does not return: nothing is freed, and every later use says why."""
    # Out of process: what is leaked on purpose would count in the tests after this one.
    out = ended_well(
        run_script(
            """
            from strata.engine import core
            core.DRIVER_TIMEOUT_S = 0.3    # of a tear-down; else 30
            streamer = strata.ExpertStreamer(64, gpu_ring=4, stall_timeout=0.1)
            control.inject("hipMemcpyAsync", 2, action="hang")
            request = streamer.begin(direct)
            request.acquire().release()
            while not control.hanging_calls():  # an abort that came first would leave nothing to hang
                pass
            kept = [control.live()[what] for what in ("streams", "events", "device_bytes", "pinned_bytes")]
            try:
                request.abort()
            except strata.StrataError as error:
                say(error)
            try:
                streamer.begin()
            except strata.StrataError as error:
                say(error)
            try:
                streamer.close()
            except strata.StrataError as error:
                say(error)
            say(kept == [control.live()[what] for what in ("streams", "events", "device_bytes", "pinned_bytes")])
            control.release_hangs()
            """
        )
    )
    assert "a driver call has not returned: the issuer is in hipMemcpyAsync at entry 1, slot 1" in out[0]
    assert "broken" in out[1]
    assert "hipMemcpyAsync" in out[1]
    assert "left as they are on purpose" in out[2]
    assert out[3] == "True"
