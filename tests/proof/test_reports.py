"""What people who do this job report of streamers: a test for each kind of report."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import strata
from strata import BatchSettings, ExpertCopies, ExpertStreamer, HipError, HostStager, StrataError, _hip
from strata.tools.selftest import SCHEDULES
from tests.proof.waiting import until

NBYTES = 16 * 1024
PACKAGE_ROOT = Path(strata.__file__).resolve().parents[1]

Bytes = npt.NDArray[np.uint8]


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest, software: Any) -> str:
    software.configure(schedule=request.param, seed=5, idle_ms=5)
    return str(request.param)


def _experts(count: int, seed: int, *, pinned: bool) -> Bytes:
    rows = strata.pinned_empty((count, NBYTES), np.uint8) if pinned else np.empty((count, NBYTES), np.uint8)
    rows[:] = np.random.default_rng(seed).integers(0, 256, (count, NBYTES), np.uint8)
    return rows


@contextlib.contextmanager
def held(software: Any, stream: int) -> Iterator[Callable[[], None]]:
    """Hold a stream back until the function is called, or the block ends."""
    latch = software.hold(stream)
    opened = threading.Lock()

    def release() -> None:
        if opened.acquire(blocking=False):
            latch.release()

    try:
        yield release
    finally:
        release()


class Engine:
    """Reads slots as kernels do, and compares at the end."""

    def __init__(self, streamer: ExpertStreamer, rows: int = 128) -> None:
        self.streamer = streamer
        self._back = strata.pinned_empty((rows, NBYTES), np.uint8)
        self._expected: list[Bytes] = []

    def read(self, slot: strata.Slot, expected: Bytes) -> None:
        row = self._back[len(self._expected)]
        _hip.memcpy_d2h_async(row.ctypes.data, slot.address, NBYTES, self.streamer.compute_stream)
        self._expected.append(expected)

    def consume(self, request: strata.Request, experts: Bytes, stop: int | None = None) -> None:
        for entry in range(request.consumed, len(experts) if stop is None else stop):
            slot = request.acquire(20.0)
            self.read(slot, experts[entry])
            slot.release()

    def wrong(self) -> list[int]:
        """Which reads were wrong."""
        _hip.synchronize_stream(self.streamer.compute_stream)
        return [k for k, wanted in enumerate(self._expected) if not np.array_equal(self._back[k], wanted)]


def _acquire_all(request: strata.Request, timeout: float | None) -> None:
    for _ in range(len(request)):
        request.acquire(timeout).release()


# --- an unrecorded event queries as complete ----------------------------------------------------------------


def test_early_consumer_is_gated_on_publication(schedule: str, software: Any) -> None:
    """The copy is not even submitted; `copied` was never recorded, so a wait for it would pass at once."""
    event = _hip.create_event()
    assert _hip.query_event(event)
    _hip.destroy_event(event)
    experts = _experts(6, 1, pinned=True)
    with ExpertStreamer(NBYTES, gpu_ring=4, stall_timeout=20.0) as streamer:
        engine = Engine(streamer)
        software.inject("hipMemcpyAsync", 1, action="hang")
        with streamer.begin(ExpertCopies.from_buffers(list(experts))) as request:
            until(lambda: software.hanging_calls() == 1)
            with pytest.raises(TimeoutError, match="entry 0"):
                request.acquire(0.05)
            assert (request.issued, request.counters.copied_waits) == (0, 0)
            software.release_hangs()
            engine.consume(request, experts)
        assert engine.wrong() == []


# --- a host buffer that was refilled when its copy was issued, not when it was done -------------------------


def test_one_buffer_two_jobs_and_a_dma_that_reads_late(schedule: str, software: Any) -> None:
    experts = _experts(2, 2, pinned=False)
    back = strata.pinned_empty((2, NBYTES), np.uint8)
    stream = _hip.create_stream()
    device = _hip.malloc(2 * NBYTES)
    with HostStager(NBYTES, host_ring=1, workers=2) as stager:
        stager.start(ExpertCopies.from_buffers(list(experts)))
        with held(software, stream):
            _hip.memcpy_h2d_async(device, stager.wait(0, 20.0), NBYTES, stream)
            stager.submitted(0, stream)
            with pytest.raises(TimeoutError, match="job 1"):
                stager.wait(1, 0.05)
        _hip.memcpy_h2d_async(device + NBYTES, stager.wait(1, 20.0), NBYTES, stream)
        stager.submitted(1, stream)
        stager.finish()
        assert stager.counters.host_reuse_waits == 1
    _hip.memcpy_d2h_async(back.ctypes.data, device, 2 * NBYTES, stream)
    _hip.synchronize_stream(stream)
    assert np.array_equal(back, experts)
    _hip.free(device)
    _hip.destroy_stream(stream)


def test_one_buffer_two_jobs_in_a_streamer(schedule: str, software: Any) -> None:
    experts = _experts(3, 3, pinned=False)
    with ExpertStreamer(NBYTES, gpu_ring=4, host_ring=1, workers=2, stall_timeout=20.0) as streamer:
        engine = Engine(streamer)
        with held(software, streamer.copy_stream) as release, streamer.begin(
                ExpertCopies.from_buffers(list(experts))) as request:
            until(lambda: request.issued >= 1)
            engine.read(request.acquire(20.0), experts[0])
            with pytest.raises(TimeoutError, match="entry 1"):
                request.acquire(0.05)
            assert request.issued == 1
            release()
            for entry in (1, 2):
                engine.read(request.acquire(20.0), experts[entry])
            request.abort()  # three slots are held; their reads count all the same
        assert engine.wrong() == []


# --- aborted bytes that appear in the next request ----------------------------------------------------------


@pytest.mark.parametrize("pinned", [True, False])
def test_aborted_in_the_middle_of_the_ring(pinned: bool, schedule: str, software: Any) -> None:
    """Copies are queued behind a reuse wait when the request is aborted; the next has another pattern."""
    first, second = _experts(20, 4, pinned=pinned), _experts(20, 5, pinned=pinned)
    with ExpertStreamer(NBYTES, gpu_ring=8, settings=BatchSettings(4, 4, 4), stall_timeout=20.0) as streamer:
        engine = Engine(streamer)
        with held(software, streamer.compute_stream) as release:
            request = streamer.begin(ExpertCopies.from_buffers(list(first)))
            engine.consume(request, first, stop=8)
            until(lambda: request.issued == 16)  # the second turn waits for reads behind the latch

            def open_latch() -> None:
                until(lambda: streamer._core.in_use)  # the abort waits for the copy stream, and so for the latch
                release()

            opener = threading.Thread(target=open_latch)
            opener.start()
            request.abort()
            opener.join()
        with streamer.begin(ExpertCopies.from_buffers(list(second))) as request:
            engine.consume(request, second)
        assert engine.wrong() == []


# --- a failed copy within a batch that was counted as progress ----------------------------------------------


@pytest.mark.parametrize("nth", [1, 5, 8])
def test_failed_copy_in_a_batch(nth: int, schedule: str, software: Any) -> None:
    experts = _experts(24, 6, pinned=True)
    copies = ExpertCopies.from_buffers(list(experts))
    with ExpertStreamer(NBYTES, gpu_ring=16, settings=BatchSettings(8, 1, 1), stall_timeout=20.0) as streamer:
        engine = Engine(streamer)
        injection = software.inject("hipMemcpyAsync", nth, 1)
        request = streamer.begin(copies)
        until(lambda: injection.fired)
        with pytest.raises(HipError) as caught:
            request.acquire(20.0)
        assert (caught.value.call, caught.value.status, caught.value.entry) == ("hipMemcpyAsync", 1, nth - 1)
        assert caught.value.name == "hipErrorInvalidValue"
        assert (request.issued, request.consumed) == (0, 0)
        counters = request.counters
        assert counters.direct_copies == counters.direct_copy_calls == nth - 1
        assert (counters.direct_copied_records, counters.copied_waits, counters.used_records) == (0, 0, 0)
        with streamer.begin(copies) as request:
            engine.consume(request, experts)
        assert engine.wrong() == []


def test_failed_copy_in_a_later_batch(schedule: str, software: Any) -> None:
    """What was published before stays usable; the failed group never is."""
    experts = _experts(16, 7, pinned=True)
    with ExpertStreamer(NBYTES, gpu_ring=16, settings=BatchSettings(8, 1, 1), stall_timeout=20.0) as streamer:
        injection = software.inject("hipMemcpyAsync", 11, 719)
        request = streamer.begin(ExpertCopies.from_buffers(list(experts)))
        until(lambda: injection.fired)
        with pytest.raises(HipError, match="entry 10, slot 10"):
            _acquire_all(request, 20.0)
        assert request.issued == 8
        assert request.counters.direct_copied_records == 1
        assert request.counters.direct_copies == 10


# --- a thread that died while others wait -------------------------------------------------------------------


def test_failed_worker_ends_all_waits(schedule: str, software: Any) -> None:
    """The issuer waits for the worker's buffer and the engine for the issuer: both leave, the cause is raised."""
    experts = _experts(8, 8, pinned=False)
    copies = ExpertCopies.from_buffers(list(experts))
    with ExpertStreamer(NBYTES, gpu_ring=8, host_ring=2, workers=2) as streamer:
        engine = Engine(streamer)
        injection = software.inject("hipEventSynchronize", 1, 719)
        request = streamer.begin(copies)
        with pytest.raises(HipError, match="hipEventSynchronize failed with hipErrorLaunchFailure") as caught:
            _acquire_all(request, None)  # without a timeout: nothing but the failure ends this wait
        assert injection.fired
        assert caught.value.entry in (2, 3)
        with streamer.begin(copies) as request:
            engine.consume(request, experts)
        assert engine.wrong() == []


