"""Streams: order, the null stream, host functions, handles, latches."""

from __future__ import annotations

import ctypes
import threading

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import (
    CONTEXT_IS_DESTROYED,
    DEVICE_TO_DEVICE,
    HOST_TO_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    SUCCESS,
    HostFunction,
    view,
)

N = 4096


def test_host_functions_run_in_stream_order_on_another_thread(hip, device, schedule):
    stream, seen = device.stream(), []

    @HostFunction
    def note(argument):
        seen.append((argument or 0, threading.get_ident()))

    for k in range(50):
        hip.do("LaunchHostFunc", stream, note, k)
    hip.do("StreamSynchronize", stream)
    assert [k for k, _ in seen] == list(range(50))
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_host_function_runs_between_the_copies_around_it(hip, device, schedule):
    stream, source, target, kept = device.stream(), device.host_malloc(N), device.malloc(N), device.malloc(N)
    view(source, N)[:] = 1
    seen = []

    @HostFunction
    def look(_):
        seen.append(int(view(target, N)[0]))
        view(target, N)[:] = 2

    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
    hip.do("LaunchHostFunc", stream, look, None)
    hip.do("MemcpyAsync", kept, target, N, DEVICE_TO_DEVICE, stream)
    hip.do("StreamSynchronize", stream)
    assert seen == [1]
    assert (view(kept, N) == 2).all()


def test_host_functions_of_two_streams_may_wait_for_each_other(hip, device, schedule):
    """As on a device: each stream's host function has a thread of its own."""
    first, second = device.stream(), device.stream()
    there, here = threading.Event(), threading.Event()

    @HostFunction
    def one(_):
        there.set()
        assert here.wait(30)

    @HostFunction
    def two(_):
        here.set()
        assert there.wait(30)

    hip.do("LaunchHostFunc", first, one, None)
    hip.do("LaunchHostFunc", second, two, None)
    hip.do("StreamSynchronize", first)
    hip.do("StreamSynchronize", second)
    assert there.is_set()
    assert here.is_set()


def test_host_function_must_be_given(hip, device):
    assert hip.library.hipLaunchHostFunc(ctypes.c_void_p(device.stream()), HostFunction(0), None) == INVALID_VALUE


def test_null_stream_waits_for_blocking_streams_and_they_for_it(hip, device, schedule):
    blocking = device.stream(0)
    first, second, source = device.malloc(N), device.malloc(N), device.host_malloc(N)
    view(source, N)[:] = 3
    latch = control.hold(blocking)
    hip.do("MemcpyAsync", first, source, N, HOST_TO_DEVICE, blocking)
    hip.do("MemcpyAsync", second, first, N, DEVICE_TO_DEVICE, 0)
    assert hip.StreamQuery(0) == NOT_READY
    latch.release()
    hip.do("StreamSynchronize", 0)
    assert (view(second, N) == 3).all()
    view(source, N)[:] = 4
    latch = control.hold(0)
    hip.do("MemcpyAsync", second, source, N, HOST_TO_DEVICE, 0)
    hip.do("MemcpyAsync", first, second, N, DEVICE_TO_DEVICE, blocking)
    assert hip.StreamQuery(blocking) == NOT_READY
    latch.release()
    hip.do("StreamSynchronize", blocking)
    assert (view(first, N) == 4).all()


def test_non_blocking_stream_ignores_the_null_stream(hip, device, schedule):
    stream, target, source = device.stream(1), device.malloc(N), device.host_malloc(N)
    view(source, N)[:] = 6
    with control.hold(0):
        hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
        hip.do("StreamSynchronize", stream)
        assert (view(target, N) == 6).all()
    with control.hold(stream):
        hip.do("MemsetAsync", target, 0, N, 0)
        hip.do("StreamSynchronize", 0)
        assert (view(target, N) == 0).all()
    hip.do("DeviceSynchronize")


def test_synchronizing_the_null_stream_waits_for_blocking_streams(hip, device, schedule):
    blocking, target, source = device.stream(0), device.malloc(N), device.host_malloc(N)
    view(source, N)[:] = 9
    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, blocking)
    hip.do("StreamSynchronize", 0)
    assert (view(target, N) == 9).all()
    assert hip.StreamQuery(blocking) == SUCCESS


