"""Each kind of HIP call fails at each of its first 20 calls: at construction, in a request, at its end, at the closing.

What must hold afterwards is the same everywhere: bounded time, the first cause with its call, entry and slot, counters
that count what was done and nothing else, a next request that is byte-exact, nothing alive that was not before.
"""

from __future__ import annotations

import ctypes
import gc
import traceback
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

import strata
from strata import _hip
from strata.runtime.software import control, library_path
from strata.runtime.software.checking import checked
from tests.faults.judging import (
    NAMES,
    NO_STATUS,
    Evidence,
    counters_are_true,
    events_of,
    is_the_cause,
    nothing_came_after,
)
from tests.faults.scenario import CONFIGURATIONS, Bench, Life, Stream, bench
from tests.faults.threads import ENGINE, ISSUER, ROLES, WORKER, all_ended

#: hipErrorInitializationError, for which the bindings take the GIL; out of memory; a fault on the device.
STATUSES = (3, 2, 719)
FIRST = 20
WINDOWS = ("construction", "first", "request", "finish", "abort", "closing")
#: How often the engine makes these calls in a request, no timing of threads has a say in.
STEADY = ("hipEventRecord", "hipStreamWaitEvent", "hipEventCreateWithFlags", "hipHostMalloc")

pytestmark = pytest.mark.timeout(280, method="thread")

Case = tuple[str, str, int]
Arm = Callable[[], None]
Disarm = Callable[[], list[control.LoggedCall]]


def run(bench: Bench, window: str, case: Case | None, status: int) -> Counter[tuple[str, str]]:
    """One life with one fault in one window, judged; the calls of the window, by role and function."""
    injection: list[control.Injection] = []
    mark = 0

    def arm() -> None:
        nonlocal mark
        mark = len(control.logged_calls())
        if case is not None:
            role, call, nth = case
            injection.append(control.inject(call, nth, status, thread=role))

    def disarm() -> list[control.LoggedCall]:
        control.call_log(False)
        control.clear_injections()
        return control.logged_calls()

    with checked(), Life(bench) as life:
        control.call_log(True)
        if window == "construction":
            arm()
            log = _constructed(life, status, disarm)
        else:
            life.construct()
        streamer = life.streamer
        assert streamer is not None

        if window != "first":  # every slot and every buffer was used
            warm = Stream(life, bench.first)
            warm.whole()
            assert warm.wrong() == 0

        if window in ("first", "request", "finish", "abort"):
            log = _requested(life, window, status, arm, disarm)
            if case is not None and case[0] == ENGINE and case[1] in STEADY:
                assert any(call.intercepted for call in log), "the engine makes as many calls as ever"

        # The next one begins at once, on the same streamer.
        following = Stream(life, bench.first)
        following.whole()
        assert following.wrong() == 0

        control.call_log(True)
        if window == "closing":
            arm()
        life.close()
        if window == "closing":
            log = disarm()
            _give_back(log)
        assert control.findings() == []
    all_ended()
    assert life.left_over() == {}
    return Counter((call.thread, call.function) for call in log[mark:])


def _constructed(life: Life, status: int, disarm: Disarm) -> list[control.LoggedCall]:
    """A construction that may fail leaves nothing; another one after it succeeds."""
    error: strata.HipError | None = None
    try:
        life.construct()
    except strata.HipError as raised:
        error = raised
    log = disarm()
    _device_is_restored(error)
    struck = [call for call in log if call.intercepted]
    evidence = Evidence(life.configuration, life.bench.first.material, (), log, {})
    if struck and struck[0].function in NO_STATUS:
        ctypes.CDLL(str(library_path())).hipGetLastError()  # an error that was only made up is the engine's to read
    elif struck and not evidence.mended:
        assert error is not None, f"{struck[0].function} failed and nothing was raised"
        assert (error.call, error.status, error.name) == (struck[0].function, status, NAMES[status])
        assert (error.entry, error.slot) == (None, None)
    if error is not None:
        if not struck:
            raise error
        assert _hip.last_error() == 0
        assert life.left_over() == {}
        all_ended()
        life.construct()
    return log


