"""What an event stands for: the work before its latest record, as of the wait."""

from __future__ import annotations

import ctypes

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
    view,
)

N = 4096


def test_never_recorded_event_is_complete_for_everybody(hip, device, schedule):
    event, stream = device.event(), device.stream()
    assert hip.EventQuery(event) == SUCCESS
    assert hip.EventSynchronize(event) == SUCCESS
    assert hip.StreamWaitEvent(stream, event, 0) == SUCCESS
    assert hip.StreamSynchronize(stream) == SUCCESS


def test_query_says_not_ready_until_the_work_before_the_record_is_done(hip, device):
    event, stream = device.event(), device.stream()
    with control.hold(stream):
        hip.do("EventRecord", event, stream)
        assert hip.EventQuery(event) == NOT_READY
        assert hip.StreamQuery(stream) == NOT_READY
    assert hip.EventSynchronize(event) == SUCCESS
    assert hip.EventQuery(event) == SUCCESS


def test_wait_keeps_the_record_that_it_captured(hip, device, schedule):
    """Re-recording behind a held stream does not make the earlier wait wait for it."""
    first, second, waiting = device.stream(), device.stream(), device.stream()
    event = device.event()
    hip.do("EventRecord", event, first)
    hip.do("StreamWaitEvent", waiting, event, 0)
    with control.hold(second):
        hip.do("EventRecord", event, second)
        assert hip.StreamSynchronize(waiting) == SUCCESS  # would hang if it waited for `second`
        assert hip.EventQuery(event) == NOT_READY
        hip.do("StreamWaitEvent", waiting, event, 0)
        assert hip.StreamQuery(waiting) == NOT_READY
    hip.do("StreamSynchronize", waiting)


def test_later_record_does_not_release_an_earlier_wait(hip, device, schedule):
    """The wait is for the record that was latest when it was queued, complete or not."""
    slow, fast, waiting = device.stream(), device.stream(), device.stream()
    event, done = device.event(), device.event()
    source, target, copy = device.host_malloc(N), device.malloc(N), device.malloc(N)
    view(source, N)[:] = 5
    latch = control.hold(slow)
    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, slow)
    hip.do("EventRecord", event, slow)
    hip.do("StreamWaitEvent", waiting, event, 0)
    hip.do("MemcpyAsync", copy, target, N, DEVICE_TO_DEVICE, waiting)
    hip.do("EventRecord", event, fast)
    hip.do("EventRecord", done, waiting)
    hip.do("EventSynchronize", event)  # of `fast`: complete
    assert hip.EventQuery(done) == NOT_READY
    latch.release()
    hip.do("EventSynchronize", done)
    assert (view(copy, N) == 5).all()


def test_destroying_a_recorded_event_leaves_its_waits(hip, device, schedule):
    first, waiting = device.stream(), device.stream()
    target, source = device.malloc(N), device.host_malloc(N)
    event = hip.event()
    latch = control.hold(first)
    hip.do("EventRecord", event, first)
    hip.do("StreamWaitEvent", waiting, event, 0)
    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, waiting)
    hip.do("EventDestroy", event)
    assert hip.StreamQuery(waiting) == NOT_READY
    latch.release()
    hip.do("StreamSynchronize", waiting)


def test_destroyed_handles_are_refused_also_when_the_place_is_used_again(hip, device):
    stream = device.stream()
    event = hip.event()
    hip.do("EventDestroy", event)
    again = device.event()
    assert again != event
    ms = ctypes.c_float()
    assert hip.EventDestroy(event) == CONTEXT_IS_DESTROYED
    assert hip.EventRecord(event, stream) == CONTEXT_IS_DESTROYED
    assert hip.EventQuery(event) == CONTEXT_IS_DESTROYED
    assert hip.EventSynchronize(event) == CONTEXT_IS_DESTROYED
    assert hip.StreamWaitEvent(stream, event, 0) == CONTEXT_IS_DESTROYED
    assert hip.EventElapsedTime(ctypes.byref(ms), event, again) == CONTEXT_IS_DESTROYED
    assert hip.EventElapsedTime(ctypes.byref(ms), again, event) == CONTEXT_IS_DESTROYED
    assert hip.GetLastError() == CONTEXT_IS_DESTROYED


@pytest.mark.parametrize("handle", [1, 0x7F0000001000, 0x5345_0000_0000_0000, 0x5345_FFFF_FFFF_FFFF])
def test_foreign_event_handles_are_refused_unread(hip, device, handle):
    assert hip.EventQuery(handle) == INVALID_HANDLE
    assert hip.EventRecord(handle, device.stream()) == INVALID_HANDLE


