"""Copies: when they read, what they refuse."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import (
    DEFAULT,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    HOST_TO_HOST,
    INVALID_DIRECTION,
    INVALID_HANDLE,
    INVALID_VALUE,
    SUCCESS,
    CopyAttributes,
    view,
)

N = 8192


def test_pinned_source_is_read_when_the_copy_runs(hip, device, schedule):
    stream, source, target = device.stream(), device.host_malloc(N), device.malloc(N)
    view(source, N)[:] = 1
    with control.hold(stream):
        hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
        view(source, N)[:] = 2
    hip.do("StreamSynchronize", stream)
    assert (view(target, N) == 2).all()


def test_registered_source_is_read_when_the_copy_runs(hip, device, schedule):
    stream, target = device.stream(), device.malloc(N)
    source = np.full(N, 1, np.uint8)
    hip.do("HostRegister", source.ctypes.data, N, 0)
    with control.hold(stream):
        hip.do("MemcpyAsync", target, source.ctypes.data, N, HOST_TO_DEVICE, stream)
        source[:] = 2
    hip.do("StreamSynchronize", stream)
    hip.do("HostUnregister", source.ctypes.data)
    assert (view(target, N) == 2).all()


def test_pageable_source_was_read_when_the_call_returns(hip, device, schedule):
    stream, target = device.stream(), device.malloc(N)
    source = np.full(N, 1, np.uint8)
    view(target, N)[:] = 0
    with control.hold(stream):
        hip.do("MemcpyAsync", target, source.ctypes.data, N, HOST_TO_DEVICE, stream)
        source[:] = 2
        assert (view(target, N) == 0).all()
    hip.do("StreamSynchronize", stream)
    assert (view(target, N) == 1).all()


def test_pageable_sources_beyond_the_snapshot_limit_wait_for_their_stream(hip, device):
    stream, big = device.stream(), 160 << 20
    source, target = np.full(big, 3, np.uint8), device.malloc(big)
    for value in (3, 4, 5):
        source[:8] = value
        hip.do("MemcpyAsync", target, source.ctypes.data, big, HOST_TO_DEVICE, stream)
    source[:] = 9
    hip.do("StreamSynchronize", stream)
    assert view(target, big)[0] == 5
    assert view(target, big)[-1] == 3


def test_copy_to_pageable_memory_is_done_when_the_call_returns(hip, device, schedule):
    stream, source = device.stream(), device.malloc(N)
    hip.do("MemsetAsync", source, 7, N, stream)
    target = np.zeros(N, np.uint8)
    hip.do("MemcpyAsync", target.ctypes.data, source, N, DEVICE_TO_HOST, stream)
    assert (target == 7).all()


def test_synchronous_copy_moves_bytes_in_every_direction(hip, device, schedule):
    first, second = device.malloc(N), device.malloc(N)
    pattern = np.random.default_rng(3).integers(0, 256, N, dtype=np.uint8)
    back = np.zeros(N, np.uint8)
    hip.do("Memcpy", first, pattern.ctypes.data, N, HOST_TO_DEVICE)
    hip.do("Memcpy", second, first, N, DEVICE_TO_DEVICE)
    hip.do("Memcpy", back.ctypes.data, second, N, DEVICE_TO_HOST)
    assert (back == pattern).all()
    again = np.zeros(N, np.uint8)
    hip.do("Memcpy", again.ctypes.data, back.ctypes.data, N, HOST_TO_HOST)
    assert (again == pattern).all()
    hip.do("Memcpy", first, again.ctypes.data, N, DEFAULT)
    assert (view(first, N) == pattern).all()


def test_zero_bytes_succeed_and_queue_nothing(hip, device):
    stream = device.stream()
    assert hip.MemcpyAsync(0, 0, 0, HOST_TO_DEVICE, stream) == SUCCESS
    assert hip.Memcpy(0, 0, 0, DEFAULT) == SUCCESS
    assert hip.MemsetAsync(0, 1, 0, stream) == SUCCESS
    assert control.live()["pending_operations"] == 0


def test_kind_must_fit_the_pointers(hip, device):
    stream, gpu, pinned = device.stream(), device.malloc(N), device.host_malloc(N)
    host = np.zeros(N, np.uint8)
    pageable = host.ctypes.data
    for target, source, kind in [
        (gpu, gpu, HOST_TO_DEVICE),
        (gpu, gpu, DEVICE_TO_HOST),
        (pageable, pageable, HOST_TO_DEVICE),
        (pageable, pageable, DEVICE_TO_HOST),
        (pinned, pageable, DEVICE_TO_DEVICE),
        (pageable, pinned, DEVICE_TO_DEVICE),
        (gpu, pinned, DEVICE_TO_HOST),
        (gpu, pageable, HOST_TO_HOST),
        (pageable, gpu, HOST_TO_HOST),
    ]:
        assert hip.MemcpyAsync(target, source, N, kind, stream) == INVALID_VALUE
    for kind in (5, -1, 1023):
        assert hip.MemcpyAsync(gpu, pinned, N, kind, stream) == INVALID_DIRECTION
        assert hip.Memcpy(gpu, pinned, N, kind) == INVALID_DIRECTION
    assert hip.MemcpyAsync(0, pinned, N, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.MemcpyAsync(gpu, 0, N, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.MemcpyAsync(gpu, pinned, N, HOST_TO_DEVICE, 0x1234560) == INVALID_HANDLE


def test_pinned_memory_stands_where_a_device_pointer_is_asked_for(hip, device, schedule):
    stream, gpu, pinned, other = device.stream(), device.malloc(N), device.host_malloc(N), device.host_malloc(N)
    pageable = np.zeros(N, np.uint8)
    value = 0
    for target, source, kind in [
        (pinned, pageable.ctypes.data, HOST_TO_DEVICE),
        (pageable.ctypes.data, pinned, DEVICE_TO_HOST),
        (pinned, other, HOST_TO_DEVICE),
        (pinned, other, DEVICE_TO_HOST),
        (pinned, other, DEVICE_TO_DEVICE),
        (gpu, pinned, DEVICE_TO_DEVICE),
        (pinned, gpu, DEVICE_TO_DEVICE),
    ]:
        for call in ("Memcpy", "MemcpyAsync"):
            value += 1
            view(source, N)[:] = value
            view(target, N)[:] = 0
            hip.do(call, target, source, N, kind, *([stream] if call == "MemcpyAsync" else []))
            hip.do("StreamSynchronize", stream)
            assert (view(target, N) == value).all(), (target, source, kind)


def test_host_to_host_is_done_when_the_call_returns_also_in_pinned_memory(hip, device, schedule):
    stream, target, source = device.stream(), device.host_malloc(N), device.host_malloc(N)
    for kind in (HOST_TO_HOST, HOST_TO_DEVICE, DEFAULT):
        view(source, N)[:] = 10 + kind
        hip.do("MemcpyAsync", target, source, N, kind, stream)
        assert (view(target, N) == 10 + kind).all()
    view(source, N)[:] = 3
    assert Batch([(target, source, N)]).submit(hip, stream, [(0, 1)]) == SUCCESS
    assert (view(target, N) == 3).all()


@pytest.mark.parametrize("call", ["Memcpy", "MemcpyDtoD", "MemcpyPeer"])
def test_synchronous_copy_from_device_to_device_does_not_wait(hip, device, schedule, call):
    source, target = device.malloc(N), device.malloc(N)
    view(source, N)[:] = 1
    view(target, N)[:] = 0
    arguments = {
        "Memcpy": (target, source, N, DEVICE_TO_DEVICE),
        "MemcpyDtoD": (target, source, N),
        "MemcpyPeer": (target, 0, source, 0, N),
    }[call]
    with control.hold(0):
        hip.do(call, *arguments)  # a call that waited would never come back
        assert (view(target, N) == 0).all()
    hip.do("DeviceSynchronize")
    assert (view(target, N) == 1).all()


def test_the_checker_sees_that_nobody_waited_for_it(hip, device):
    source, target, back = device.malloc(N), device.malloc(N), device.host_malloc(N)
    other = device.stream()
    control.checker(True)
    hip.do("Memcpy", target, source, N, DEVICE_TO_DEVICE)
    hip.do("MemcpyAsync", back, target, N, DEVICE_TO_HOST, other)
    hip.do("DeviceSynchronize")
    assert [(f.earlier.operation, f.later.operation) for f in control.findings()] == [("D2D write", "D2H read")]


def test_an_empty_copy_in_a_batch_is_an_error(hip, device):
    stream, gpu, pinned = device.stream(), device.malloc(N), device.host_malloc(N)
    view(gpu, N)[:] = 0
    batch = Batch([(gpu, pinned, 16), (gpu, pinned, 0), (gpu, pinned, 16)])
    for orders in ([], [(0, 1)]):
        batch.failed.value = 77
        assert batch.submit(hip, stream, orders) == INVALID_VALUE
        assert batch.failed.value == 1
    assert control.live()["pending_operations"] == 0


def test_ranges_must_stay_within_their_allocation(hip, device):
    stream, gpu, pinned = device.stream(), device.malloc(N), device.host_malloc(N)
    source = np.zeros(4 * N, np.uint8)
    assert hip.MemcpyAsync(gpu + 1, pinned, N, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.MemcpyAsync(gpu, pinned + 1, N, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.MemcpyAsync(gpu, pinned, N + 1, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.MemcpyAsync(gpu, pinned, 2**64 - 1, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.MemsetAsync(gpu, 0, N + 1, stream) == INVALID_VALUE
    assert hip.MemsetAsync(source.ctypes.data, 0, N, stream) == INVALID_VALUE
    registered = source.ctypes.data + 64
    hip.do("HostRegister", registered, N, 0)
    assert hip.MemcpyAsync(gpu, registered + 1, N, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.MemcpyAsync(gpu, registered + 1, N - 1, HOST_TO_DEVICE, stream) == SUCCESS
    assert hip.MemcpyAsync(gpu + N - 1, pinned + N - 1, 1, HOST_TO_DEVICE, stream) == SUCCESS
    hip.do("StreamSynchronize", stream)
    hip.do("HostUnregister", registered)


def test_memory_that_was_freed_is_no_device_memory(hip, device):
    stream, pinned = device.stream(), device.host_malloc(N)
    gpu = hip.malloc(N)
    hip.do("MemcpyAsync", gpu, pinned, N, HOST_TO_DEVICE, stream)  # this thread has seen the range
    hip.do("Free", gpu)
    assert hip.MemcpyAsync(gpu, pinned, N, HOST_TO_DEVICE, stream) == INVALID_VALUE
    assert hip.Free(gpu) == INVALID_VALUE


def test_copies_overlap_like_memmove(hip, device):
    stream, gpu = device.stream(), device.malloc(N)
    view(gpu, N)[:] = np.arange(N) % 251
    expected = view(gpu, N)[: N - 100].copy()
    hip.do("MemcpyAsync", gpu + 100, gpu, N - 100, DEVICE_TO_DEVICE, stream)
    hip.do("StreamSynchronize", stream)
    assert (view(gpu, N)[100:] == expected).all()


class Batch:
    def __init__(self, rows: list[tuple[int, int, int]]) -> None:
        n = len(rows)
        self.targets = (ctypes.c_void_p * n)(*[row[0] for row in rows])
        self.sources = (ctypes.c_void_p * n)(*[row[1] for row in rows])
        self.sizes = (ctypes.c_size_t * n)(*[row[2] for row in rows])
        self.failed = ctypes.c_size_t(77)
        self.count = n

    def submit(self, hip, stream: int, orders: list[tuple[int, int]]) -> int:
        n = len(orders)
        attributes = (CopyAttributes * max(n, 1))(*[CopyAttributes(order=o) for _, o in orders])
        firsts = (ctypes.c_size_t * max(n, 1))(*[first for first, _ in orders])
        return hip.MemcpyBatchAsync(
            self.targets, self.sources, self.sizes, self.count, attributes, firsts, n,
            ctypes.byref(self.failed), stream,
        )  # fmt: skip


def test_batch_copies_in_order_and_reads_as_its_attributes_say(hip, device, schedule):
    stream, gpu = device.stream(), device.malloc(3 * N)
    first, second = np.full(N, 1, np.uint8), np.full(N, 2, np.uint8)
    rows = [(gpu, first.ctypes.data, N), (gpu + N, second.ctypes.data, N), (gpu + 2 * N, gpu, N)]
    batch = Batch(rows)
    with control.hold(stream):
        assert batch.submit(hip, stream, [(0, 2), (1, 1)]) == SUCCESS  # during the call; in stream order
        first[:] = 8
        second[:] = 9
    hip.do("StreamSynchronize", stream)
    assert [view(gpu, 3 * N)[k * N] for k in range(3)] == [1, 9, 1]
    assert batch.failed.value == 2**64 - 1


def test_batch_that_is_not_sound_copies_nothing_and_names_the_copy(hip, device):
    stream, gpu, pinned = device.stream(), device.malloc(N), device.host_malloc(N)
    view(pinned, N)[:] = 1
    view(gpu, N)[:] = 0
    batch = Batch([(gpu, pinned, 16), (gpu + 8, pinned, N)])
    assert batch.submit(hip, stream, [(0, 1)]) == INVALID_VALUE
    assert batch.failed.value == 1
    hip.do("StreamSynchronize", stream)
    assert (view(gpu, N) == 0).all()
    sound = Batch([(gpu, pinned, 16), (gpu + 16, pinned, 16)])
    for orders in ([(1, 1)], [(0, 0)], [(0, 4)], [(0, 1), (0, 1)], [(0, 1), (2, 1)]):
        assert sound.submit(hip, stream, orders) == INVALID_VALUE
    assert sound.submit(hip, 0x99, [(0, 1)]) == INVALID_HANDLE
    assert sound.submit(hip, stream, []) == SUCCESS
    hip.do("StreamSynchronize", stream)
    assert (view(gpu, 16) == 1).all()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_batch_submission_is_one_call_and_each_copy_an_operation(hip, device, order):
    stream, gpu, pinned = device.stream(), device.malloc(N), device.host_malloc(N)
    control.reset_calls()
    with control.hold(stream):
        assert Batch([(gpu, pinned, 8)] * 5).submit(hip, stream, [(0, order)]) == SUCCESS
        assert control.live()["pending_operations"] == 6  # and the latch
    hip.do("StreamSynchronize", stream)
    assert control.calls()["hipMemcpyBatchAsync"] == 1
    assert control.calls()["hipMemcpyAsync"] == 0
