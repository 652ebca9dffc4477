"""Faults on purpose, and the log of calls."""

from __future__ import annotations

import ctypes
import threading

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import (
    CONTEXT_IS_DESTROYED,
    HOST_TO_DEVICE,
    LAUNCH_FAILURE,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    HostFunction,
    view,
)

N = 256


class Bench:
    def __init__(self, hip, device) -> None:
        self.hip, self.device = hip, device
        self.stream, self.event = device.stream(), device.event()
        self.source, self.target = device.host_malloc(N), device.malloc(N)
        self.put(1)
        view(self.target, N)[:] = 0

    def put(self, value: int) -> None:
        view(self.source, N)[:] = value

    def copy(self) -> int:
        return self.hip.MemcpyAsync(self.target, self.source, N, HOST_TO_DEVICE, self.stream)

    def got(self) -> int:
        self.hip.do("StreamSynchronize", self.stream)
        return int(view(self.target, N)[N - 1])


@pytest.fixture
def bench(hip, device, schedule) -> Bench:
    return Bench(hip, device)


@pytest.mark.parametrize("status", [2, 3, 999])
def test_nth_call_fails_with_the_status_and_no_effect(hip, bench, status):
    injection = control.inject("hipMemcpyAsync", 2, status)
    assert bench.copy() == SUCCESS
    assert bench.got() == 1
    assert not injection.fired
    bench.put(2)
    assert bench.copy() == status
    assert injection.fired
    assert hip.GetLastError() == status
    assert bench.got() == 1
    assert bench.copy() == SUCCESS
    assert bench.got() == 2


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("Malloc", lambda b: (ctypes.byref(ctypes.c_void_p()), 8)),
        ("HostMalloc", lambda b: (ctypes.byref(ctypes.c_void_p()), 8, 0)),
        ("StreamCreateWithFlags", lambda b: (ctypes.byref(ctypes.c_void_p()), 1)),
        ("EventCreateWithFlags", lambda b: (ctypes.byref(ctypes.c_void_p()), 2)),
        ("EventRecord", lambda b: (b.event, b.stream)),
        ("EventQuery", lambda b: (b.event,)),
        ("EventSynchronize", lambda b: (b.event,)),
        ("StreamWaitEvent", lambda b: (b.stream, b.event, 0)),
        ("StreamSynchronize", lambda b: (b.stream,)),
        ("StreamQuery", lambda b: (b.stream,)),
        ("DeviceSynchronize", lambda b: ()),
        ("MemsetAsync", lambda b: (b.target, 0, N, b.stream)),
        ("GetDevice", lambda b: (ctypes.byref(ctypes.c_int()),)),
        ("MemGetInfo", lambda b: (ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t()))),
    ],
)
def test_every_call_can_fail(hip, device, call, arguments):
    bench = Bench(hip, device)
    before = control.live()
    control.inject(call, status=OUT_OF_MEMORY)  # without the "hip", too
    assert getattr(hip, call)(*arguments(bench)) == OUT_OF_MEMORY
    assert control.live() == before


def test_ignored_call_succeeds_without_effect(hip, bench):
    control.inject("hipMemcpyAsync", action="ignore")
    assert bench.copy() == SUCCESS
    assert bench.got() == 0
    assert hip.GetLastError() == SUCCESS
    control.inject("hipEventRecord", action="ignore")
    latch = control.hold(bench.stream)
    hip.do("EventRecord", bench.event, bench.stream)
    assert hip.EventQuery(bench.event) == SUCCESS  # never recorded
    control.inject("hipStreamSynchronize", action="ignore")
    hip.do("StreamSynchronize", bench.stream)  # would hang
    latch.release()
    assert bench.got() == 0


@pytest.mark.parametrize("status", [SUCCESS, LAUNCH_FAILURE])
def test_hanging_call_stays_until_it_is_released(hip, bench, status):
    control.inject("hipMemcpyAsync", status=status, action="hang")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(bench.copy()))
    thread.start()
    while control.hanging_calls() == 0:
        pass
    assert answers == []
    assert bench.got() == 0  # other threads go on
    control.release_hangs()
    thread.join(30)
    assert answers == [status]
    assert bench.got() == (1 if status == SUCCESS else 0)
    assert control.hanging_calls() == 0


def test_injection_counts_the_calls_of_one_thread(hip, bench):
    injection = control.inject("hipEventQuery", 2, 999, thread="issuer")
    answers = []

    def issuer():
        control.thread_role("issuer")
        answers.extend(hip.EventQuery(bench.event) for _ in range(3))

    assert [hip.EventQuery(bench.event) for _ in range(5)] == [SUCCESS] * 5
    thread = threading.Thread(target=issuer)
    thread.start()
    thread.join()
    assert answers == [SUCCESS, 999, SUCCESS]
    assert injection.fired


def test_several_injections_each_strike_once(hip, bench):
    for nth, status in [(1, 3), (3, 700), (4, 719)]:
        control.inject("hipEventQuery", nth, status)
    assert [hip.EventQuery(bench.event) for _ in range(6)] == [3, 0, 700, 719, 0, 0]
    for status in (3, 700):  # at the same call: one after the other
        control.inject("hipEventQuery", 2, status)
    assert [hip.EventQuery(bench.event) for _ in range(4)] == [0, 3, 700, 0]
    control.inject("hipEventQuery", 1, 3)
    control.clear_injections()
    assert hip.EventQuery(bench.event) == SUCCESS


