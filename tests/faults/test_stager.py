"""The host stager by itself: every call that it makes fails, at each of its first 20 calls."""

from __future__ import annotations

import gc
import traceback
from collections import Counter

import numpy as np
import pytest

import strata
from strata import _hip
from strata.runtime.software import control
from strata.runtime.software.checking import checked
from tests.faults.judging import NAMES, NO_STATUS
from tests.faults.scenario import HANDLES, forget_last_error
from tests.faults.threads import ENGINE, WORKER, alive, in_role, threads_named, wait_until
from tests.support.sources import Material, material

NBYTES = 96
HOST_RING = 3
FIRST = 20
STATUSES = (3, 2, 719)
WINDOWS = ("construction", "first", "request", "partial", "closing")

pytestmark = pytest.mark.timeout(280, method="thread")

Case = tuple[str, str, int]


class Engine:
    """Copies every job's buffer to a place of its own, and that back; compares at the end."""

    def __init__(self, kinds: str) -> None:
        self.lists = [material(kinds, NBYTES, seed) for seed in (1, 2)]
        self.images = strata.pinned_empty((len(kinds), NBYTES), np.uint8)
        self.memory = _hip.malloc(len(kinds) * NBYTES)
        self.stream = _hip.create_stream()

    def clear(self) -> None:
        """Give back what it has."""
        _hip.destroy_stream(self.stream)
        _hip.free(self.memory)

    def run(self, stager: strata.HostStager, each: Material, upto: int | None = None) -> int:
        """A request, up to a number of submitted jobs; returns how many bytes came out wrong."""
        entries = [entry for entry, job in enumerate(each.copies.jobs()) if job != -1]
        done = 0
        failure: strata.StrataError | None = None
        with in_role(ENGINE):
            try:
                stager.start(each.copies)
                for job in range(len(entries) if upto is None else upto):
                    address = stager.wait(job)
                    with in_role("kernel"):
                        place = self.memory + job * NBYTES
                        _hip.memcpy_h2d_async(place, address, each.extent(entries[job]), self.stream)
                        _hip.memcpy_d2h_async(self.images[job].ctypes.data, place, NBYTES, self.stream)
                    done += 1
                    stager.submitted(job, self.stream)
            except strata.StrataError as problem:
                failure = problem
            try:
                stager.finish()
            except strata.StrataError as problem:
                failure = failure or problem
        _hip.synchronize_stream(self.stream)
        bad = sum(each.wrong(entries[job], self.images[job]) for job in range(done))
        if failure is not None:
            assert bad == 0
            raise failure
        return bad


def run(engine: Engine, window: str, case: Case | None, status: int) -> Counter[tuple[str, str]]:
    """One life with one fault in one window, judged; the calls of the window."""
    warm, each = engine.lists
    mark = 0
    forget_last_error()
    before = control.live()

    def arm() -> None:
        nonlocal mark
        mark = len(control.logged_calls())
        if case is not None:
            role, call, nth = case
            control.inject(call, nth, status, thread=role)

    def construct() -> strata.HostStager:
        with in_role(ENGINE), threads_named(WORKER):
            return strata.HostStager(NBYTES, host_ring=HOST_RING, workers=1, stage_batch=2)

    stager: strata.HostStager | None = None
    log: list[control.LoggedCall] = []
    try:
        with checked():
            control.call_log(True)
            if window == "construction":
                arm()
            refusal: strata.HipError | None = None
            try:
                stager = construct()
            except strata.HipError as problem:
                refusal = problem
            if refusal is not None:
                assert window == "construction"
                assert case is not None
                assert (refusal.call, refusal.status) == (case[1], status)
                assert _hip.last_error() == 0
                control.clear_injections()
                stager = construct()
            assert stager is not None
            if window == "construction":
                log = control.logged_calls()
                control.clear_injections()
            if window != "first":
                assert engine.run(stager, warm) == 0
            if window in ("first", "request", "partial"):
                upto = 5 if window == "partial" else None
                control.call_log(True)
                arm()
                error: strata.StrataError | None = None
                try:
                    assert engine.run(stager, each, upto) == 0
                except strata.HipError as problem:
                    error = problem
                log = control.logged_calls()
                control.clear_injections()
                _judge(stager, each, log, error, status, upto)
                assert _hip.last_error() == 0 or (case is not None and case[1] in NO_STATUS)
            assert engine.run(stager, warm) == 0
            control.call_log(True)
            if window == "closing":
                arm()
            with in_role(ENGINE):
                stager.close()
            if window == "closing":
                log = control.logged_calls()
            control.call_log(False)
            control.clear_injections()
            for call in log:
                if window == "closing" and call.intercepted and call.function == "hipEventDestroy":
                    _hip.destroy_event(call.event)
                elif window == "closing" and call.intercepted and call.function == "hipHostFree":
                    _hip.pinned_free(call.address)
            assert control.findings() == []
    finally:
        control.call_log(False)
        control.clear_injections()
        if stager is not None:
            stager.close()
    wait_until(lambda: not alive(WORKER), "the workers have ended")
    after = control.live()
    assert {key: after[key] - before[key] for key in HANDLES if after[key] != before[key]} == {}
    return Counter((call.thread, call.function) for call in log[mark:])


def _judge(
    stager: strata.HostStager, each: Material, log: list[control.LoggedCall], error: strata.StrataError | None,
    status: int, upto: int | None,
) -> None:
    """Counters by the log; the error by the call that failed."""
    counters = stager.counters

    def made(role: str, function: str) -> int:
        return sum(call.thread == role and call.function == function and not call.intercepted for call in log)

    struck = next((call for call in log if call.intercepted), None)
    assert counters.dma_done_records + counters.fences == made(ENGINE, "hipEventRecord")
    assert counters.host_reuse_waits == made(WORKER, "hipEventSynchronize")
    if struck is None:
        assert error is None
        jobs = sum(job != -1 for job in each.copies.jobs())
        # Ownership groups of a ring of three in twos: of two jobs and of one, in turn.
        assert counters.dma_done_records == (2 * (jobs // 3) + (jobs % 3 + 1) // 2 if upto is None else 3)
        assert counters.fences == (0 if upto is None else 0 if upto % 3 != 1 else 1)
        assert counters.fence_errors == 0
        return
    fence = struck.function == "hipEventRecord" and upto is not None and error is None
    if fence:  # by another way: the stream was synchronized
        assert counters.fence_errors == 1
    elif struck.function not in NO_STATUS and (struck.function, status) != ("hipHostMalloc", 2):
        assert isinstance(error, strata.HipError), "nothing was raised"
        assert (error.call, error.status, error.name) == (struck.function, status, NAMES[status])


def cases(engine: Engine, window: str) -> list[Case]:
    return [
        (role, call, nth)
        for (role, call), count in sorted(run(engine, window, None, 0).items())
        if role in (ENGINE, WORKER)
        for nth in range(1, min(count, FIRST) + 1)
    ]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("window", WINDOWS)
def test_every_call_fails_once(window: str, status: int, software) -> None:
    gc.collect()
    engine = Engine("ssdSsssdssssSsss")
    wrong = []
    found = cases(engine, window)
    for case in found:
        try:
            run(engine, window, case, status)
        except Exception as problem:
            wrong.append(f"{case}: " + "".join(traceback.format_exception(problem)[-2:]))
            del problem
            gc.collect()
    engine.clear()
    assert found or window == "construction"
    assert not wrong, "\n".join(wrong)