_DEAD_THREAD = """
    import ctypes, os, sys, time
    import numpy as np, strata
    from strata.engine import core
    from strata.runtime.software import control
    core.DRIVER_TIMEOUT_S = 0.5    # of a tear-down; else 30
    strata.runtime.use("software")
    libc = ctypes.CDLL(None)
    # strata's threads block every signal but glibc's own two. So the handler of one of those ends the thread that gets
    # it, by the system call exit: it is gone at once, without a word to anybody.
    class Action(ctypes.Structure):
        _fields_ = [("handler", ctypes.c_void_p), ("flags", ctypes.c_ulong), ("restorer", ctypes.c_void_p),
                    ("mask", ctypes.c_uint64)]
    gone = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: libc.syscall(60, 0))
    libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    libc.signal(60, ctypes.cast(gone, ctypes.c_void_p))
    action = Action()
    assert libc.syscall(13, 60, None, ctypes.byref(action), 8) == 0     # rt_sigaction, as glibc has set it
    assert libc.syscall(13, 33, ctypes.byref(action), None, 8) == 0
    rows = np.ones((8, 4096), np.uint8)
    streamer = strata.ExpertStreamer(4096, gpu_ring=8, host_ring=2, workers=1, stall_timeout=0.5)
    control.call_log(True)
    control.inject(sys.argv[1], 1, action="hang")
    request = streamer.begin(strata.ExpertCopies.from_buffers(list(rows)))
    while not control.hanging_calls():
        time.sleep(0.001)
    (victim,) = {call.thread_number for call in control.logged_calls() if call.function == sys.argv[1]}
    assert victim != os.getpid()
    libc.syscall(234, os.getpid(), victim, 33)  # tgkill
    while os.path.exists(f"/proc/self/task/{victim}"):
        time.sleep(0.001)
    try:
        for _ in range(8):
            request.acquire().release()
    except strata.StallError as error:
        print("stalled:", error)
    try:
        streamer.close()
    except strata.StrataError as error:
        print("closed:", error)
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="kills a thread by numbers of Linux on x86-64")
@pytest.mark.parametrize(("call", "who"), [("hipMemcpyAsync", "the issuer is in hipMemcpyAsync"),
                                           ("hipEventSynchronize", "worker 0 is in hipEventSynchronize")])
def test_dead_thread_is_no_hang(call: str, who: str) -> None:
    """A thread that is gone, in the middle of a call: the engine's wait ends, names it, and the process exits."""
    done = _script(_DEAD_THREAD, call)
    assert done.returncode == 0, done.stderr
    stalled, closed = done.stdout.splitlines()
    assert who in stalled
    assert stalled.startswith("stalled:")
    assert closed.startswith("closed:")
    assert who in closed


