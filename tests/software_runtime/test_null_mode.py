"""The null schedule: calls are accepted, nothing happens."""

from __future__ import annotations

import ctypes

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import HOST_TO_DEVICE, SUCCESS, HostFunction, view


@pytest.fixture(autouse=True)
def _null(_as_it_was):
    control.configure(schedule="null")


def test_nothing_is_copied_or_queued_and_everything_is_complete(hip, device):
    stream, event = device.stream(), device.event()
    source, target = device.host_malloc(4096), device.malloc(4096)
    view(source, 4096)[:] = 1
    view(target, 4096)[:] = 0
    ran = []

    @HostFunction
    def note(_):
        ran.append(1)

    for _ in range(10):
        assert hip.MemcpyAsync(target, source, 4096, HOST_TO_DEVICE, stream) == SUCCESS
        assert hip.LaunchHostFunc(stream, note, None) == SUCCESS
        assert hip.EventRecord(event, stream) == SUCCESS
        assert hip.EventQuery(event) == SUCCESS
        assert hip.StreamWaitEvent(stream, event, 0) == SUCCESS
        assert hip.EventSynchronize(event) == SUCCESS
        assert hip.StreamSynchronize(stream) == SUCCESS
    assert (view(target, 4096) == 0).all()
    assert ran == []
    assert control.live()["pending_operations"] == 0
    assert control.live()["executor_threads"] == 0
    assert control.calls()["hipEventQuery"] >= 10


def test_allocation_works_for_real(hip, device):
    gpu = device.malloc(1 << 20)
    view(gpu, 1 << 20)[:] = 4
    before = control.live()["pinned_bytes"]
    pinned = hip.host_malloc(4096)
    assert control.live()["pinned_bytes"] == before + 4096
    hip.do("HostFree", pinned)


def test_calls_that_create_and_ask_keep_their_checks(hip):
    assert hip.StreamCreateWithFlags(None, 0) == 1
    assert hip.SetDevice(7) == 101
    assert hip.EventDestroy(ctypes.c_void_p(3)) == 400
    assert hip.GetLastError() == 400


def test_elapsed_time_is_zero(hip, device):
    start, stop, ms = device.event(0), device.event(0), ctypes.c_float(4)
    hip.do("EventElapsedTime", ctypes.byref(ms), start, stop)
    assert ms.value == 0.0
