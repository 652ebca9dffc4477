"""Beside a Python thread that computes all the time: strata's waits let it run, and it does not starve strata.

Nothing here looks at a clock. A wait that kept the GIL would never end, since the thread that computes is the
one that ends it; a fast path that gave the GIL up would let that thread run through a switch interval each time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import strata
from strata import _hip
from tests.support.engine import stream_all
from tests.support.sources import material

NBYTES = 64
STEPS = 200_000


class Busy:
    """A thread that computes; after so many steps it does something, and computes on."""

    def __init__(self, then: Callable[[], object] | None = None, when: Callable[[], bool] = lambda: True) -> None:
        self.steps = 0
        self._then = then
        self._when = when
        self._stop = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        waited = 0
        while not self._stop:
            self.steps += 1
            if self._then is not None:
                waited += self._when()
                if waited >= STEPS:
                    self._then()
                    self._then = None

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop = True
        self._thread.join()


@pytest.fixture
def streamer() -> Iterator[strata.ExpertStreamer]:
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2) as made:
        yield made


def in_use(streamer: strata.ExpertStreamer) -> Callable[[], bool]:
    return lambda: bool(streamer._core.in_use)


@pytest.mark.parametrize("how", ["acquire", "acquire with a timeout", "skip", "the loop"])
def test_waiting_for_publication(how: str, streamer, software) -> None:
    each = material("d" * 6, NBYTES)
    software.inject("hipMemcpyAsync", 1, action="hang")
    with streamer.begin(each.copies) as request, Busy(software.release_hangs, in_use(streamer)):
        if how == "skip":
            request.skip(6)
        elif how == "the loop":
            assert [slot.entry for slot in request] == list(range(6))
        else:
            slot = request.acquire(None if how == "acquire" else 3600)
            assert slot.entry == 0
            slot.release()
            request.skip(5)
    assert request.consumed == 6


def test_synchronize(streamer, software) -> None:
    each = material("d" * 4, NBYTES)
    latch = software.hold(streamer.copy_stream)
    with streamer.begin(each.copies) as request:
        slot = request.acquire()
        with Busy(latch.release, in_use(streamer)):
            slot.synchronize()
        assert each.wrong(0, slot.array()) == 0
        slot.release()
        request.skip(3)


@pytest.mark.parametrize("how", ["finish", "leave", "abort", "close"])
def test_ends(how: str, software) -> None:
    """The copy stream, or the last readers, are held up when the end comes."""
    each = material("ds" * 2, NBYTES)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2)
    latch = software.hold(streamer.copy_stream)
    request = streamer.begin(each.copies)
    for _ in range(4 if how in ("finish", "leave") else 2):
        request.acquire().release()
    with Busy(latch.release):
        if how == "leave":
            with request:
                pass
        elif how == "close":
            streamer.close()
        else:
            getattr(request, how)()
    streamer.close()


def test_closing_a_streamer_waits_for_readers(software) -> None:
    each = material("d" * 4, NBYTES)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=4)
    latch = software.hold(streamer.compute_stream)
    with streamer.begin(each.copies) as request:
        request.skip(4)
    with Busy(latch.release):
        streamer.close()


@pytest.mark.parametrize("how", ["wait", "finish", "close"])
def test_a_stager(how: str, software) -> None:
    each = material("s" * 2, NBYTES)
    stream, device = _hip.create_stream(), _hip.malloc(NBYTES)
    with strata.HostStager(NBYTES, host_ring=1, workers=1) as stager:
        stager.start(each.copies)
        _hip.memcpy_h2d_async(device, stager.wait(0), NBYTES, stream)
        latch = software.hold(stream)
        _hip.memset_async(device, 1, NBYTES, stream)
        stager.submitted(0, stream)
        with Busy(latch.release):
            if how == "wait":
                stager.wait(1)
            else:
                getattr(stager, how)()
    _hip.synchronize_stream(stream)
    _hip.destroy_stream(stream)
    _hip.free(device)


def test_whole_requests_beside_it(streamer) -> None:
    each = material("dsS" * 60, NBYTES)
    with Busy() as busy:
        for _ in range(3):
            stream_all(streamer, each)
        steps = busy.steps
    assert steps > 0


def test_acquire_and_release_keep_the_gil() -> None:
    """4,000 calls on the fast path: giving the GIL up in each would cost as many switch intervals."""
    n = 2000
    each = material("d" * n, 16)
    interval = sys.getswitchinterval()
    with Busy() as busy:
        # What the thread gets done in some intervals that it has for itself.
        before = busy.steps
        time.sleep(50 * interval)
        in_one_interval = max((busy.steps - before) / 50, 1)
        with strata.ExpertStreamer(16, gpu_ring=n) as streamer, streamer.begin(each.copies) as request:
            while request.issued < n:
                pass
            before = busy.steps
            for _ in range(n):
                request.acquire().release()
            taken = (busy.steps - before) / in_one_interval
    # This thread is made to give way now and then, as any other; a tenth of what it would be is generous.
    assert taken < 2 * n / 10, taken