def _requested(life: Life, window: str, status: int, arm: Arm, disarm: Disarm) -> list[control.LoggedCall]:
    """A request that may fail: what it counts, what it raises, what it leaves behind."""
    sources = life.bench.second
    n = len(sources.material)
    stream = Stream(life, sources, "abort" if window == "abort" else "finish")
    streamer = life.streamer
    assert streamer is not None
    so_far = streamer.counters
    error: strata.HipError | None = None
    control.call_log(True)
    if window in ("first", "request"):
        arm()
    try:
        stream.run()
        if window in ("finish", "abort"):
            arm()
        stream.end()
    except strata.HipError as raised:
        error = raised
    log = disarm()
    _device_is_restored(error)
    evidence = Evidence(life.configuration, sources.material, (n // 2, n), log, events_of(streamer))
    request = stream.request
    counters = streamer.counters - so_far
    issued = 0
    if request is not None:
        assert request.counters == counters
        issued = request.issued
    if request is None and counters == strata.Counters():  # begin() failed before its fence was done
        assert error is not None
    else:
        counters_are_true(counters, issued, evidence)
    if evidence.struck is None:
        if error is not None:
            raise error
    else:
        nothing_came_after(evidence)
        raises = _raises(evidence.struck.function, window, status) and not evidence.mended
        assert error is not None or not raises, "nothing was raised"
    if error is not None:
        is_the_cause(error, status, counters, issued, evidence)
        if request is not None:  # whatever failed has ended it
            with pytest.raises(strata.RequestAborted):
                request.acquire()
    elif window != "abort":
        assert issued == n
    # strata reads no source any more, and the engine's thread finds no error of strata's.
    meaningless = evidence.struck is not None and evidence.struck.function in NO_STATUS
    assert _hip.last_error() == 0 or meaningless
    sources.overwrite()
    assert stream.wrong() == 0
    sources.restore()
    return log


def _device_is_restored(error: strata.HipError | None) -> None:
    """The engine's thread has its own device again, or knows that it has not."""
    if _hip.current_device() != 0:
        _hip.use_device(0)
        assert error is not None
        assert error.call == "hipSetDevice"


def _raises(function: str, window: str, status: int) -> bool:
    """Whether the engine must hear of it.

    An explicit abort ends what there is to end, by another way where one is barred. A host buffer for which no more
    memory can be pinned is pageable.
    """
    pageable = (function, status) == ("hipHostMalloc", 2)
    return function not in NO_STATUS and not pageable and window != "abort"


def _give_back(log: Iterable[control.LoggedCall]) -> None:
    """What the runtime refused to take back, it takes now; nothing else may be left."""
    for call in log:
        if not call.intercepted:
            continue
        if call.function == "hipEventDestroy":
            _hip.destroy_event(call.event)
        elif call.function == "hipStreamDestroy":
            _hip.destroy_stream(call.stream)
        elif call.function == "hipFree":
            _hip.free(call.address)
        elif call.function == "hipHostFree":
            _hip.pinned_free(call.address)


def cases(bench: Bench, window: str) -> list[Case]:
    """Each of the first calls of each function, thread by thread, as a run without a fault makes them."""
    return [
        (role, call, nth)
        for (role, call), count in sorted(run(bench, window, None, 0).items())
        if role in ROLES
        for nth in range(1, min(count, FIRST) + 1)
    ]


def strike(name: str, window: str, status: int, chosen: slice) -> None:
    """Run the cases of a configuration; what is wrong is told together."""
    wrong = []
    with bench(name) as made:
        found = cases(made, window)
        assert found
        for case in found[chosen]:
            try:
                run(made, window, case, status)
            except Exception as problem:
                wrong.append(f"{case}: " + "".join(traceback.format_exception(problem)[-2:]))
                del problem
                gc.collect()
                if len(wrong) == 10:
                    break
    assert not wrong, "\n".join(wrong)


#: What strata calls: where a new one is missing, so is a case of it.
CALLS = {
    ENGINE: {
        "hipEventCreateWithFlags", "hipEventQuery", "hipEventRecord", "hipGetDevice", "hipGetDeviceCount",
        "hipHostMalloc", "hipMalloc", "hipMemGetInfo", "hipPeekAtLastError", "hipPointerGetAttributes", "hipSetDevice",
        "hipStreamCreateWithFlags", "hipStreamGetDevice", "hipStreamQuery", "hipStreamWaitEvent",
    },
    ISSUER: {
        "hipEventDestroy", "hipEventRecord", "hipEventSynchronize", "hipFree", "hipHostFree", "hipPeekAtLastError",
        "hipMemcpyAsync", "hipMemcpyBatchAsync", "hipSetDevice", "hipStreamDestroy", "hipStreamSynchronize",
        "hipStreamWaitEvent",
    },
    WORKER: {"hipEventSynchronize", "hipSetDevice"},
}
#: Made or not, as the threads come along; or only after a failure.
NOT_ALWAYS = {(ENGINE, "hipEventSynchronize"), (ENGINE, "hipGetLastError")}


def test_every_call_of_strata_is_among_the_cases() -> None:
    found: set[tuple[str, str]] = set()
    for name in CONFIGURATIONS:
        with bench(name) as made:
            for window in WINDOWS:
                found |= {call for call in run(made, window, None, 0) if call[0] in ROLES}
    expected = {(role, call) for role, calls in CALLS.items() for call in calls}
    assert found - NOT_ALWAYS == expected


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_some_calls_fail_once(name: str, window: str) -> None:
    at = WINDOWS.index(window) + sorted(CONFIGURATIONS).index(name)
    strike(name, window, STATUSES[at % 3], slice(at % 11, None, 11))


@pytest.mark.slow
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_call_fails_once(name: str, window: str, status: int) -> None:
    strike(name, window, status, slice(None))
