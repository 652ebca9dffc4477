"""As much of torch as the torch ring uses, on the software runtime, with a log of what was queued where.

Streams, events and copies are the software runtime's, so what is not ordered comes in any order under its schedules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from examples.prefill_engine.numpy_backend import NumpyBackend
from strata import _hip

log: list[str] = []
_current: list[Stream] = []

uint8 = np.uint8


class Event:
    def __init__(self) -> None:
        self.name = "an event"
        self.handle = _hip.create_event()

    def record(self, stream: Stream) -> None:
        log.append(f"{stream.name} record {self.name}")
        _hip.record_event(self.handle, stream.handle)

    def __del__(self) -> None:
        _hip.destroy_event(self.handle)


class Stream:
    """Without a handle, a new one: the ring's own."""

    def __init__(self, handle: int | None = None) -> None:
        self.owned = handle is None
        self.name = "copies" if handle is None else "compute"
        self.handle = _hip.create_stream() if handle is None else handle

    def wait_event(self, event: Event) -> None:
        log.append(f"{self.name} wait for {event.name}")
        _hip.wait_event(self.handle, event.handle)

    def wait_stream(self, other: Stream) -> None:
        log.append(f"{self.name} wait for {other.name}")
        event = Event()
        _hip.record_event(event.handle, other.handle)
        _hip.wait_event(self.handle, event.handle)

    def synchronize(self) -> None:
        log.append(f"{self.name} synchronized")
        _hip.synchronize_stream(self.handle)

    def __del__(self) -> None:
        if self.owned:
            _hip.destroy_stream(self.handle)


class Tensor(np.ndarray):
    """Host or device memory: on the software runtime they are one."""

    def copy_(self, source: Tensor, non_blocking: bool = False) -> None:
        assert non_blocking
        assert self.nbytes == source.nbytes
        log.append(f"{_current[-1].name} copy {int(source[0])}")
        _hip.memcpy_h2d_async(self.ctypes.data, source.ctypes.data, self.nbytes, _current[-1].handle)


def frombuffer(memory: Any, dtype: Any) -> Tensor:
    return np.frombuffer(memory, dtype).view(Tensor)


@contextmanager
def _on(stream: Stream) -> Iterator[None]:
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


cuda = SimpleNamespace(Stream=Stream, Event=Event, stream=_on)


class StandInBackend(NumpyBackend):
    """NumPy's arithmetic, and a stream that the stand-in knows."""

    name = "stand-in"

    def __init__(self) -> None:
        super().__init__()
        self.torch_stream = Stream(self.stream)

    def slots(self, first: int, count: int, step: int = 1) -> Any:
        return super().slots(first, count, step).view(Tensor)
