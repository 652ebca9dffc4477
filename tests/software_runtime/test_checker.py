"""The happens-before checker, edge by edge."""

from __future__ import annotations

import ctypes
import threading

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    HostFunction,
)

N = 1024


class Bench:
    def __init__(self, hip, device) -> None:
        self.hip, self.device = hip, device
        self.copy, self.compute = device.stream(), device.stream()
        self.source, self.slot, self.out = device.host_malloc(N), device.malloc(N), device.malloc(N)
        self.copied, self.used = device.event(), device.event()

    def h2d(self) -> None:
        self.hip.do("MemcpyAsync", self.slot, self.source, N, HOST_TO_DEVICE, self.copy)

    def use(self) -> None:
        self.hip.do("MemcpyAsync", self.out, self.slot, N, DEVICE_TO_DEVICE, self.compute)


@pytest.fixture
def bench(hip, device) -> Bench:
    made = Bench(hip, device)
    control.checker(True)
    return made


def in_thread(body) -> None:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


def pairs() -> list[tuple[str, str]]:
    return [(finding.earlier.operation, finding.later.operation) for finding in control.findings()]


def test_record_and_wait_order_two_streams(hip, bench):
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)
    hip.do("StreamWaitEvent", bench.compute, bench.copied, 0)
    bench.use()
    assert pairs() == []
    assert control.checked_accesses() == 4
    hip.do("DeviceSynchronize")


def test_finding_names_operations_labels_and_the_missing_event(hip, bench):
    control.name(bench.copy, "copy")
    control.name(bench.compute, "compute")
    control.name(bench.used, "used[3]")
    control.thread_role("engine")
    control.label(entry=7, slot=3, generation=0)
    bench.use()
    hip.do("EventRecord", bench.used, bench.compute)
    control.label(entry=11, slot=3, generation=1)
    control.thread_role("issuer")
    bench.h2d()
    control.label()
    control.thread_role(None)
    hip.do("DeviceSynchronize")
    (finding,) = control.findings()
    assert str(finding) == (
        "no path from D2D read of slot 3 (entry 7, generation 0, stream compute, thread engine) to H2D write of "
        "slot 3 (entry 11, generation 1, stream copy, thread issuer): nothing before the latter waits for "
        "used[3], recorded after the former"
    )
    assert (finding.earlier.entry, finding.later.entry) == (7, 11)
    assert (finding.earlier.slot, finding.later.generation) == (3, 1)
    assert (finding.earlier.stream_handle, finding.later.stream_handle) == (bench.compute, bench.copy)
    assert (finding.missing_event, finding.missing_name) == (bench.used, "used[3]")
    assert (finding.address, finding.bytes) == (bench.slot, N)
    assert finding.earlier.thread == "engine"


def test_finding_says_when_no_event_was_recorded(hip, bench):
    bench.h2d()
    bench.use()
    hip.do("DeviceSynchronize")
    (finding,) = control.findings()
    assert finding.text.endswith("no event was recorded after the former")
    assert finding.missing_event == 0


def test_wait_before_the_record_orders_nothing(hip, bench):
    hip.do("StreamWaitEvent", bench.compute, bench.copied, 0)
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)
    bench.use()
    assert pairs() == [("H2D write", "D2D read")]
    hip.do("DeviceSynchronize")


def test_record_before_the_copy_does_not_cover_it(hip, bench):
    hip.do("EventRecord", bench.copied, bench.copy)
    bench.h2d()
    hip.do("StreamWaitEvent", bench.compute, bench.copied, 0)
    bench.use()
    assert pairs() == [("H2D write", "D2D read")]
    hip.do("DeviceSynchronize")


def test_wait_keeps_its_order_when_the_event_is_recorded_again(hip, bench):
    other = bench.device.stream()
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)
    hip.do("StreamWaitEvent", bench.compute, bench.copied, 0)
    hip.do("EventRecord", bench.copied, other)
    bench.use()
    assert pairs() == []
    third = bench.device.stream()
    hip.do("StreamWaitEvent", third, bench.copied, 0)  # the later record does not cover the copy
    hip.do("MemsetAsync", bench.slot, 0, N, third)
    assert ("H2D write", "memset write") in pairs()
    hip.do("DeviceSynchronize")


def test_reads_do_not_conflict(hip, bench):
    hip.do("MemcpyAsync", bench.out, bench.slot, N, DEVICE_TO_DEVICE, bench.copy)
    target = bench.device.malloc(N)
    hip.do("MemcpyAsync", target, bench.slot, N, DEVICE_TO_DEVICE, bench.compute)
    assert pairs() == []
    hip.do("DeviceSynchronize")


def test_parts_of_an_allocation_are_told_apart(hip, bench):
    half = N // 2
    hip.do("MemsetAsync", bench.slot, 1, half, bench.copy)
    hip.do("MemsetAsync", bench.slot + half, 1, half, bench.compute)
    assert pairs() == []
    hip.do("MemsetAsync", bench.slot + half - 1, 1, 2, bench.copy)
    (finding,) = control.findings()
    assert (finding.address, finding.bytes) == (bench.slot + half, 1)
    hip.do("DeviceSynchronize")
    control.checker(True)
    hip.do("MemsetAsync", bench.slot, 1, N, bench.copy)
    hip.do("MemsetAsync", bench.slot + 100, 1, 8, bench.compute)
    (finding,) = control.findings()
    assert (finding.address, finding.bytes) == (bench.slot + 100, 8)
    hip.do("DeviceSynchronize")


