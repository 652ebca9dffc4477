"""What the fixtures work on: the process's runtime, and the means to be unkind that it offers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from strata import _hip, runtime
from strata.counters import Counters
from strata.runtime.software import control
from strata.runtime.software.checking import checked, name_handles
from strata.runtime.software.control import Schedule
from strata.streamer import ExpertStreamer
from strata.tools.patience import Patience
from strata.tools.selftest.holds import Ballast, Hold, Latch
from strata.tools.selftest.outcome import Outcome

__all__ = ["DEADLINE_S", "SCHEDULES", "Bench", "Raw", "settles"]

#: Schedules of the software runtime that move bytes.
SCHEDULES: tuple[Schedule, ...] = ("eager", "lazy", "random", "copies-first", "compute-first")

#: How long anything may take that should come at once.
DEADLINE_S = 20.0

#: Milliseconds without progress after which pending work runs by itself where a schedule would wait longer:
#: far more than a wrong engine needs to go wrong, and little enough not to be waited for.
_IDLE_MS = 5

_LEAKS = ("streams", "events", "device_allocations", "pinned_bytes", "registered_ranges")


def settles(read: Callable[[], int], wanted: int, what: str) -> None:
    """Poll until a number has the value that was predicted.

    Raises
    ------
    TimeoutError
        It does not come to that; the text begins with `what`.
    """
    patience = Patience(DEADLINE_S)
    looks = 0
    while (now := read()) != wanted:
        looks += 1
        if looks > 200:
            time.sleep(patience.slice(50e-6))  # other threads may need this processor
            if patience.spent():
                raise TimeoutError(f"{what}: {now} after {DEADLINE_S:g} s, expected {wanted}")


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
    share : bool
        Streamers share dependencies.
    say : callable, optional
        Called with a line of progress, often.

    Raises
    ------
    ValueError
        There is no such schedule, or `seed` is below 0 or no integer.
    """

    def __init__(
        self, *, schedule: Schedule | None = None, seed: int = 0, quick: bool = False,
        share: bool = False, say: Callable[[str], None] = lambda text: None,
    ) -> None:
        if schedule is not None and schedule not in SCHEDULES:
            raise ValueError(f"schedule is {schedule!r}; one of {', '.join(SCHEDULES)} is wanted")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed is {seed!r:.60}; an integer from 0 is wanted")
        self.software = runtime.ensure() == "software"
        self.schedule = schedule
        self.seed = seed
        self.quick = quick
        self.share = share
        self.say = say
        self._ballast: Ballast | None = None

    def differences(self, counters: Counters, expected: Mapping[str, int]) -> list[str]:
        """Say which counters are not as expected; what was shared counts as if it had been asked for."""
        found = counters.as_dict()
        if self.share:
            found = {name: number + found.get(f"{name}_shared", 0) for name, number in found.items()}
        return [f"{name} is {found[name]}, expected {number}" for name, number in expected.items()
                if found[name] != number]

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Under the schedule, and without strata's warnings."""
        logger = logging.getLogger("strata")
        level = logger.level
        logger.setLevel(logging.ERROR)  # buffers that we keep from being pinned are no news
        before: dict[str, Any] | None = None
        try:
            if self.software and self.schedule is not None:
                before = control.configuration()
                control.configure(schedule=self.schedule, seed=self.seed, idle_ms=_IDLE_MS)
            yield
        finally:
            logger.setLevel(level)
            if before is not None:
                control.configure(schedule=before["schedule"], seed=before["seed"], idle_ms=before["idle_ms"])

    @contextmanager
    def watched(self, outcome: Outcome) -> Iterator[None]:
        """With the happens-before checker on, and a look at what is left behind."""
        if not self.software:
            outcome.leave_out("happens-before checker: a real device does not tell what it orders")
            yield
            return
        live = control.live()
        with checked():
            yield
            outcome.findings = control.finding_count()
            outcome.accesses = control.checked_accesses()
            for finding in control.findings()[:5]:
                outcome.fail(f"happens-before: {finding}")
            if outcome.findings > 5:
                outcome.fail(f"happens-before: {outcome.findings - 5} more findings")
            if outcome.accesses == 0:
                outcome.fail("the happens-before checker has seen no access at all")
        left = control.live()
        for key in _LEAKS:
            if left[key] != live[key]:
                outcome.fail(f"left behind: {key} are {left[key]}, were {live[key]}")

    @contextmanager
    def streamer(self, slot_bytes: int, *, share: bool | None = None, **arguments: Any) -> Iterator[ExpertStreamer]:
        """A streamer that waits for no more than the deadline, and whose streams and events findings name."""
        with ExpertStreamer(slot_bytes, stall_timeout=DEADLINE_S,
                            share_dependencies=self.share if share is None else share, **arguments) as streamer:
            if self.software:
                name_handles(streamer)
            yield streamer

    @contextmanager
    def holding(self) -> Iterator[None]:
        """With what `hold` needs on a real device, for which memory is taken at the first one."""
        try:
            yield
        finally:
            ballast, self._ballast = self._ballast, None
            if ballast is not None:
                ballast.close()

    # --- being unkind -----------------------------------------------------------------------------------------

    def hold(self, stream: int, seconds: float) -> Hold:
        """Hold a stream back from here on: until `release`, or on a real device for about so many seconds."""
        if self.software:
            return Latch(stream)
        if self._ballast is None:
            self._ballast = Ballast()
        return self._ballast.put(stream, seconds)

    @contextmanager
    def unpinnable(self, buffers: Sequence[int]) -> Iterator[None]:
        """Let the n-th pinned allocations in here fail, counted from 0.

        The software runtime is asked to refuse them; on a device strata's own allocation does so.
        """
        if not self.software:
            _hip.refuse_pinned(buffers)
            try:
                yield
            finally:
                _hip.refuse_pinned()
            return
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


class Raw(ExitStack):
    """Streams, events and device memory of a fixture's own, given back at its end."""

    def stream(self) -> int:
        """Make a stream, which is drained at the end."""
        stream = _hip.create_stream()
        self.callback(_hip.destroy_stream, stream)
        self.callback(_hip.synchronize_stream, stream)
        return stream

    def event(self) -> int:
        """Make an event."""
        event = _hip.create_event()
        self.callback(_hip.destroy_event, event)
        return event

    def memory(self, nbytes: int) -> int:
        """Allocate device memory."""
        address = _hip.malloc(nbytes)
        self.callback(_hip.free, address)
        return address
