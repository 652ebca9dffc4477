"""What the fixtures work on: the process's runtime, and the means to be unkind that it offers."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from strata import _hip, runtime
from strata.runtime.software import control
from strata.runtime.software._binding import library
from strata.selftest.outcome import Outcome

__all__ = ["DEADLINE_S", "SCHEDULES", "Bench", "Raw", "settles"]

#: Schedules of the software runtime that move bytes.
SCHEDULES = ("eager", "lazy", "random", "copies-first", "compute-first")

#: How long anything may take that should come at once.
DEADLINE_S = 20.0

_LEAKS = ("streams", "events", "device_allocations", "pinned_bytes", "registered_ranges")


def settles(read: Callable[[], int], wanted: int, what: str) -> None:
    """Poll until a number has the value that was predicted.

    Raises
    ------
    TimeoutError
        It does not come to that; the text begins with `what`.
    """
    began = time.perf_counter()
    looks = 0
    while (now := read()) != wanted:
        looks += 1
        if looks > 200:
            if time.perf_counter() - began > DEADLINE_S:
                raise TimeoutError(f"{what}: {now} after {DEADLINE_S:g} s, expected {wanted}")
            time.sleep(50e-6)  # other threads may need this processor


class Bench:
    """One run of fixtures in this process.

    Parameters
    ----------
    schedule : str, optional
        Of the software runtime.
    seed : int
        Of everything that is random.
    quick : bool
        Fewer configurations.
    say : callable, optional
        Called with a line of progress, often.
    """

    def __init__(
        self, *, schedule: str | None = None, seed: int = 0, quick: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.software = runtime.ensure() == "software"
        self.schedule = schedule
        self.seed = seed
        self.quick = quick
        self.say = say

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Under the schedule, with strata's threads announcing what they do, and without its warnings."""
        logger = logging.getLogger("strata")
        level = logger.level
        logger.setLevel(logging.ERROR)  # buffers that we keep from being pinned are no news
        before: dict[str, Any] = {}
        try:
            if self.software:
                before = control.configuration()
                if self.schedule is not None:
                    control.configure(schedule=self.schedule, seed=self.seed)
                native = library()
                _hip.set_announcements(*(
                    int(ctypes.cast(getattr(native, "strata_sw_" + name), ctypes.c_void_p).value or 0)
                    for name in ("host_write", "host_read", "handover_release", "handover_acquire", "label")
                ))
            yield
        finally:
            logger.setLevel(level)
            if self.software:
                _hip.set_announcements(0, 0, 0, 0, 0)
                if before:
                    control.configure(schedule=before["schedule"], seed=before["seed"])

    @contextmanager
    def watched(self, outcome: Outcome) -> Iterator[None]:
        """With the happens-before checker on, and a look at what is left behind."""
        if not self.software:
            outcome.leave_out("happens-before checker: a real device does not tell what it orders")
            yield
            return
        live = control.live()
        control.checker(True)
        try:
            yield
            outcome.findings = control.finding_count()
            outcome.accesses = control.checked_accesses()
            for finding in control.findings()[:5]:
                outcome.fail(f"happens-before: {finding}")
            if outcome.findings > 5:
                outcome.fail(f"happens-before: {outcome.findings - 5} more findings")
            if outcome.accesses == 0:
                outcome.fail("the happens-before checker has seen no access at all")
        finally:
            control.checker(False)
        left = control.live()
        for key in _LEAKS:
            if left[key] != live[key]:
                outcome.fail(f"left behind: {key} are {left[key]}, were {live[key]}")

    # --- being unkind -----------------------------------------------------------------------------------------

    def hold(self, stream: int) -> control.Hold | None:
        """Hold a stream back from here on, where the runtime can; `release` it."""
        return control.hold(stream) if self.software else None

    @contextmanager
    def unpinnable(self, buffers: Sequence[int]) -> Iterator[None]:
        """Let the n-th pinned allocations in here fail, counted from 0."""
        injected = [control.inject("hipHostMalloc", buffer + 1, 2) for buffer in buffers]
        try:
            yield
        finally:
            if not all(injection.fired for injection in injected):
                control.clear_injections()

    # --- telling the checker what this thread does ------------------------------------------------------------

    def announce_write(self, array: npt.NDArray[np.uint8]) -> None:
        """This thread has written the array."""
        if self.software and array.nbytes:
            control.host_write(array.ctypes.data, array.nbytes)

    def announce_read(self, array: npt.NDArray[np.uint8]) -> None:
        """This thread reads the array."""
        if self.software and array.nbytes:
            control.host_read(array.ctypes.data, array.nbytes)


class Raw:
    """Streams, events and device memory of a fixture's own, given back at its end."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def stream(self) -> int:
        """Make a stream, which is drained at the end."""
        stream = _hip.create_stream()
        self._stack.callback(_hip.destroy_stream, stream)
        self._stack.callback(_hip.synchronize_stream, stream)
        return stream

    def event(self) -> int:
        """Make an event."""
        event = _hip.create_event()
        self._stack.callback(_hip.destroy_event, event)
        return event

    def memory(self, nbytes: int) -> int:
        """Allocate device memory."""
        address = _hip.malloc(nbytes)
        self._stack.callback(_hip.free, address)
        return address
