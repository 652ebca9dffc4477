"""Random programs on streams, a sequential oracle for their bytes, and one for their order.

A program is a list of steps by one host thread: operations on streams and the synchronization
between them. The generator puts in a synchronization only where two conflicting steps have no order
yet, so that a complete program is properly synchronized and each synchronization was needed when it
was put in. Whether it still is once the program is complete, `unordered_conflicts` says: it builds the
graph of what comes before what, by steps and bit sets, and looks at every pair of conflicting steps.
It shares no code and no method with the runtime's checker.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from strata.runtime.software import control
from tests.software_runtime.hip import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    Hip,
    HostFunction,
    view,
)

NBYTES = 512
SYNCHRONIZATIONS = ("record", "wait", "event_sync", "stream_sync", "device_sync")


@dataclass(frozen=True)
class Step:
    """`reads` and `writes` are buffers: ("device" or "pinned", index)."""

    kind: str
    stream: int = -1
    event: int = -1
    reads: tuple[tuple[str, int], ...] = ()
    writes: tuple[tuple[str, int], ...] = ()
    value: int = 0


@dataclass
class Order:
    """What comes before what: for each step the set, as bits, of the steps before it.

    Stream 0 is the null stream, the next `blocking` ones are blocking streams.
    """

    blocking: int
    before: list[int] = field(default_factory=list)
    host: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        bit = 1 << len(self.before)
        if step.kind == "event_sync":
            self.host |= self.events.get(step.event, 0)
        elif step.kind == "stream_sync":
            # Only the null stream's synchronization reaches beyond the stream's own operations.
            own = self.streams.get(step.stream, 0)
            self.host |= self._stream(0) if step.stream == 0 else own
        elif step.kind == "device_sync":
            for known in self.streams.values():
                self.host |= known
        if step.stream < 0 or step.kind == "stream_sync":
            self.before.append(self.host)
            self.host |= bit
            return
        known = self.host | self._stream(step.stream)
        if step.kind == "wait":
            known |= self.events.get(step.event, 0)
        self.before.append(known)
        self.streams[step.stream] = known | bit
        if step.kind == "record":
            self.events[step.event] = known | bit

    def _stream(self, stream: int) -> int:
        known = self.streams.get(stream, 0)
        if stream == 0:
            for other in range(1, 1 + self.blocking):
                known |= self.streams.get(other, 0)
        elif stream <= self.blocking:
            known |= self.streams.get(0, 0)
        return known

    def would_know(self, step: Step) -> int:
        """The steps before `step` if it came next."""
        return self.host if step.stream < 0 else self.host | self._stream(step.stream)


def conflict(a: Step, b: Step) -> bool:
    return any(x in b.writes for x in (*a.reads, *a.writes)) or any(x in a.writes for x in b.reads)


@dataclass
class Program:
    steps: list[Step]
    streams: int
    blocking: int
    events: int
    device: int
    pinned: int

    def unordered_conflicts(self, without: int = -1) -> list[tuple[int, int]]:
        """Pairs of conflicting steps without an order, if step `without` has no effect."""
        order, kept = Order(self.blocking), []
        for k, step in enumerate(self.steps):
            if k != without:
                order.add(step)
                kept.append(step)
        return [
            (i, j)
            for j in range(len(kept))
            for i in range(j)
            if conflict(kept[i], kept[j]) and not order.before[j] >> i & 1
        ]

    def expected(self) -> list[np.ndarray]:
        """The bytes of all buffers, step after step on NumPy arrays."""
        memory = {("device", k): np.zeros(NBYTES, np.uint8) for k in range(self.device)}
        memory |= {("pinned", k): np.zeros(NBYTES, np.uint8) for k in range(self.pinned)}
        for step in self.steps:
            if step.kind in ("h2d", "d2h", "d2d"):
                memory[step.writes[0]][:] = memory[step.reads[0]]
            elif step.kind == "memset":
                memory[step.writes[0]][:] = step.value
            elif step.kind == "function":
                transform(memory[step.writes[0]], memory[step.reads[0]], step.value)
            elif step.kind == "host_write":
                memory[step.writes[0]][:] = pattern(step.value)
        return list(memory.values())


def pattern(value: int) -> np.ndarray:
    return (np.arange(NBYTES) * 7 + value).astype(np.uint8)


def transform(target: np.ndarray, source: np.ndarray, value: int) -> None:
    target += np.uint8(3) * source + np.uint8(value)


def generate(
    seed: int, *, operations: int = 60, streams: int = 5, blocking: int = 2, device: int = 4, pinned: int = 3
) -> Program:
    """A properly synchronized program: `streams` counts the null stream and the blocking ones."""
    draw = random.Random(seed)
    steps: list[Step] = []
    order = Order(blocking)
    events = 6

    def put(step: Step) -> None:
        steps.append(step)
        order.add(step)

    def synchronize(step: Step) -> None:
        """Put in what orders `step` behind the earlier steps that it conflicts with."""
        for i in reversed(range(len(steps))):
            if not conflict(steps[i], step) or order.would_know(step) >> i & 1:
                continue
            event = draw.randrange(events)
            on_host = step.stream < 0 or draw.random() < 0.1
            if on_host and draw.random() < 0.4:
                # Synchronizes the stream, or everything.
                put(Step("stream_sync", steps[i].stream) if draw.random() < 0.8 else Step("device_sync"))
                continue
            put(Step("record", steps[i].stream, event))
            put(Step("event_sync", event=event) if on_host else Step("wait", step.stream, event))

    def buffer(kind: str) -> tuple[str, int]:
        return kind, draw.randrange(device if kind == "device" else pinned)

    for _ in range(operations):
        stream, value = draw.randrange(streams), draw.randrange(256)
        kind = draw.choice(("h2d", "h2d", "d2h", "d2d", "memset", "function", "host_write", "host_read", "noise"))
        if kind == "h2d":
            step = Step(kind, stream, reads=(buffer("pinned"),), writes=(buffer("device"),))
        elif kind == "d2h":
            step = Step(kind, stream, reads=(buffer("device"),), writes=(buffer("pinned"),))
        elif kind in ("d2d", "function"):
            source, target = buffer("device"), buffer("device")
            if source == target:
                continue
            reads = (source,) if kind == "d2d" else (source, target)
            step = Step(kind, stream, reads=reads, writes=(target,), value=value)
        elif kind == "memset":
            step = Step(kind, stream, writes=(buffer("device"),), value=value)
        elif kind == "host_write":
            step = Step(kind, writes=(buffer("pinned"),), value=value)
        elif kind == "host_read":
            step = Step(kind, reads=(buffer("pinned"),))
        else:  # records and waits that nothing needs
            put(Step("record", stream, draw.randrange(events)))
            put(Step("wait", draw.randrange(streams), draw.randrange(events)))
            continue
        synchronize(step)
        put(step)
    put(Step("device_sync"))
    return Program(steps, streams, blocking, events, device, pinned)


CALL_OF = {
    "record": "hipEventRecord",
    "wait": "hipStreamWaitEvent",
    "event_sync": "hipEventSynchronize",
    "stream_sync": "hipStreamSynchronize",
    "device_sync": "hipDeviceSynchronize",
}


class Machine:
    """Streams, events and buffers to run programs of one shape on."""

    def __init__(self, hip: Hip, device, program: Program) -> None:
        self.hip = hip
        self.streams = [0]
        self.streams += [device.stream(0) for _ in range(program.blocking)]
        self.streams += [device.stream(1) for _ in range(program.streams - 1 - program.blocking)]
        self._device = device
        self._events: list[int] = []
        self.memory = {("device", k): device.malloc(NBYTES) for k in range(program.device)}
        self.memory |= {("pinned", k): device.host_malloc(NBYTES) for k in range(program.pinned)}
        self._function = HostFunction(self._transform)
        self._jobs: dict[int, Step] = {}

    def run(self, program: Program, *, ignore: int = -1) -> list[np.ndarray]:
        """Run a program, with the call of step `ignore` accepted and ignored; return all bytes."""
        for address in self.memory.values():
            view(address, NBYTES)[:] = 0
        for event in self._events:
            self.hip.do("EventDestroy", event)
        self._events = [self.hip.event() for _ in range(program.events)]
        try:
            for k, step in enumerate(program.steps):
                if k == ignore:
                    control.inject(CALL_OF[step.kind], action="ignore")
                control.label(entry=k)
                self._step(k, step)
            self.hip.do("DeviceSynchronize")
        finally:
            for event in self._events:
                self.hip.do("EventDestroy", event)
            self._events = []
        return [view(address, NBYTES).copy() for address in self.memory.values()]

    def _transform(self, k: int | None) -> None:
        step = self._jobs[k or 0]
        target, source = self.memory[step.writes[0]], self.memory[step.reads[0]]
        transform(view(target, NBYTES), view(source, NBYTES), step.value)

    def _step(self, k: int, step: Step) -> None:
        hip, memory = self.hip, self.memory
        stream = self.streams[step.stream] if step.stream >= 0 else 0
        if step.kind in ("h2d", "d2h", "d2d"):
            kind = {"h2d": HOST_TO_DEVICE, "d2h": DEVICE_TO_HOST, "d2d": DEVICE_TO_DEVICE}[step.kind]
            hip.do("MemcpyAsync", memory[step.writes[0]], memory[step.reads[0]], NBYTES, kind, stream)
        elif step.kind == "memset":
            hip.do("MemsetAsync", memory[step.writes[0]], step.value, NBYTES, stream)
        elif step.kind == "function":
            self._jobs[k] = step
            announced = [(memory[b], NBYTES, False) for b in step.reads]
            announced += [(memory[b], NBYTES, True) for b in step.writes]
            control.next_host_func_accesses(announced)
            hip.do("LaunchHostFunc", stream, self._function, k)
        elif step.kind == "host_write":
            control.host_write(memory[step.writes[0]], NBYTES)
            view(memory[step.writes[0]], NBYTES)[:] = pattern(step.value)
        elif step.kind == "host_read":
            control.host_read(memory[step.reads[0]], NBYTES)
        elif step.kind == "record":
            hip.do("EventRecord", self._events[step.event], stream)
        elif step.kind == "wait":
            hip.do("StreamWaitEvent", stream, self._events[step.event], 0)
        elif step.kind == "event_sync":
            hip.do("EventSynchronize", self._events[step.event])
        elif step.kind == "stream_sync":
            hip.do("StreamSynchronize", stream)
        elif step.kind == "device_sync":
            hip.do("DeviceSynchronize")
