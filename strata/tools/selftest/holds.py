"""Holding a stream back: with a latch where the runtime has one, else with work that takes its time.

A real device has no latch that cannot go wrong. A host function that blocks, or a wait for a value in memory, may
block what the driver does elsewhere, for ever. Work that keeps a stream busy ends by itself; whether it lasted
until the look is over can be asked afterwards.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Protocol

from strata import _hip
from strata.runtime.software import control

__all__ = ["Ballast", "Hold", "Latch"]

#: Device memory that the work writes, bytes; less where that is more than a share of what is free.
BALLAST_BYTES = 1024 * 1024 * 1024
_SHARE = 8
#: Operations that are queued at most: drivers let a thread wait that queues about a thousand.
_MOST = 512


class Hold(Protocol):
    """A stream that is held back."""

    def lasts(self) -> bool:
        """Whether the stream is still held back."""

    def release(self) -> None:
        """Let it go on, where it does not by itself."""


class Latch:
    """A latch of the software runtime: the stream stays where it is until `release`."""

    def __init__(self, stream: int) -> None:
        self._hold: control.Hold | None = control.hold(stream)

    def lasts(self) -> bool:
        """Whether the stream is still held back."""
        return self._hold is not None

    def release(self) -> None:
        """Let it go on."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None


class Busy:
    """A stream with work queued on it; `release` does not cut it short."""

    def __init__(self, end: int) -> None:
        self._end: int = end

    def lasts(self) -> bool:
        """Whether the work is still going on."""
        return not _hip.query_event(self._end)

    def release(self) -> None:
        """Do without `lasts` from here on."""
        if self._end:
            _hip.destroy_event(self._end)
            self._end = 0


class Ballast:
    """Device memory that is written again and again, by the compute units rather than a copy engine.

    Made where nothing is held yet, since a driver may wait for the device while it allocates.
    """

    def __init__(self) -> None:
        free, _ = _hip.memory_info()
        self._nbytes = min(BALLAST_BYTES, free // _SHARE)
        with ExitStack() as made:
            self._memory = _hip.malloc(self._nbytes)
            made.callback(_hip.free, self._memory)
            self._seconds = self._measured()
            self._stack = made.pop_all()

    def _measured(self) -> float:
        """Seconds of one operation."""
        stream = _hip.create_stream()
        try:
            self._queue(stream, 2)
            _hip.synchronize_stream(stream)
            began = time.perf_counter()
            self._queue(stream, 4)
            _hip.synchronize_stream(stream)
            return (time.perf_counter() - began) / 4
        finally:
            _hip.destroy_stream(stream)

    def _queue(self, stream: int, operations: int) -> None:
        for _ in range(operations):
            _hip.memset_async(self._memory, 0, self._nbytes, stream)

    def put(self, stream: int, seconds: float) -> Busy:
        """Keep a stream busy for about so long."""
        self._queue(stream, min(math.ceil(seconds / self._seconds), _MOST))
        end = _hip.create_event()
        _hip.record_event(end, stream)
        return Busy(end)

    def close(self) -> None:
        """Give the memory back. The streams must have come through the work."""
        self._stack.close()
