"""A stream that holds a bounded number of operations: what would add one more waits."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import DEVICE_TO_HOST, HOST_TO_DEVICE, SUCCESS, HostFunction, view
from tests.software_runtime.test_copies import Batch

N = 4096
LIMIT = 4
NOTHING = HostFunction(lambda argument: None)


@pytest.fixture(autouse=True)
def _bounded(_as_it_was):
    control.configure(max_pending=LIMIT)


class Filled:
    """A stream whose first operation is a latch, with as many behind it as it holds."""

    def __init__(self, hip, device) -> None:
        self.hip = hip
        self.stream = device.stream()
        self.event = device.event()
        self.gpu, self.pinned = device.malloc(N), device.host_malloc(N)
        self.pageable = np.zeros(N, np.uint8)
        self.latch = control.hold(self.stream)
        for _ in range(LIMIT - 1):
            hip.do("MemsetAsync", self.gpu, 1, N, self.stream)
        assert control.live()["pending_operations"] == LIMIT

    def submit(self, call: str) -> int:
        hip, stream = self.hip, self.stream
        if call == "hipMemcpyAsync":
            return hip.MemcpyAsync(self.gpu, self.pinned, N, HOST_TO_DEVICE, stream)
        if call == "hipMemcpyAsync to pageable memory":
            return hip.MemcpyAsync(self.pageable.ctypes.data, self.gpu, N, DEVICE_TO_HOST, stream)
        if call == "hipMemcpyBatchAsync":
            return Batch([(self.gpu, self.pinned, N)] * 2).submit(hip, stream, [])
        if call == "hipMemsetAsync":
            return hip.MemsetAsync(self.gpu, 2, N, stream)
        if call == "hipEventRecord":
            return hip.EventRecord(self.event, stream)
        if call == "hipStreamWaitEvent":
            return hip.StreamWaitEvent(stream, self.event, 0)
        return hip.LaunchHostFunc(stream, NOTHING, None)


CALLS = (
    "hipMemcpyAsync",
    "hipMemcpyAsync to pageable memory",
    "hipMemcpyBatchAsync",
    "hipMemsetAsync",
    "hipEventRecord",
    "hipStreamWaitEvent",
    "hipLaunchHostFunc",
)


@pytest.mark.parametrize("call", CALLS)
def test_a_submission_to_a_full_stream_waits_for_an_operation_to_complete(hip, device, schedule, call):
    full = Filled(hip, device)
    gate = None
    if call == "hipStreamWaitEvent":  # one that has to wait: a satisfied one queues nothing
        other = device.stream()
        gate = control.hold(other)
        hip.do("EventRecord", full.event, other)
    statuses = []
    thread = threading.Thread(target=lambda: statuses.append(full.submit(call)))
    thread.start()
    while control.live()["blocked_submissions"] == 0:
        assert thread.is_alive()
    assert statuses == []
    assert control.live()["pending_operations"] == LIMIT + (2 if gate else 0)
    full.latch.release()
    if gate is None:
        thread.join(30)
    else:
        while not statuses:
            assert thread.is_alive() or statuses
        gate.release()
        thread.join(30)
    assert statuses == [SUCCESS]
    hip.do("StreamSynchronize", full.stream)
    assert control.live()["blocked_submissions"] == 0
    hip.do("DeviceSynchronize")


def test_a_record_that_waits_for_room_keeps_nobody_from_asking_for_the_event(hip, device, schedule):
    full = Filled(hip, device)
    thread = threading.Thread(target=full.submit, args=("hipEventRecord",))
    thread.start()
    while control.live()["blocked_submissions"] == 0:
        pass
    assert hip.EventQuery(full.event) == SUCCESS  # never recorded yet
    full.latch.release()
    thread.join(30)
    hip.do("StreamSynchronize", full.stream)


def test_a_full_stream_does_not_hold_up_another(hip, device, schedule):
    full = Filled(hip, device)
    other = device.stream()
    hip.do("MemsetAsync", full.gpu, 3, N, other)
    hip.do("StreamSynchronize", other)
    full.latch.release()
    hip.do("StreamSynchronize", full.stream)


def test_more_operations_than_a_stream_holds_run_in_order(hip, device, schedule):
    stream, gpu = device.stream(), device.malloc(N)
    for value in range(200):
        hip.do("MemsetAsync", gpu, value, N, stream)
        assert control.live()["pending_operations"] <= LIMIT
    hip.do("StreamSynchronize", stream)
    assert (view(gpu, N) == 199).all()


def test_no_limit_by_default(hip, device):
    control.configure(max_pending=0)
    stream, gpu = device.stream(), device.malloc(N)
    with control.hold(stream):
        for _ in range(3000):
            hip.do("MemsetAsync", gpu, 1, 8, stream)
    hip.do("StreamSynchronize", stream)


def test_a_lost_device_lets_blocked_calls_go(hip, device):
    full = Filled(hip, device)
    statuses = []
    thread = threading.Thread(target=lambda: statuses.append(full.submit("hipMemsetAsync")))
    thread.start()
    while control.live()["blocked_submissions"] == 0:
        pass
    control.lose_device(719)
    thread.join(30)
    assert not thread.is_alive()
    control.restore_device()
    with pytest.raises(control.ControlError):  # losing the device opened it
        full.latch.release()
    hip.GetLastError()


def test_the_limit_is_said_with_the_configuration():
    assert control.configuration()["max_pending"] == LIMIT
    with pytest.raises(control.ControlError, match="max_pending=-1"):
        control.configure(max_pending=-1)