def test_device_synchronization_ends_everything(hip, device, schedule):
    streams = [device.stream(k % 2) for k in range(6)]
    target, source = device.malloc(6 * N), device.host_malloc(N)
    view(source, N)[:] = 1
    for k, stream in enumerate(streams):
        hip.do("MemcpyAsync", target + k * N, source, N, HOST_TO_DEVICE, stream)
    hip.do("DeviceSynchronize")
    assert (view(target, 6 * N) == 1).all()
    assert control.live()["pending_operations"] == 0


def test_destroyed_stream_is_refused_and_its_work_completes(hip, device, schedule):
    target, source, event = device.malloc(N), device.host_malloc(N), device.event()
    view(source, N)[:] = 2
    stream = hip.stream()
    latch = control.hold(stream)
    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
    hip.do("EventRecord", event, stream)
    hip.do("StreamDestroy", stream)
    for call, arguments in [
        ("StreamSynchronize", (stream,)),
        ("StreamQuery", (stream,)),
        ("StreamDestroy", (stream,)),
        ("EventRecord", (event, stream)),
        ("StreamWaitEvent", (stream, event, 0)),
        ("MemcpyAsync", (target, source, N, HOST_TO_DEVICE, stream)),
    ]:
        assert getattr(hip, call)(*arguments) == CONTEXT_IS_DESTROYED, call
    assert hip.EventQuery(event) == NOT_READY
    latch.release()
    hip.do("EventSynchronize", event)
    assert (view(target, N) == 2).all()


def test_executor_threads_come_with_work_and_go_with_their_streams(hip, device):
    hip.do("DeviceSynchronize")
    control.configure(schedule="eager")  # ends idle executors
    assert control.live()["executor_threads"] == 0
    streams = [hip.stream() for _ in range(5)]
    events = [device.event() for _ in streams]
    assert control.live()["executor_threads"] == 0
    for stream, event in zip(streams, events, strict=True):
        hip.do("EventRecord", event, stream)
    assert control.live()["executor_threads"] == 5
    hip.do("DeviceSynchronize")
    for stream in streams:
        hip.do("StreamDestroy", stream)
    control.configure(schedule="eager")  # returns when ended executors are gone
    assert control.live()["executor_threads"] == 0


def test_streams_are_made_and_destroyed_many_times(hip, device, schedule):
    """Places are used again; what was recorded in an earlier life stays complete."""
    target, source, event = device.malloc(N), device.host_malloc(N), device.event()
    handles = set()
    for k in range(300):
        stream = hip.stream()
        handles.add(stream)
        view(source, N)[:] = k % 251
        hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
        hip.do("EventRecord", event, stream)
        hip.do("StreamDestroy", stream)
        hip.do("EventSynchronize", event)
        assert view(target, N)[N - 1] == k % 251
    assert len(handles) == 300


@pytest.mark.parametrize("handle", [3, 0x7F0000001000, 0x5357_0000_0000_0000, 0x5357_0000_01FF_FFFF])
def test_foreign_stream_handles_are_refused_unread(hip, handle):
    assert hip.StreamQuery(handle) == INVALID_HANDLE
    assert hip.StreamDestroy(handle) == INVALID_HANDLE


def test_null_stream_cannot_be_destroyed(hip):
    assert hip.StreamDestroy(0) == INVALID_HANDLE


def test_stream_flags(hip):
    handle = ctypes.c_void_p()
    assert hip.StreamCreateWithFlags(ctypes.byref(handle), 2) == INVALID_VALUE
    assert hip.StreamCreateWithFlags(None, 0) == INVALID_VALUE


def test_held_stream_runs_what_precedes_the_latch_and_nothing_behind_it(hip, device, schedule):
    stream, before, behind = device.stream(), device.event(), device.event()
    hip.do("EventRecord", before, stream)
    latch = control.hold(stream)
    hip.do("EventRecord", behind, stream)
    hip.do("EventSynchronize", before)
    assert hip.EventQuery(behind) == NOT_READY
    latch.release()
    hip.do("EventSynchronize", behind)
    with pytest.raises(control.ControlError, match="released already"):
        latch.release()


def test_forcing_a_held_stream_blocks_until_its_release(hip, device, schedule):
    stream, event = device.stream(), device.event()
    latch = control.hold(stream)
    hip.do("EventRecord", event, stream)
    order = []

    def force():
        hip.do("EventSynchronize", event)
        order.append("forced")

    thread = threading.Thread(target=force)
    thread.start()
    while control.calls()["hipEventSynchronize"] == 0:
        pass
    order.append("release")
    latch.release()
    thread.join(30)
    assert order == ["release", "forced"]


