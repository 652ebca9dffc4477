"""The schedules on demand: what runs when."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    NOT_READY,
    SUCCESS,
    HostFunction,
    view,
)

N = 64


class Bench:
    """Two streams, and slots whose bytes tell whether their copy has run."""

    def __init__(self, hip, device) -> None:
        self.hip = hip
        self.copy, self.compute = device.stream(), device.stream()
        self.source, self.slots, self.out = device.host_malloc(N), device.malloc(8 * N), device.malloc(8 * N)
        view(self.source, N)[:] = 1
        view(self.slots, 8 * N)[:] = 0
        view(self.out, 8 * N)[:] = 0

    def h2d(self, slot: int) -> None:
        self.hip.do("MemcpyAsync", self.slots + slot * N, self.source, N, HOST_TO_DEVICE, self.copy)

    def use(self, slot: int) -> None:
        """Stands for a kernel: reads the slot on the compute stream."""
        slots, out = self.slots + slot * N, self.out + slot * N
        self.hip.do("MemcpyAsync", out, slots, N, DEVICE_TO_DEVICE, self.compute)

    def ran(self) -> list[bool]:
        return [bool(view(self.slots, 8 * N)[k * N]) for k in range(8)]

    def used(self) -> list[bool]:
        return [bool(view(self.out, 8 * N)[k * N]) for k in range(8)]


@pytest.fixture
def bench(hip, device) -> Bench:
    control.configure(idle_ms=0)
    return Bench(hip, device)


def test_lazy_runs_nothing_until_forced_and_then_just_what_is_needed(hip, device, bench):
    control.configure(schedule="lazy")
    first, third = device.event(), device.event()
    for slot in range(5):
        bench.h2d(slot)
        if slot in (0, 2):
            hip.do("EventRecord", first if slot == 0 else third, bench.copy)
    assert bench.ran() == [False] * 8
    assert control.live()["executor_threads"] == 0
    hip.do("EventSynchronize", first)
    assert bench.ran() == [True] + [False] * 7
    hip.do("StreamWaitEvent", bench.compute, third, 0)
    bench.use(2)
    assert bench.ran() == [True] + [False] * 7
    hip.do("StreamSynchronize", bench.compute)
    assert bench.ran() == [True] * 3 + [False] * 5
    hip.do("DeviceSynchronize")
    assert bench.ran() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("forcing", ["Memcpy", "Free", "HostFree", "pageable"])
def test_lazy_is_forced_by_every_call_that_must_wait(hip, device, bench, forcing):
    control.configure(schedule="lazy")
    blocking, other, pinned = device.stream(0), hip.malloc(N), hip.host_malloc(N)
    hip.do("MemcpyAsync", bench.slots, bench.source, N, HOST_TO_DEVICE, blocking)
    assert not bench.ran()[0]
    if forcing == "Memcpy":
        hip.do("Memcpy", other, bench.source, N, HOST_TO_DEVICE)
    elif forcing == "pageable":
        back = bytearray(N)
        hip.do("MemcpyAsync", ctypes.addressof((ctypes.c_char * N).from_buffer(back)), bench.slots, N,
               DEVICE_TO_HOST, blocking)  # fmt: skip
        assert back == b"\1" * N
    else:
        hip.do(forcing, other if forcing == "Free" else pinned)
    assert bench.ran()[0]
    if forcing != "Free":
        hip.do("Free", other)
    if forcing != "HostFree":
        hip.do("HostFree", pinned)


def test_lazy_comes_on_when_a_program_polls(hip, device, bench):
    """Eight queries that say "not ready" in a row run one operation that the object needs; the next eight, two; …"""
    control.configure(schedule="lazy")
    event = device.event()
    for slot in range(3):
        bench.h2d(slot)
    hip.do("EventRecord", event, bench.copy)
    answers = [hip.EventQuery(event) for _ in range(24)]
    assert answers == [NOT_READY] * 23 + [SUCCESS]  # 1 + 2 + 1 of 3 copies and a record
    assert bench.ran()[:4] == [True] * 3 + [False]
    bench.h2d(3)
    answers = [hip.StreamQuery(bench.copy) for _ in range(8)]
    assert answers == [NOT_READY] * 7 + [SUCCESS]


def test_polling_follows_the_waits_of_other_streams(hip, device, bench):
    control.configure(schedule="lazy")
    copied, used = device.event(), device.event()
    bench.h2d(0)
    hip.do("EventRecord", copied, bench.copy)
    hip.do("StreamWaitEvent", bench.compute, copied, 0)
    bench.use(0)
    hip.do("EventRecord", used, bench.compute)
    polls = 0
    while hip.EventQuery(used) == NOT_READY:
        polls += 1
        assert polls < 100
    assert bench.used()[0]
    assert polls == 3 * 8 - 1  # copy; record, wait; use, record


def test_copies_first_runs_copies_at_once_and_compute_when_forced(hip, device, bench):
    control.configure(schedule="copies-first")
    copied, used = device.event(), device.event()
    bench.h2d(0)
    hip.do("EventRecord", copied, bench.copy)
    assert bench.ran()[0]
    assert hip.EventQuery(copied) == SUCCESS
    hip.do("StreamWaitEvent", bench.compute, copied, 0)
    bench.use(0)
    hip.do("EventRecord", used, bench.compute)
    bench.h2d(1)
    assert bench.ran()[1]
    assert not bench.used()[0]
    hip.do("StreamWaitEvent", bench.copy, used, 0)
    assert not bench.used()[0]
    bench.h2d(2)  # needs `used`, so that it runs now
    assert bench.used()[0]
    assert bench.ran()[2]


def test_compute_first_runs_compute_at_once_and_copies_when_needed(hip, device, bench):
    control.configure(schedule="compute-first")
    copied, used = device.event(), device.event()
    for slot in range(2):
        bench.h2d(slot)
        hip.do("EventRecord", copied, bench.copy)
    bench.h2d(2)
    assert bench.ran() == [False] * 8
    hip.do("StreamWaitEvent", bench.compute, copied, 0)
    assert bench.ran() == [False] * 8
    bench.use(1)
    assert bench.used() == [False, True] + [False] * 6
    assert bench.ran() == [True, True] + [False] * 6
    hip.do("EventRecord", used, bench.compute)
    assert hip.EventQuery(used) == SUCCESS
    hip.do("DeviceSynchronize")


def test_goals_behind_a_latch_are_pursued_when_it_opens(hip, device, bench):
    control.configure(schedule="copies-first")
    latch = control.hold(bench.copy)
    bench.h2d(0)
    assert not bench.ran()[0]
    latch.release()
    assert bench.ran()[0]


def test_goals_behind_a_host_function_are_pursued_when_it_returns(hip, device, bench):
    control.configure(schedule="copies-first")
    go, event = threading.Event(), device.event()

    @HostFunction
    def wait(_):
        go.wait(30)

    hip.do("LaunchHostFunc", bench.copy, wait, None)
    bench.h2d(0)
    hip.do("EventRecord", event, bench.copy)
    assert not bench.ran()[0]
    go.set()
    hip.do("EventSynchronize", event)
    assert bench.ran()[0]


def test_goals_behind_a_host_function_need_no_further_call(hip, device, bench):
    """The copy behind the function runs when that returns: no call is made, the idle rule is off."""
    control.configure(schedule="copies-first")
    go = threading.Event()

    @HostFunction
    def wait(_):
        go.wait(30)

    hip.do("LaunchHostFunc", bench.copy, wait, None)
    bench.h2d(0)
    go.set()
    deadline = time.monotonic() + 30
    while not bench.ran()[0]:
        assert time.monotonic() < deadline
    hip.do("DeviceSynchronize")


def test_idle_rule_sees_what_a_host_function_made_runnable(hip, device, bench):
    """Nothing can run while the first function does; the rule must wake for what follows it."""
    control.configure(schedule="lazy", idle_ms=5)
    first, go, second = threading.Event(), threading.Event(), threading.Event()

    @HostFunction
    def wait(_):
        first.set()
        go.wait(30)

    @HostFunction
    def tell(_):
        second.set()

    hip.do("LaunchHostFunc", bench.compute, wait, None)
    hip.do("LaunchHostFunc", bench.compute, tell, None)
    assert first.wait(30)
    assert not second.wait(0.1)  # long enough for the idle thread to find nothing to do
    go.set()
    assert second.wait(30)
    hip.do("DeviceSynchronize")


def test_random_leaves_some_and_runs_some(hip, device, bench):
    control.configure(schedule="random", seed=3)
    pictures = set()
    for _ in range(30):
        view(bench.slots, 8 * N)[:] = 0
        for slot in range(8):
            bench.h2d(slot)
        pictures.add(sum(bench.ran()))
        hip.do("StreamSynchronize", bench.copy)
        assert bench.ran() == [True] * 8
    assert len(pictures) >= 3


@pytest.mark.parametrize("name", ["lazy", "random", "copies-first", "compute-first"])
def test_pending_work_runs_by_itself_when_the_host_waits_elsewhere(hip, device, bench, name):
    """A host that waits for a host function outside HIP gets on, as it would on a device."""
    control.configure(schedule=name, idle_ms=20)
    reached = threading.Event()

    @HostFunction
    def tell(_):
        reached.set()

    copied = device.event()
    bench.h2d(0)
    hip.do("EventRecord", copied, bench.copy)
    hip.do("StreamWaitEvent", bench.compute, copied, 0)
    hip.do("LaunchHostFunc", bench.compute, tell, None)
    assert reached.wait(30)
    assert bench.ran()[0]
    hip.do("DeviceSynchronize")


def test_forced_stream_blocked_by_a_host_function_lets_other_streams_run(hip, device, bench):
    """The function waits for another stream's, which nothing forces: the idle rule runs it."""
    control.configure(schedule="lazy", idle_ms=20)
    signal = threading.Event()

    @HostFunction
    def await_signal(_):
        assert signal.wait(30)

    @HostFunction
    def give_signal(_):
        signal.set()

    hip.do("LaunchHostFunc", bench.compute, give_signal, None)
    hip.do("LaunchHostFunc", bench.copy, await_signal, None)
    hip.do("StreamSynchronize", bench.copy)
    assert signal.is_set()
    hip.do("DeviceSynchronize")


def test_without_the_idle_rule_nothing_runs_by_itself(hip, device, bench):
    """Waits as long as the idle rule of the test before needs, several times over."""
    control.configure(schedule="lazy", idle_ms=0)
    bench.h2d(0)
    assert not threading.Event().wait(0.2)
    assert not bench.ran()[0]
    hip.do("DeviceSynchronize")


def test_long_chain_between_streams_is_forced_without_recursion(hip, device, bench):
    control.configure(schedule="lazy")
    events = [device.event(), device.event()]
    for _ in range(3000):
        bench.h2d(0)
        hip.do("EventRecord", events[0], bench.copy)
        hip.do("StreamWaitEvent", bench.compute, events[0], 0)
        bench.use(0)
        hip.do("EventRecord", events[1], bench.compute)
        hip.do("StreamWaitEvent", bench.copy, events[1], 0)
    assert control.live()["pending_operations"] == 18000
    hip.do("EventSynchronize", events[1])
    assert bench.used()[0]
    hip.do("DeviceSynchronize")