@pytest.mark.parametrize(
    "ordered", ["EventSynchronize", "EventQuery", "StreamSynchronize", "StreamQuery", "DeviceSynchronize", None]
)
def test_host_write_after_a_copy_has_read(hip, bench, ordered):
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)
    other = bench.device.event()
    hip.do("EventRecord", other, bench.copy)
    if ordered is None:
        # Done for certain, but by an event that the writer did not ask about: luck is no order.
        while hip.library.hipGetLastError() or control.live()["pending_operations"]:
            pass
    elif ordered == "DeviceSynchronize":
        hip.do(ordered)
    else:
        while getattr(hip, ordered)(bench.copy if "Stream" in ordered else bench.copied):
            pass
    control.host_write(bench.source, N)
    assert pairs() == ([("H2D read", "host write")] if ordered is None else [])
    hip.do("DeviceSynchronize")


def test_query_that_says_not_ready_orders_nothing(hip, bench):
    with control.hold(bench.copy):
        bench.h2d()
        hip.do("EventRecord", bench.copied, bench.copy)
        assert hip.EventQuery(bench.copied) == 600
        control.host_write(bench.source, N)
    assert pairs() == [("H2D read", "host write")]
    hip.do("DeviceSynchronize")


def test_host_write_before_submission_is_ordered_by_the_thread(hip, bench):
    control.host_write(bench.source, N)
    bench.h2d()
    assert pairs() == []
    hip.do("DeviceSynchronize")


@pytest.mark.parametrize("handed_over", [True, False])
def test_host_write_of_another_thread_needs_a_hand_over(hip, bench, handed_over):
    def worker():
        control.thread_role("worker 2")
        control.host_write(bench.source, N)
        if handed_over:
            control.handover_release(0xABC)

    in_thread(worker)
    if handed_over:
        control.handover_acquire(0xABC)
    bench.h2d()
    assert pairs() == ([] if handed_over else [("host write", "H2D read")])
    if not handed_over:
        assert "no hand-over or submission by thread worker 2" in control.findings()[0].text
    hip.do("DeviceSynchronize")


def test_hand_over_before_the_write_does_not_cover_it(hip, bench):
    def worker():
        control.handover_release(0xABC)
        control.host_write(bench.source, N)

    in_thread(worker)
    control.handover_acquire(0xABC)
    bench.h2d()
    assert pairs() == [("host write", "H2D read")]
    hip.do("DeviceSynchronize")


def test_hand_over_passes_on_what_was_taken_over(hip, bench):
    def first():
        control.host_write(bench.source, N)
        control.handover_release(1)

    def second():
        control.handover_acquire(1)
        control.handover_release(2)

    in_thread(first)
    in_thread(second)
    control.handover_acquire(2)
    bench.h2d()
    assert pairs() == []
    hip.do("DeviceSynchronize")


def test_synchronization_in_another_thread_counts_for_that_thread(hip, bench):
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)

    def refill():
        hip.do("EventSynchronize", bench.copied)
        control.host_write(bench.source, N)

    in_thread(refill)
    assert pairs() == []
    control.host_write(bench.source, N)
    assert pairs() == [("host write", "host write")]
    hip.do("DeviceSynchronize")


def test_what_a_thread_did_after_submitting_is_not_covered_by_the_submission(hip, bench):
    mine = bench.device.host_malloc(N)
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)
    control.host_write(mine, N)

    def other():
        hip.do("EventSynchronize", bench.copied)
        control.host_write(mine, N)

    in_thread(other)
    assert pairs() == [("host write", "host write")]


def test_new_event_on_an_old_place_was_never_recorded(hip, bench):
    old = hip.event()
    bench.h2d()
    hip.do("EventRecord", old, bench.copy)
    hip.do("EventDestroy", old)
    new = hip.event()
    hip.do("StreamWaitEvent", bench.compute, new, 0)
    bench.use()
    assert pairs() == [("H2D write", "D2D read")]
    hip.do("EventDestroy", new)
    hip.do("DeviceSynchronize")


def test_null_stream_orders_blocking_streams_only(hip, bench):
    blocking = bench.device.stream(0)
    hip.do("MemcpyAsync", bench.slot, bench.source, N, HOST_TO_DEVICE, blocking)
    hip.do("MemcpyAsync", bench.out, bench.slot, N, DEVICE_TO_DEVICE, 0)
    hip.do("MemsetAsync", bench.slot, 0, N, blocking)
    assert pairs() == []
    hip.do("MemsetAsync", bench.slot, 0, N, bench.copy)
    assert pairs() == [("memset write", "memset write")]
    hip.do("DeviceSynchronize")


