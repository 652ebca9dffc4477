"""An abort is prompt: nothing new is submitted, no source is read on, however long the list and the entries are.

Counted in copies and in bytes, not in seconds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import strata
from strata.runtime.software import control
from tests.faults.threads import ISSUER, threads_named, wait_until
from tests.support.engine import stream_all
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

NBYTES = 96
PAGE = mmap.PAGESIZE
CHUNK = 256 * 1024  # of a worker's memcpy, between two looks for an abort

pytestmark = pytest.mark.timeout(120, method="thread")


def make(**changes: object) -> strata.ExpertStreamer:
    with threads_named(ISSUER):
        return strata.ExpertStreamer(NBYTES, **changes)  # type: ignore[arg-type]


def released_once_aborting(made: strata.ExpertStreamer) -> threading.Thread:
    """Let the hanging call go on when the calling thread sleeps in the tear-down: the stop was given before that."""
    state = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def watch() -> None:
        asleep = lambda: made._core.in_use and state.read_text().rpartition(")")[2].split()[0] == "S"  # noqa: E731
        wait_until(asleep, "the engine's thread waits for the issuer")
        control.release_hangs()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("end", ["abort", "cancel"])
@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("kind", ["d", "D", "s"])
def test_the_issuer_stops_at_the_next_entry(kind: str, nth: int, end: str, software) -> None:
    """It is in the middle of a copy when the abort comes. Groups and window would let it go on to the end."""
    each = material(kind * 64, NBYTES)
    with make(gpu_ring=64, host_ring=64, settings=strata.BatchSettings(32, 1, 32)) as made:
        software.inject("hipMemcpyAsync", nth, action="hang", thread=ISSUER)
        request = made.begin(each.copies)
        wait_until(software.hanging_calls, "the copy hangs")
        thread = released_once_aborting(made)
        if end == "cancel":
            request.cancel()
            with pytest.raises(strata.RequestAborted):
                request.acquire()
        else:
            request.abort()
        thread.join()
        segments = 3 if kind == "D" else 1
        entries = -(-nth // segments)  # the one that the copy is of is copied to its end
        counters = request.counters
        assert counters.direct_copy_calls + counters.staged_copy_calls == entries * segments
        assert counters.direct_copies + counters.staged_copies == entries
        assert request.issued == 0
        stream_all(made, each)


def test_a_worker_that_waits_for_its_buffer_does_not_touch_the_source() -> None:
    """The source of the waiting job cannot be read any more: a worker that goes on ends the process."""
    script = """
    import ctypes, mmap, pathlib
    libc = ctypes.CDLL(None, use_errno=True)
    size = mmap.PAGESIZE
    area = mmap.mmap(-1, 8 * size)
    entries = [np.frombuffer(area, np.uint8, size, k * size) for k in range(8)]
    copies = strata.ExpertCopies.from_buffers(entries, False)
    behind = ctypes.c_void_p(entries[2].ctypes.data)

    streamer = strata.ExpertStreamer(size, gpu_ring=8, host_ring=2, workers=1)
    control.thread_role("engine")
    control.inject("hipEventSynchronize", 1, action="hang", thread="strata-worker-0")
    request = streamer.begin(copies)
    while not control.hanging_calls():
        pass
    # Job 2 waits for buffer 0. From now on nothing behind it can be read.
    assert libc.mprotect(behind, ctypes.c_size_t(6 * size), 0) == 0
    state = pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def release():
        while not (streamer._core.in_use and state.read_text().rpartition(")")[2].split()[0] == "S"):
            pass
        control.release_hangs()

    threading.Thread(target=release).start()
    request.abort()
    say(request.counters.staged_copies, request.counters.host_reuse_waits)
    with streamer.begin(staged) as request:
        request.skip(64)
    say("alive")
    streamer.close()
    """
    assert ended_well(run_script(script)) == ["2 1", "alive"]


def resident(address: int, nbytes: int) -> int:
    """Pages of a mapping that are in memory."""
    seen = (ctypes.c_ubyte * (nbytes // PAGE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), seen) == 0, os.strerror(ctypes.get_errno())
    return int(np.count_nonzero(np.frombuffer(seen, np.uint8) & 1))


def test_a_source_that_comes_slowly_is_not_read_to_its_end(software) -> None:
    """A file, page by page from its storage: the worker leaves within the entry, at the next chunk."""
    nbytes = 256 * 2**20
    with tempfile.TemporaryFile() as file:
        file.truncate(nbytes)
        area = mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ)
        area.madvise(mmap.MADV_RANDOM)  # no read-ahead: each page is a fault of its own
        source = np.frombuffer(area, np.uint8)
        copies = strata.ExpertCopies.from_buffers([source], False)
        with strata.ExpertStreamer(nbytes, gpu_ring=1, host_ring=1, workers=1) as made:
            request = made.begin(copies)
            address = source.ctypes.data
            wait_until(lambda: resident(address, 64 * CHUNK) > 0, "the worker has begun to read")
            request.abort()
            read = resident(address, nbytes) * PAGE
            assert 0 < read < nbytes // 2
            assert request.counters.staged_copies == 0
            small = material("sd" * 4, NBYTES)
            with made.begin(small.copies) as following:
                for slot in following:
                    slot.synchronize()
                    assert small.wrong(slot.entry, slot.array()) == 0
            assert resident(address, nbytes) * PAGE == read, "nobody reads on"
        del source, copies, request
        area.close()


def test_many_small_segments_are_left_in_the_middle(software) -> None:
    """One entry of a hundred thousand segments, and others behind it: an abort looks in between."""
    n = 100_000
    pool = np.zeros(n, np.uint8)
    addresses = np.arange(n, dtype=np.uint64) + np.uint64(pool.ctypes.data)
    one = strata.ExpertCopies(addresses, np.ones(n, np.int64), np.zeros(n, np.bool_), entry_starts=np.array([0, n]))
    copies = strata.ExpertCopies.concatenate([one] * 40)
    with strata.ExpertStreamer(n, gpu_ring=4, host_ring=2, workers=1) as made:
        for _ in range(3):
            request = made.begin(copies)
            request.abort()
            assert request.counters.staged_copies < 40
    assert pool is not None
