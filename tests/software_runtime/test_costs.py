"""Costs: accounts that add up, clocks that keep order, time that is really spent."""

from __future__ import annotations

import time

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import HOST_TO_DEVICE, HostFunction, view

N = 4096
US = 1000


def test_stream_costs_add_up_per_operation_and_byte(hip, device):
    control.configure(schedule="timed")
    stream, event = device.stream(), device.event()
    source, target = device.host_malloc(N), device.malloc(N)
    control.cost("copy", stream_ns=10 * US, per_byte_ns=0.5)
    control.cost("record", stream_ns=7 * US)
    control.cost("wait", stream_ns=3 * US)
    for _ in range(20):
        hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
        hip.do("EventRecord", event, stream)
        hip.do("StreamWaitEvent", stream, event, 0)
    hip.do("StreamSynchronize", stream)
    assert control.spent("copy") == control.Spent(0, 20 * (10 * US + N // 2), 20)
    assert control.spent("record") == control.Spent(0, 20 * 7 * US, 20)
    assert control.spent("wait") == control.Spent(0, 20 * 3 * US, 20)


def test_timed_copies_move_no_bytes_and_eager_ones_do(hip, device):
    stream, source, target = device.stream(), device.host_malloc(N), device.malloc(N)
    view(source, N)[:] = 1
    view(target, N)[:] = 0
    control.configure(schedule="timed")
    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
    hip.do("MemsetAsync", target, 5, N, stream)
    hip.do("StreamSynchronize", stream)
    assert (view(target, N) == 0).all()
    control.configure(schedule="eager")
    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
    hip.do("StreamSynchronize", stream)
    assert (view(target, N) == 1).all()


def test_clock_of_a_busy_stream_is_exactly_the_sum_of_its_costs(hip, device):
    """However late threads wake up: the clock between two records is what was queued between them."""
    control.configure(schedule="timed")
    stream = device.stream()
    hip.do("StreamSynchronize", stream)
    with control.hold(stream):
        control.delay(stream, 1)
        for _ in range(500):
            control.delay(stream, 55 * US)
    wall = -time.perf_counter_ns()
    hip.do("StreamSynchronize", stream)
    wall += time.perf_counter_ns()
    assert control.spent("delay").stream_ns == 1 + 500 * 55 * US
    assert wall >= 0.9 * 500 * 55 * US  # spent, not only accounted


def test_dependencies_carry_time_between_streams(hip, device):
    """What waits for a record starts when that ended by its stream's clock, not when a thread noticed."""
    control.configure(schedule="timed")
    first, second, event = device.stream(), device.stream(), device.event()
    source, target = device.host_malloc(N), device.malloc(N)
    control.cost("copy", stream_ns=200 * US)
    hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, first)
    with control.hold(first):
        for _ in range(10):
            hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, first)
        hip.do("EventRecord", event, first)
        hip.do("StreamWaitEvent", second, event, 0)
        hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, second)
    hip.do("StreamSynchronize", second)
    assert control.stream_clock(second) == control.stream_clock(first) + 200 * US


def test_two_streams_spend_time_side_by_side(hip, device):
    control.configure(schedule="timed")
    streams = [device.stream() for _ in range(2)]
    latches = [control.hold(stream) for stream in streams]
    for stream in streams:
        control.delay(stream, 20_000 * US)
    for latch in latches:
        latch.release()
    hip.do("DeviceSynchronize")
    clocks = [control.stream_clock(stream) for stream in streams]
    assert abs(clocks[0] - clocks[1]) < 19_000 * US


def test_host_costs_are_spent_on_the_calling_thread(hip, device):
    stream, event = device.stream(), device.event()
    control.cost("record", host_ns=200 * US)
    control.cost("query", host_ns=100 * US)
    control.cost("sync", host_ns=50 * US)
    began = time.perf_counter_ns()
    for _ in range(50):
        hip.do("EventRecord", event, stream)
    for _ in range(10):
        hip.EventQuery(event)
        hip.StreamQuery(stream)
    hip.do("StreamSynchronize", stream)
    elapsed = time.perf_counter_ns() - began
    assert control.spent("record").host_ns == 50 * 200 * US
    assert control.spent("query").host_ns == 20 * 100 * US
    assert control.spent("sync").host_ns == 50 * US
    assert elapsed >= 0.99 * (50 * 200 + 20 * 100 + 50) * US


def test_host_function_takes_its_own_time_and_its_cost(hip, device):
    control.configure(schedule="timed")
    stream = device.stream()

    @HostFunction
    def work(_):
        until = time.perf_counter_ns() + 2000 * US
        while time.perf_counter_ns() < until:
            pass

    control.cost("host_func", stream_ns=1000 * US)
    control.delay(stream, 1)
    hip.do("StreamSynchronize", stream)
    began = control.stream_clock(stream)
    hip.do("LaunchHostFunc", stream, work, None)
    hip.do("StreamSynchronize", stream)
    assert control.stream_clock(stream) - began >= 3000 * US


@pytest.mark.parametrize("name", ["lazy", "random"])
def test_demand_schedules_account_and_do_not_wait(hip, device, name):
    control.configure(schedule=name)
    stream = device.stream()
    control.cost("record", stream_ns=1)
    control.delay(stream, 3_600_000_000 * US)  # an hour
    hip.do("StreamSynchronize", stream)
    assert control.spent("delay").stream_ns == 3_600_000_000 * US


def test_expensive_dependencies_make_grouping_worth_it(hip, device):
    """An imitation in small: 96 copies with a record each, against one record for eight."""
    control.configure(schedule="timed")
    stream, event = device.stream(), device.event()
    source, target = device.host_malloc(N), device.malloc(N)
    control.cost("copy", stream_ns=40 * US)
    control.cost("record", stream_ns=55 * US)

    def run(group: int) -> None:
        with control.hold(stream):
            control.delay(stream, 1)
            for k in range(96):
                hip.do("MemcpyAsync", target, source, N, HOST_TO_DEVICE, stream)
                if (k + 1) % group == 0:
                    hip.do("EventRecord", event, stream)
        hip.do("StreamSynchronize", stream)

    def spent_on_stream() -> int:
        return control.spent("copy").stream_ns + control.spent("record").stream_ns

    before = spent_on_stream()
    run(1)
    single = spent_on_stream() - before
    run(8)
    grouped = spent_on_stream() - before - single
    assert single == 96 * 95 * US
    assert grouped == (96 * 40 + 12 * 55) * US


def test_costs_are_checked(hip):
    for call, text in [
        (lambda: control.cost("kernel", stream_ns=1), "kind='kernel'"),
        (lambda: control.cost("copy", stream_ns=-1), "stream_ns=-1"),
        (lambda: control.cost("record", per_byte_ns=1.0), "only copies"),
        (lambda: control.cost("copy", per_byte_ns=-1.0), "ns_per_byte=-1"),
        (lambda: control.delay(0, -5), "ns=-5"),
        (lambda: control.stream_clock(0x77), "not a stream"),
        (lambda: control.spent("nothing"), "kind='nothing'"),
    ]:
        with pytest.raises(control.ControlError, match=text):
            call()


def test_new_stream_on_an_old_place_starts_with_a_new_clock(hip):
    """An hour that a stream was charged for, without waiting, is not its successor's."""
    control.configure(schedule="lazy")
    old = hip.stream()
    control.delay(old, 3_600_000_000 * US)
    hip.do("StreamSynchronize", old)
    hip.do("StreamDestroy", old)
    control.configure(schedule="timed")
    new = hip.stream()
    control.delay(new, 1)
    hip.do("StreamSynchronize", new)
    hip.do("StreamDestroy", new)
