"""Streams held back by a test, and let go by another thread once strata waits for them."""

from __future__ import annotations

import threading
import time
from types import ModuleType

#: Calls by which a thread waits for the device, or asks whether it must.
WAITS = ("hipStreamSynchronize", "hipStreamQuery", "hipEventSynchronize", "hipEventQuery", "hipDeviceSynchronize")


class Latch:
    """Holds a stream back until it is released, by the test or at the latest when its block ends."""

    def __init__(self, control: ModuleType, stream: int) -> None:
        self._hold = control.hold(stream)
        self._lock = threading.Lock()
        self._held = True

    def release(self) -> None:
        """Let the stream go; from any thread, more than once."""
        with self._lock:
            if self._held:
                self._hold.release()
            self._held = False

    def __enter__(self) -> Latch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def waits(control: ModuleType) -> int:
    """Calls of `WAITS` since the last reset."""
    calls = control.calls()
    return sum(calls[name] for name in WAITS)


def release_once_waited_for(control: ModuleType, latch: Latch) -> threading.Thread:
    """Start a thread that lets the latch go once somebody waits for the device; to be joined.

    It gives up after a while, so that a test whose subject does not wait fails instead of hanging: the thread
    has `waited` then as False.
    """
    control.reset_calls()

    class Watcher(threading.Thread):
        waited = False

        def run(self) -> None:
            until = time.monotonic() + 10
            while not waits(control) and time.monotonic() < until:
                pass
            self.waited = waits(control) > 0
            latch.release()

    watcher = Watcher()
    watcher.start()
    return watcher
