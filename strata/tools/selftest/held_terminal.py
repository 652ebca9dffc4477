"""Fixture 3, the held terminal: a copy group waits for its last slot's reader, and for nothing less.

The engine reads the slots that the second turn's first copy group will fill, and just before the last of its
releases the compute stream is held back: that slot's `used` event is submitted, but cannot complete. So the group
may be submitted and published, while none of its bytes may move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from strata import _hip
from strata.engine.request import Request
from strata.engine.slot import Slot
from strata.errors import StrataError
from strata.runtime.software import control
from strata.settings import BatchSettings
from strata.streamer import ExpertStreamer
from strata.tools.selftest.bench import DEADLINE_S, Bench, Raw, settles
from strata.tools.selftest.entries import Entries, make_entries
from strata.tools.selftest.holds import Hold
from strata.tools.selftest.oracle import Oracle
from strata.tools.selftest.outcome import Outcome
from strata.tools.selftest.readback import Look, Readback
from strata.tools.selftest.sources import Pool

__all__ = ["run"]

LEFT_OUT = "held terminal: without the log of calls, and with the compute stream kept busy rather than held by a latch"

SLOT = 8 * 1024
HOST_RING = 16
#: Looks at something that must not happen; the runtime moves on by itself meanwhile, if it can.
_LOOKS = 96
#: Seconds for which a real device is kept busy: longer where that was not enough for all looks.
_BUSY_S = (0.01, 0.05, 0.2, 1.0)


class _TooShort(StrataError):
    """The compute stream has gone on before everything was looked at."""


@dataclass(frozen=True)
class _Configuration:
    gpu_ring: int
    batch: int
    staged: bool

    @property
    def name(self) -> str:
        return f"gpu_ring {self.gpu_ring}, batch {self.batch}, {'staged' if self.staged else 'direct'}"


def _configurations(quick: bool) -> Iterator[_Configuration]:
    for gpu_ring in (8,) if quick else (8, 13):
        for batch in (1, 4) if quick else (1, 2, 3, 4, 8):
            for staged in (False, True):
                yield _Configuration(gpu_ring, batch, staged)


def run(bench: Bench, outcome: Outcome) -> None:
    """Run the fixture."""
    if not bench.software:
        outcome.leave_out(LEFT_OUT)
    pinned = Pool(bench, 1024 * 1024, pinned=True)
    pageable = Pool(bench, 1024 * 1024, pinned=False)
    back = Readback(bench, 64, SLOT)
    for number, wanted in enumerate(_configurations(bench.quick)):
        bench.say(f"held terminal: {wanted.name}")
        rng = np.random.default_rng([bench.seed, number, 3])
        # Two turns of the ring, and the first group of a third.
        kinds = [wanted.staged] * (2 * wanted.gpu_ring + wanted.batch)
        entries = make_entries(rng, kinds, pinned, pageable, SLOT, number, ragged=False)
        settings = BatchSettings(wanted.batch, wanted.batch, wanted.batch)
        with outcome.case(wanted.name) as problems:
            for seconds in _BUSY_S:
                problems.clear()
                outcome.generations += 1
                try:
                    with Raw() as raw, bench.streamer(SLOT, gpu_ring=wanted.gpu_ring, host_ring=HOST_RING, workers=1,
                                                      settings=settings) as streamer:
                        problems += _Terminal(bench, streamer, entries, back, raw, seconds).run(outcome)
                    break
                except _TooShort as problem:
                    problems.append(f"{problem}: {seconds:g} s were wanted")
                finally:
                    if bench.software:
                        control.call_log(False)
    outcome.bytes_checked += back.bytes_checked


class _Terminal:
    """One request in which one `used` event is held back."""

    def __init__(
        self, bench: Bench, streamer: ExpertStreamer, entries: Entries, back: Readback, raw: Raw, seconds: float
    ) -> None:
        self._bench = bench
        self._seconds = seconds
        # Made before anything is held: drivers may wait for the device when they allocate.
        self._behind = raw.event()
        self._look = Look(bench, raw, SLOT)
        self._streamer = streamer
        self._entries = entries
        self._back = back
        self._oracle = Oracle(streamer.gpu_ring, streamer.host_ring, **asdict(streamer.settings))
        self._groups = self._oracle.groups([entries.kinds])

    def run(self, outcome: Outcome) -> list[str]:
        """Return what was wrong."""
        streamer, entries = self._streamer, self._entries
        after = next(group for group in self._groups if group.begin == streamer.gpu_ring)
        terminal = after.end - 1 - streamer.gpu_ring  # the reader of the group's last slot
        problems: list[str] = []
        self._back.clear()
        if self._bench.software:
            control.call_log(True)
        with streamer.begin(entries.copies) as request:
            slots = []
            for entry in range(terminal + 1):
                slot = request.acquire(DEADLINE_S)
                self._read(entry, slot)
                slots.append(slot)
            slots[-1].synchronize()  # so that the slots are known to hold these entries from here on
            for slot in slots[:-1]:
                slot.release()
            request.flush()  # where dependencies are shared, a release inside its copy group is pending
            # The terminal is not released: the window has no room for the group that follows.
            closed = self._oracle.published(self._groups, terminal)
            settles(lambda: request.issued, closed, "entries published before the terminal's release")
            hold = self._bench.hold(streamer.compute_stream, self._seconds)
            try:
                if request.issued != closed:
                    problems.append(f"{request.issued} entries published before the terminal's release")
                slots[-1].release()
                request.flush()
                problems += self._held(request, hold, terminal + 1, after.begin, after.end)
            finally:
                hold.release()
            self._rest(request, terminal + 1)
        _hip.synchronize_stream(streamer.compute_stream)
        if self._bench.software:
            control.call_log(False)
            problems += self._log_problems(terminal, after.begin, after.end)
        outcome.note(request.counters)
        if request.counters.fence_errors or request.counters.begin_waits:
            problems.append(f"unexpected counters: {request.counters.as_dict()}")
        return problems + self._back.problems()

    def _read(self, entry: int, slot: Slot) -> None:
        self._back.read(self._entries, entry, slot.address, self._streamer.compute_stream)

    def _held(self, request: Request, hold: Hold, old: int, begin: int, end: int) -> list[str]:
        """While the terminal's `used` is held: the group is published, and none of its bytes moves."""
        streamer, entries = self._streamer, self._entries
        opened = self._oracle.published(self._groups, old)
        settles(lambda: request.issued, opened, "entries published after the terminal's release")
        problems = []
        records = sum(1 for group in self._groups if group.end <= opened)
        counters = request.counters
        counted = counters.direct_copied_records + counters.staged_copied_records
        if counted != records:
            problems.append(f"{counted} copied records with {opened} entries published, expected {records}")
        # An event behind the group's copies must stay undone; asking for it is what moves a runtime that
        # works on demand.
        _hip.record_event(self._behind, streamer.copy_stream)
        if any(_hip.query_event(self._behind) for _ in range(_LOOKS)):
            problems.append("the copy stream went past the wait for the terminal's used event, which is held")
        for entry in range(begin, end):
            slot = entry % streamer.gpu_ring
            if entries.first_wrong(slot, self._look.at(streamer.slots[slot])) is not None:
                problems.append(f"slot {slot} no longer holds entry {slot} while its group's last reader is held")
        if not hold.lasts():
            raise _TooShort("the compute stream went on before everything was looked at")
        return problems

    def _rest(self, request: Request, consumed: int) -> None:
        """After the latch is open, take the rest of the list."""
        for entry in range(consumed, len(self._entries)):
            allowed = self._oracle.published(self._groups, entry)
            request.flush()
            settles(lambda: request.issued, allowed, f"entries published with {entry} released")
            slot = request.acquire(DEADLINE_S)
            self._read(entry, slot)
            slot.release()

    def _log_problems(self, terminal: int, begin: int, end: int) -> list[str]:
        """The calls around the group: one wait, on the terminal's event, the copies, one record, in this order."""
        streamer = self._streamer
        used = 0
        order = []
        for call in control.logged_calls():
            if call.function == "hipEventRecord" and call.stream == streamer.compute_stream and call.entry == terminal:
                used = call.event
            elif call.stream == streamer.copy_stream and begin <= call.entry < end:
                if call.function == "hipStreamWaitEvent":
                    order.append(("wait", call.event))
                elif call.function == "hipMemcpyAsync":
                    order.append(("copy", call.entry))
                elif call.function == "hipEventRecord" and call.entry == end - 1:
                    order.append(("record", 0))
        wanted = [("wait", used), *(("copy", entry) for entry in range(begin, end)), ("record", 0)]
        # A staged job that ends its ownership group has a record of its own behind its copy.
        seen = [step for k, step in enumerate(order) if step[0] != "record" or k == len(order) - 1]
        if seen != wanted:
            return [f"the group's calls were {seen}, expected {wanted}"]
        return []