def test_event_of_null_handle(hip, device):
    assert hip.EventRecord(0, device.stream()) == INVALID_HANDLE
    assert hip.EventQuery(0) == INVALID_HANDLE
    assert hip.EventCreateWithFlags(None, 0) == INVALID_VALUE


@pytest.mark.parametrize(
    ("flags", "status"),
    [(0, 0), (1, 0), (2, 0), (3, 0), (6, 0), (4, INVALID_VALUE), (8, INVALID_VALUE)]
    + [(1 << bit, 0) for bit in (29, 30, 31)]  # one of the fence flags at most
    + [(3 << 29, INVALID_VALUE), (3 << 30, INVALID_VALUE), (5 << 29, INVALID_VALUE), (7 << 29, INVALID_VALUE)],
)
def test_event_flags(hip, flags, status):
    handle = ctypes.c_void_p()
    assert hip.EventCreateWithFlags(ctypes.byref(handle), flags) == status
    if status == SUCCESS:
        hip.do("EventDestroy", handle)


def test_wait_takes_no_flags(hip, device):
    assert hip.StreamWaitEvent(device.stream(), device.event(), 1) == INVALID_VALUE


def test_old_record_that_completes_late_sets_no_time(hip, device):
    slow, fast = device.stream(), device.stream()
    start, stop, ms, again = device.event(0), device.event(0), ctypes.c_float(), ctypes.c_float()
    latch = control.hold(slow)
    hip.do("EventRecord", stop, slow)
    hip.do("EventRecord", start, fast)
    hip.do("EventRecord", stop, fast)
    hip.do("EventSynchronize", stop)
    hip.do("EventElapsedTime", ctypes.byref(ms), start, stop)
    latch.release()
    hip.do("StreamSynchronize", slow)
    hip.do("EventElapsedTime", ctypes.byref(again), start, stop)
    assert again.value == ms.value


def test_elapsed_time_spans_the_work_between(hip, device):
    stream, start, stop = device.stream(), device.event(0), device.event(0)
    ms = ctypes.c_float()
    assert hip.EventElapsedTime(ctypes.byref(ms), start, stop) == INVALID_HANDLE  # never recorded
    hip.do("EventRecord", start, stream)
    control.delay(stream, 3_000_000)
    hip.do("EventRecord", stop, stream)
    hip.do("EventSynchronize", stop)
    hip.do("EventElapsedTime", ctypes.byref(ms), start, stop)
    assert 2.9 <= ms.value < 1000.0
    with control.hold(stream):
        hip.do("EventRecord", stop, stream)
        assert hip.EventElapsedTime(ctypes.byref(ms), start, stop) == NOT_READY
    hip.do("StreamSynchronize", stream)
    untimed = device.event(2)
    hip.do("EventRecord", untimed, stream)
    hip.do("EventSynchronize", untimed)
    assert hip.EventElapsedTime(ctypes.byref(ms), start, untimed) == INVALID_HANDLE
    assert hip.EventElapsedTime(None, start, stop) == INVALID_VALUE


def test_elapsed_time_says_what_can_never_be_answered_before_what_cannot_yet(hip, device):
    stream, ms = device.stream(), ctypes.c_float()
    start, stop, untimed, fresh = device.event(0), device.event(0), device.event(2), device.event(0)
    hip.do("EventRecord", stop, stream)
    hip.do("StreamSynchronize", stream)
    with control.hold(stream):
        hip.do("EventRecord", start, stream)
        hip.do("EventRecord", untimed, stream)
        asked = ctypes.byref(ms)
        assert hip.EventElapsedTime(asked, start, stop) == NOT_READY
        assert hip.EventElapsedTime(asked, start, untimed) == INVALID_HANDLE
        assert hip.EventElapsedTime(asked, untimed, start) == INVALID_HANDLE
        assert hip.EventElapsedTime(asked, start, fresh) == INVALID_HANDLE  # never recorded
    hip.do("StreamSynchronize", stream)


def test_elapsed_time_between_devices_is_refused(hip, device):
    control.configure(devices=2)
    here, ms = device.event(0), ctypes.c_float()
    hip.do("EventRecord", here, 0)
    hip.do("SetDevice", 1)
    there = hip.event(0)
    hip.do("EventRecord", there, 0)
    hip.do("DeviceSynchronize")
    hip.do("SetDevice", 0)
    hip.do("DeviceSynchronize")
    assert hip.EventElapsedTime(ctypes.byref(ms), here, there) == INVALID_HANDLE
    hip.do("EventDestroy", there)
