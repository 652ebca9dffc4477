"""cancel() from another thread while the first staged extend makes the host ring, also where a worker does not start.

`tests/sanitize.sh thread` runs these under ThreadSanitizer: there a look at what is being written is a finding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import strata
from strata.engine import threads
from strata.runtime.software import control

NBYTES = 64
ENTRIES = 12


@pytest.fixture(autouse=True)
def _software() -> Iterator[None]:
    strata.runtime.use("software")
    yield
    threads.refuse_after(None)


@contextmanager
def meanwhile(action) -> Iterator[None]:
    """Another thread does something over and over while the block runs; it has begun when the block does."""
    stop, begun = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                action()
                begun.set()
        except BaseException as problem:
            problems.append(problem)
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        assert problems == []


def sources() -> tuple[np.ndarray, strata.ExpertCopies]:
    rows = np.random.default_rng(1).integers(0, 256, (ENTRIES, NBYTES), np.uint8)
    return rows, strata.ExpertCopies.from_buffers(list(rows), pinned=False)


def serves(streamer: strata.ExpertStreamer, rows: np.ndarray, copies: strata.ExpertCopies) -> None:
    with streamer.begin(copies) as request:
        for slot in request:
            slot.synchronize()
            assert (slot.array() == rows[slot.entry]).all()


@pytest.mark.parametrize("started", [0, 1, 2, None])
def test_cancel_while_the_first_staged_extend_starts_workers(started: int | None) -> None:
    """Whatever wins: the request ends with its cause, and the streamer serves the next one."""
    rows, copies = sources()
    ended = set()
    for _ in range(25):
        with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=3, workers=3) as streamer:
            request = streamer.begin()
            barrier = threading.Barrier(2)

            def other(request=request, barrier=barrier) -> None:
                barrier.wait()
                for _ in range(20):
                    request.cancel()

            thread = threading.Thread(target=other)
            thread.start()
            threads.refuse_after(started)
            barrier.wait()
            try:
                request.extend(copies)
                request.abort()
                ended.add("listed")
            except MemoryError as problem:
                assert "threads" in str(problem)
                ended.add("no threads")
            except strata.RequestAborted:
                ended.add("cancelled")
            thread.join()
            threads.refuse_after(None)
            serves(streamer, rows, copies)
    assert ended <= ({"listed", "cancelled"} if started is None else {"no threads", "cancelled"})


def test_a_worker_that_does_not_start_leaves_a_ring_that_serves_later() -> None:
    """Twice refused at each place, then not: no thread is left of the tries, and no watermark is listed twice."""
    rows, copies = sources()
    before = control.live()
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=3, workers=3) as streamer:
        for started in (0, 0, 1, 1, 2, 2, *[0] * 20):
            threads.refuse_after(started)
            with pytest.raises(MemoryError, match="the system gives no more memory or threads"):
                streamer.begin(copies)
        threads.refuse_after(None)
        for _ in range(2):
            serves(streamer, rows, copies)
    assert control.live()["pinned_allocations"] == before["pinned_allocations"]


def test_the_issuer_that_does_not_start_leaves_nothing() -> None:
    before = control.live()
    threads.refuse_after(0)
    with pytest.raises(MemoryError, match="threads"):
        strata.ExpertStreamer(NBYTES, gpu_ring=4)
    threads.refuse_after(None)
    after = control.live()
    assert {key: after[key] - before[key] for key in ("streams", "events", "device_allocations")} == {
        "streams": 0, "events": 0, "device_allocations": 0}


def test_cancel_and_counters_while_requests_come_and_go() -> None:
    """The other things that another thread may ask at any time, beside finish(), abort() and begin()."""
    rows, copies = sources()
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=3, workers=2) as streamer:
        latest = [streamer.begin(copies)]
        latest[0].abort()

        def ask() -> None:
            assert streamer.counters.used_records >= 0
            latest[0].cancel()

        with meanwhile(ask):
            for turn in range(60):
                request = streamer.begin(copies)
                latest[0] = request
                try:
                    for slot in request:
                        slot.synchronize()
                    if turn % 3:
                        request.finish()
                    else:
                        request.abort()
                except strata.RequestAborted:
                    pass
        serves(streamer, rows, copies)


def test_totals_never_count_a_request_twice_nor_lose_it() -> None:
    """A look from another thread between a request's end and its entry among the totals."""
    rows, copies = sources()
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=3, workers=2) as streamer:
        seen = [0]

        def ask() -> None:
            now = streamer.counters.used_records
            assert now >= seen[0]
            seen[0] = now

        with meanwhile(ask):
            for _ in range(60):
                serves(streamer, rows, copies)
        assert streamer.counters.used_records == 60 * ENTRIES