def test_injections_are_checked():
    for arguments, text in [
        (("hipNothing",), "call='hipNothing'"),
        (("hipFree", 0, 1), "nth=0"),
        (("hipFree", 1, 0), "status=0"),
    ]:
        with pytest.raises(control.ControlError, match=text):
            control.inject(*arguments)
    with pytest.raises(control.ControlError, match="action='explode'"):
        control.inject("hipFree", action="explode")


def test_log_lists_the_calls_with_their_arguments_and_labels(hip, device):
    bench = Bench(hip, device)
    control.thread_role("engine")
    control.call_log(True)
    control.label(entry=4, slot=1, generation=2)
    bench.copy()
    control.label()
    control.inject("hipEventRecord", action="ignore")
    hip.do("EventRecord", bench.event, bench.stream)
    hip.do("StreamWaitEvent", bench.stream, bench.event, 0)
    control.call_log(False)
    hip.do("StreamSynchronize", bench.stream)
    copy, record, wait = control.logged_calls()
    control.thread_role(None)
    assert (copy.number, record.number, wait.number) == (1, 2, 3)
    assert (copy.function, copy.stream, copy.address, copy.bytes) == (
        "hipMemcpyAsync", bench.stream, bench.target, N,
    )  # fmt: skip
    assert (copy.entry, copy.slot, copy.generation, copy.thread) == (4, 1, 2, "engine")
    assert (record.function, record.event, record.intercepted) == ("hipEventRecord", bench.event, True)
    assert (wait.function, wait.event, wait.entry, wait.intercepted) == (
        "hipStreamWaitEvent", bench.event, -1, False,
    )  # fmt: skip
    control.call_log(True)
    assert control.logged_calls() == []


def test_copy_that_fails_when_it_runs_is_reported_until_synchronized(hip, bench):
    control.fail_operation(2, 700, sticky=False)
    assert bench.copy() == SUCCESS
    hip.do("EventRecord", bench.event, bench.stream)
    early = bench.event
    late = bench.device.event()
    hip.do("EventSynchronize", early)
    bench.put(2)
    assert bench.copy() == SUCCESS
    hip.do("EventRecord", late, bench.stream)
    assert hip.EventSynchronize(late) == 700
    assert hip.EventSynchronize(late) == 700
    assert hip.EventSynchronize(early) == SUCCESS
    assert hip.StreamQuery(bench.stream) == 700
    assert hip.StreamSynchronize(bench.stream) == 700
    assert hip.StreamSynchronize(bench.stream) == SUCCESS
    assert hip.GetLastError() == 700
    assert view(bench.target, N)[0] == 1
    assert bench.copy() == SUCCESS
    assert bench.got() == 2


def test_copy_that_fails_for_good_takes_the_device_with_it(hip, bench):
    control.fail_operation(1)
    assert bench.copy() == SUCCESS
    hip.StreamSynchronize(bench.stream)
    assert hip.DeviceSynchronize() == LAUNCH_FAILURE
    assert bench.copy() == LAUNCH_FAILURE
    control.restore_device()
    assert bench.copy() == SUCCESS
    assert bench.got() == 1


def test_lost_device_answers_every_call_and_ends_what_is_pending(hip, bench):
    ran = []

    @HostFunction
    def note(_):
        ran.append(1)

    other = bench.device.stream()
    control.hold(bench.stream)
    bench.copy()
    hip.do("EventRecord", bench.event, bench.stream)
    hip.do("StreamWaitEvent", other, bench.event, 0)
    hip.do("LaunchHostFunc", other, note, None)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(hip.EventSynchronize(bench.event)))
    thread.start()
    while control.calls()["hipEventSynchronize"] == 0:
        pass
    control.lose_device()
    thread.join(30)
    assert answers == [LAUNCH_FAILURE]
    address = ctypes.c_void_p()
    assert hip.StreamSynchronize(other) == LAUNCH_FAILURE
    assert hip.EventQuery(bench.event) == LAUNCH_FAILURE
    assert bench.copy() == LAUNCH_FAILURE
    assert hip.Malloc(ctypes.byref(address), 8) == LAUNCH_FAILURE
    assert hip.DeviceSynchronize() == LAUNCH_FAILURE
    assert hip.GetDeviceCount(ctypes.byref(ctypes.c_int())) == SUCCESS
    assert hip.GetLastError() == LAUNCH_FAILURE
    control.restore_device()
    assert control.live()["pending_operations"] == 0
    assert ran == []
    assert view(bench.target, N)[0] == 0
    bench.put(3)
    assert bench.copy() == SUCCESS
    assert bench.got() == 3


def test_giving_back_works_on_a_lost_device_and_reports_the_loss(hip, device):
    stream, event, gpu, pinned = hip.stream(), hip.event(), hip.malloc(N), hip.host_malloc(N)
    control.hold(stream)
    before = control.live()
    control.lose_device(700)
    for call, handle in [("Free", gpu), ("HostFree", pinned), ("EventDestroy", event), ("StreamDestroy", stream)]:
        assert getattr(hip, call)(handle) == 700
        assert getattr(hip, call)(handle) in (1, CONTEXT_IS_DESTROYED)  # gone
    after = control.live()
    assert [before[k] - after[k] for k in ("streams", "events", "device_allocations", "pinned_allocations")] == [1] * 4
    control.restore_device()


def test_restoring_what_is_not_lost_is_refused():
    with pytest.raises(control.ControlError, match="not lost"):
        control.restore_device()


def test_not_ready_of_a_held_stream_is_no_fault(hip, bench):
    with control.hold(bench.stream):
        hip.do("EventRecord", bench.event, bench.stream)
        assert hip.EventQuery(bench.event) == NOT_READY
    assert bench.got() == 0