# --- a Python thread that computes all the time -------------------------------------------------------------


class Busy:
    """A thread that never waits for anything, and opens a latch once it has counted for a while."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._then: Callable[[], None] | None = then
        self._stop = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop:
            self.count += 1
            if self._then is not None and self.count > 50_000:
                then, self._then = self._then, None
                then()

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._thread.join()


def _ways_to_block(streamer: ExpertStreamer, experts: Bytes) -> Iterator[tuple[str, Callable[[], object]]]:
    """Blocking methods, each of which needs something that the busy thread will do."""
    copies = ExpertCopies.from_buffers(list(experts))

    def acquire() -> None:
        request = streamer.begin(copies)
        for _ in range(len(experts)):
            request.acquire().release()
        request.finish()

    def synchronize() -> None:
        with streamer.begin(copies) as request:
            request.acquire().synchronize()

    def skip() -> None:
        with streamer.begin(copies) as request:
            request.skip(len(experts))

    def finish() -> None:
        few = streamer.begin(copies.take([0]))
        few.acquire().release()
        few.finish()

    def abort() -> None:
        request = streamer.begin(copies)
        until(lambda: request.issued >= 1)  # so that there is a copy to wait for
        request.abort()

    for method in (acquire, synchronize, skip, finish, abort):
        yield method.__name__, method


@pytest.mark.parametrize("method", ["acquire", "synchronize", "skip", "finish", "abort"])
def test_blocking_beside_a_busy_thread(method: str, software: Any) -> None:
    """The copy stream is held until the busy thread opens it: a method that kept the GIL would wait for ever."""
    experts = _experts(6, 9, pinned=False)
    with ExpertStreamer(NBYTES, gpu_ring=2, host_ring=1, workers=1) as streamer:
        call = dict(_ways_to_block(streamer, experts))[method]
        with held(software, streamer.copy_stream) as release, Busy(release) as busy:
            call()
            assert busy.count > 50_000


def test_host_stager_beside_a_busy_thread(software: Any) -> None:
    experts = _experts(2, 10, pinned=False)
    stream = _hip.create_stream()
    device = _hip.malloc(NBYTES)
    with HostStager(NBYTES, host_ring=1, workers=1) as stager:
        for block_in_finish in (False, True):
            stager.start(ExpertCopies.from_buffers(list(experts)))
            with held(software, stream) as release, Busy(release):
                _hip.memcpy_h2d_async(device, stager.wait(0), NBYTES, stream)
                stager.submitted(0, stream)
                if not block_in_finish:
                    stager.wait(1)
                stager.finish()
    _hip.free(device)
    _hip.destroy_stream(stream)


def test_neither_starves(software: Any) -> None:
    """Many short requests beside a busy thread: all are served, and the thread gets on."""
    experts = _experts(32, 11, pinned=True)
    copies = ExpertCopies.from_buffers(list(experts))
    with ExpertStreamer(NBYTES, gpu_ring=8, stall_timeout=60.0) as streamer, Busy() as busy:
        until(lambda: busy.count > 0)
        before = busy.count
        for _ in range(20):
            with streamer.begin(copies) as request:
                for slot in request:
                    assert slot.nbytes == NBYTES
        assert busy.count > before
    assert streamer.counters.copied_waits == 20 * 32


# --- pinned memory that is capped halfway through set-up ----------------------------------------------------


def test_pinned_memory_capped_halfway(schedule: str, software: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The job runs, in as many pinned buffers as there could be, and says so."""
    experts = _experts(40, 12, pinned=False)
    with ExpertStreamer(NBYTES, gpu_ring=8, host_ring=16, settings=BatchSettings(8, 16, 8)) as streamer:
        engine = Engine(streamer)
        software.configure(pinned_limit=software.live()["pinned_bytes"] + 7 * NBYTES + NBYTES // 2)
        with caplog.at_level(logging.WARNING, "strata"), streamer.begin(
                ExpertCopies.from_buffers(list(experts))) as request:
            engine.consume(request, experts)
        assert request.counters.pageable_buffers == 9
        assert "9 of 16 host buffers" in caplog.text
        assert _hip.last_error() == 0
        assert engine.wrong() == []


@pytest.mark.parametrize("nth", [1, 2, 9, 16])
def test_failure_halfway_frees_earlier_pins(nth: int, software: Any) -> None:
    experts = _experts(4, 13, pinned=False)
    copies = ExpertCopies.from_buffers(list(experts))
    with ExpertStreamer(NBYTES, gpu_ring=8, host_ring=16) as streamer:
        engine = Engine(streamer)
        before = software.live()
        software.inject("hipEventCreateWithFlags", nth, 2)
        with pytest.raises(HipError, match="hipEventCreate"):
            streamer.begin(copies)
        after = software.live()
        for key in ("pinned_bytes", "pinned_allocations", "events"):
            assert after[key] == before[key], key
        with streamer.begin(copies) as request:
            engine.consume(request, experts)
        assert engine.wrong() == []


# --- errors left behind for the engine's own next call ------------------------------------------------------


def test_nothing_is_left_in_the_last_error(schedule: str, software: Any) -> None:
    """Neither a query that said "not ready" nor a pin that failed is the engine's business."""
    experts = _experts(20, 14, pinned=False)
    with ExpertStreamer(NBYTES, gpu_ring=4, host_ring=4, settings=BatchSettings(4, 4, 4)) as streamer:
        software.inject("hipHostMalloc", 2, 2)
        with held(software, streamer.compute_stream):
            request = streamer.begin(ExpertCopies.from_buffers(list(experts)))
            assert _hip.last_error() == 0
            for _ in range(4):
                request.acquire(20.0).release()
                assert _hip.last_error() == 0
            assert not _hip.query_event(_recorded(streamer.compute_stream))
            assert _hip.last_error() == 0
        for _ in range(16):
            request.acquire(20.0).release()
        request.finish()
        assert _hip.last_error() == 0
    assert _hip.last_error() == 0


_events: list[int] = []


def _recorded(stream: int) -> int:
    event = _hip.create_event()
    _hip.record_event(event, stream)
    _events.append(event)
    return event


@pytest.fixture(autouse=True)
def _destroy_events() -> Iterator[None]:
    yield
    while _events:
        _hip.destroy_event(_events.pop())


# --- the first HIP call of a process is made by a worker thread ---------------------------------------------


def test_first_call_from_a_worker_thread() -> None:
    done = _script("""
        import threading
        import numpy as np, strata
        rows = np.arange(64, dtype=np.uint8).reshape(4, 16)
        problems = []

        def work():
            try:
                with strata.ExpertStreamer(16, gpu_ring=2, host_ring=2) as streamer:
                    with streamer.begin(strata.ExpertCopies.from_buffers(list(rows), pinned=False)) as request:
                        for slot in request:
                            slot.synchronize()
                            if not np.array_equal(slot.array(), rows[slot.entry]):
                                problems.append(slot.entry)
            except BaseException as error:
                problems.append(repr(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(problems)
    """, STRATA_HIP_RUNTIME="software")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_mapping_is_kept_while_in_use(tmp_path: Path, software: Any) -> None:
    """The owner of a mapped file cannot close it under a list of copies, nor under a request."""
    import mmap

    file = tmp_path / "weights"
    content = np.random.default_rng(15).integers(0, 256, 4 * NBYTES, np.uint8)
    content.tofile(file)
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    views = [memoryview(mapped)[k * NBYTES : (k + 1) * NBYTES] for k in range(4)]
    copies = ExpertCopies.from_buffers(views)
    del views
    with pytest.raises(BufferError):
        mapped.close()
    with ExpertStreamer(NBYTES, gpu_ring=2) as streamer:
        engine = Engine(streamer)
        with streamer.begin(copies) as request:
            del copies
            with pytest.raises(BufferError):
                mapped.close()
            engine.consume(request, content.reshape(4, NBYTES))
        assert engine.wrong() == []
    mapped.close()


def test_request_after_a_refused_one(software: Any) -> None:
    """A list that cannot be streamed starts nothing and leaves nothing."""
    rows = _experts(2, 16, pinned=False)
    with ExpertStreamer(NBYTES - 1, gpu_ring=2) as streamer:
        with pytest.raises(ValueError, match="make slot_bytes larger"):
            streamer.begin(ExpertCopies.from_buffers(list(rows)))
        assert streamer.counters == strata.Counters()
        with pytest.raises(StrataError, match="0 of 1"):
            streamer.begin(ExpertCopies.from_buffers([rows[0][1:]])).finish()


def _script(source: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": path, **environment})