def test_synchronous_copy_orders_the_host(hip, bench):
    hip.do("Memcpy", bench.slot, bench.source, N, HOST_TO_DEVICE)
    control.host_write(bench.source, N)
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)
    hip.do("EventSynchronize", bench.copied)
    back = bytearray(N)
    address = ctypes.addressof((ctypes.c_char * N).from_buffer(back))
    hip.do("MemcpyAsync", address, bench.slot, N, DEVICE_TO_HOST, bench.compute)  # pageable: waits
    hip.do("MemsetAsync", bench.slot, 0, N, bench.copy)
    assert pairs() == []
    hip.do("DeviceSynchronize")


def test_freeing_waits_for_the_device_but_not_for_other_threads(hip, bench):
    slot = hip.malloc(N)
    hip.do("MemsetAsync", slot, 1, N, bench.copy)
    hip.do("Free", slot)
    assert pairs() == []
    pinned = hip.host_malloc(N)
    in_thread(lambda: control.host_write(pinned, N))
    hip.do("HostFree", pinned)
    assert pairs() == [("host write", "free")]


def test_memory_that_is_allocated_again_has_no_past(hip, bench):
    for _ in range(3):
        slot = hip.malloc(N)
        stream = hip.stream()
        hip.do("MemsetAsync", slot, 1, N, stream)
        hip.do("StreamDestroy", stream)
        hip.do("Free", slot)
    assert pairs() == []


@pytest.mark.parametrize("announced_inside", [True, False])
def test_host_functions_access_memory_in_stream_order(hip, bench, announced_inside):
    @HostFunction
    def kernel(_):
        if announced_inside:
            control.host_read(bench.slot, N)

    bench.h2d()
    control.label(entry=5, slot=2)
    if not announced_inside:
        control.next_host_func_accesses([(bench.slot, N, False)])
    hip.do("LaunchHostFunc", bench.copy, kernel, None)
    hip.do("StreamSynchronize", bench.copy)
    assert pairs() == []
    hip.do("LaunchHostFunc", bench.copy, kernel, None)  # announced for one launch, not for this one
    hip.do("EventRecord", bench.copied, bench.copy)
    hip.do("EventSynchronize", bench.copied)
    control.label(entry=6, slot=2)
    if not announced_inside:
        control.next_host_func_accesses([(bench.slot, N, False)])
    hip.do("LaunchHostFunc", bench.copy, kernel, None)
    while control.live()["pending_operations"]:
        pass
    hip.do("MemsetAsync", bench.slot, 0, N, bench.compute)
    (finding,) = control.findings()
    assert (finding.earlier.operation, finding.later.operation) == ("host function read", "memset write")
    assert (finding.earlier.entry, finding.earlier.slot) == (6, 2)
    assert finding.earlier.stream_handle == bench.copy
    control.label()
    hip.do("DeviceSynchronize")


def test_host_function_hands_over_to_a_thread(hip, bench):
    @HostFunction
    def kernel(_):
        control.handover_release(77)

    bench.h2d()
    hip.do("LaunchHostFunc", bench.copy, kernel, None)
    hip.do("StreamSynchronize", bench.copy)

    def refill():
        control.handover_acquire(77)
        control.host_write(bench.source, N)

    in_thread(refill)
    assert pairs() == []


def test_pageable_memory_is_not_watched(hip, bench):
    plain = bytearray(N)
    address = ctypes.addressof((ctypes.c_char * N).from_buffer(plain))
    in_thread(lambda: control.host_write(address, N))
    control.host_write(address, N)
    hip.do("MemcpyAsync", bench.slot, address, N, HOST_TO_DEVICE, bench.copy)
    assert pairs() == []
    assert control.checked_accesses() == 1
    hip.do("DeviceSynchronize")


def test_ignored_wait_is_found(hip, bench):
    bench.h2d()
    hip.do("EventRecord", bench.copied, bench.copy)
    control.inject("hipStreamWaitEvent", action="ignore")
    hip.do("StreamWaitEvent", bench.compute, bench.copied, 0)
    bench.use()
    assert pairs() == [("H2D write", "D2D read")]
    hip.do("DeviceSynchronize")


def test_findings_stay_when_it_is_turned_off_and_go_when_it_is_turned_on(hip, bench):
    bench.h2d()
    bench.use()
    hip.do("DeviceSynchronize")
    assert control.finding_count() == 1
    control.checker(False)
    bench.h2d()
    bench.use()
    hip.do("DeviceSynchronize")
    assert control.finding_count() == 1
    control.checker(True)
    assert control.finding_count() == 0
    bench.h2d()
    bench.use()
    assert control.finding_count() == 1
    control.clear_findings()
    assert control.findings() == []
    hip.do("DeviceSynchronize")


def test_findings_beyond_those_kept_are_counted(hip, bench):
    for _ in range(1200):
        hip.do("MemsetAsync", bench.slot, 0, N, bench.copy)
        hip.do("MemsetAsync", bench.slot, 0, N, bench.compute)
    assert len(control.findings()) == 1000
    assert control.finding_count() == 2399
    hip.do("DeviceSynchronize")