def test_hold_wants_a_stream_of_this_runtime():
    with pytest.raises(control.ControlError, match="not a stream"):
        control.hold(0x1234560)


def test_submissions_from_several_threads_all_run(hip, device, schedule):
    streams = [device.stream() for _ in range(2)]
    counts, lock = [0, 0], threading.Lock()

    @HostFunction
    def bump(argument):
        with lock:
            counts[argument or 0] += 1

    def submit():
        for k in range(100):
            hip.do("LaunchHostFunc", streams[k % 2], bump, k % 2)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hip.do("DeviceSynchronize")
    assert counts == [200, 200]


def test_a_query_of_an_idle_stream_does_not_ask_the_null_stream(hip, device, schedule):
    """HIP: whether the operations *in* the stream have completed; what it runs next would wait."""
    blocking = device.stream(0)
    with control.hold(0):
        assert hip.StreamQuery(0) == NOT_READY
        assert hip.StreamQuery(blocking) == SUCCESS
        hip.do("EventRecord", device.event(), blocking)
        assert hip.StreamQuery(blocking) == NOT_READY
    hip.do("DeviceSynchronize")


PER_THREAD, LEGACY = 2, 1


def test_the_legacy_handle_is_the_null_stream(hip, device):
    with control.hold(LEGACY):
        assert hip.StreamQuery(0) == NOT_READY
    hip.do("StreamSynchronize", LEGACY)
    assert hip.StreamDestroy(LEGACY) == INVALID_HANDLE


def test_each_thread_has_a_stream_of_its_own(hip, device, schedule):
    """hipStreamPerThread: what one thread queued there keeps no other thread's from running."""
    target, source = device.malloc(2 * N), device.host_malloc(N)
    view(source, N)[:] = 4
    view(target, 2 * N)[:] = 0
    with control.hold(PER_THREAD):
        hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, PER_THREAD)

        def other():
            hip.do("MemcpyAsync", target + N, source, N, HOST_TO_DEVICE, PER_THREAD)
            hip.do("StreamSynchronize", PER_THREAD)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
        assert (view(target + N, N) == 4).all()
        assert (view(target, N) == 0).all()
        assert hip.StreamQuery(PER_THREAD) == NOT_READY
    hip.do("StreamSynchronize", PER_THREAD)
    assert (view(target, N) == 4).all()


def test_the_threads_own_stream_is_ordered_with_the_null_stream(hip, device, schedule):
    first, second, source = device.malloc(N), device.malloc(N), device.host_malloc(N)
    view(source, N)[:] = 5
    latch = control.hold(PER_THREAD)
    hip.do("MemcpyAsync", first, source, N, HOST_TO_DEVICE, PER_THREAD)
    hip.do("MemcpyAsync", second, first, N, DEVICE_TO_DEVICE, 0)
    assert hip.StreamQuery(0) == NOT_READY
    latch.release()
    hip.do("StreamSynchronize", 0)
    assert (view(second, N) == 5).all()


def test_what_a_thread_left_in_its_stream_still_runs(hip, device, schedule):
    target, source, event = device.malloc(N), device.host_malloc(N), device.event()
    view(source, N)[:] = 6
    view(target, N)[:] = 0
    latches = []

    def leave():
        latches.append(control.hold(PER_THREAD))
        hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, PER_THREAD)
        hip.do("EventRecord", event, PER_THREAD)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join(30)
    assert hip.EventQuery(event) == NOT_READY
    latches[0].release()
    hip.do("EventSynchronize", event)
    assert (view(target, N) == 6).all()


def test_the_threads_own_stream_tells_of_itself_and_stays(hip, device):
    control.configure(devices=2)
    found, flags, priority = ctypes.c_int(7), ctypes.c_uint(7), ctypes.c_int(7)
    hip.do("SetDevice", 1)
    hip.do("StreamGetDevice", PER_THREAD, ctypes.byref(found))
    hip.do("StreamGetFlags", PER_THREAD, ctypes.byref(flags))
    hip.do("StreamGetPriority", PER_THREAD, ctypes.byref(priority))
    hip.do("SetDevice", 0)
    assert (found.value, flags.value, priority.value) == (1, 0, 0)
    assert hip.StreamDestroy(PER_THREAD) == INVALID_HANDLE
    assert control.live()["streams"] == 0
