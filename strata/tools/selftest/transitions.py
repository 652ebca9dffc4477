"""Fixture 4, transitions: from one request to the next without any synchronization by the engine.

The compute stream is held back at the worst moment: what the engine's kernels (here: copies to the host) still
have to read lies behind a latch, or on a real device behind other work, while the next request is begun and its
first copies are submitted. Everything is compared at the end, once, when all streams are drained.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np

from strata import _hip
from strata.engine.request import Request
from strata.engine.slot import Slot
from strata.runtime.software import control
from strata.settings import BatchSettings
from strata.streamer import ExpertStreamer
from strata.tools.selftest.bench import DEADLINE_S, Bench, Raw, settles
from strata.tools.selftest.entries import KINDS, Entries, make_entries, make_kinds
from strata.tools.selftest.holds import Hold
from strata.tools.selftest.oracle import Group, Oracle
from strata.tools.selftest.outcome import Outcome
from strata.tools.selftest.readback import Readback
from strata.tools.selftest.sources import Pool

__all__ = ["HOST_RING", "SLOT", "Configuration", "run"]

SLOT = 8 * 1024
HOST_RING = 16
#: How long a real device is kept busy: about what it takes to end a request and to begin the next.
_BUSY_S = 0.012
#: How long an abort is left before a stream that is held back: time enough for doing wrong, no more.
_GRACE_S = 0.03
_SYNCHRONIZE = ("hipStreamSynchronize", "hipEventSynchronize")


@dataclass(frozen=True)
class Configuration:
    """A ring, its batches, and the kind of entries."""

    gpu_ring: int
    batches: tuple[int, int, int]
    kind: str

    @property
    def name(self) -> str:
        return f"gpu_ring {self.gpu_ring}, {'/'.join(map(str, self.batches))}, {self.kind}"


def _configurations(quick: bool) -> Iterator[Configuration]:
    for gpu_ring in (8,) if quick else (8, 17):
        for batches in ((4, 4, 4),) if quick else ((1, 1, 1), (4, 4, 4), (8, 16, 16)):
            for kind in KINDS:
                yield Configuration(gpu_ring, batches, kind)


def run(bench: Bench, outcome: Outcome) -> None:
    """Run the fixture."""
    pinned = Pool(bench, 1024 * 1024, pinned=True)
    pageable = Pool(bench, 1024 * 1024, pinned=False)
    back = Readback(bench, 256, SLOT)
    held = [0, 0]
    for number, wanted in enumerate(_configurations(bench.quick)):
        for turn, (what, play) in enumerate(_PLAYS.items()):
            name = f"{what}: {wanted.name}"
            bench.say(f"transitions: {name}")
            rng = np.random.default_rng([bench.seed, number, turn, 4])
            stage = _Stage(bench, wanted, rng, pinned, pageable, back, 100 * number + 10 * turn, outcome)
            with outcome.case(name) as problems:
                problems += stage.play(play)
            held = [sum(pair) for pair in zip(held, stage.held, strict=True)]
    outcome.bytes_checked += back.bytes_checked
    if not bench.software:
        outcome.leave_out(f"transitions: without a latch; the compute stream was kept busy instead, {held[0]} of "
                          f"{held[1]} times until it was to go on")
    if 10 * held[0] < held[1]:
        outcome.fail(f"the compute stream was hardly ever held back for long enough: {held[0]} of {held[1]} times")


class _Stage:
    """One streamer, and what the engine does with it."""

    def __init__(
        self, bench: Bench, wanted: Configuration, rng: np.random.Generator, pinned: Pool, pageable: Pool,
        back: Readback, generation: int, outcome: Outcome,
    ) -> None:
        self.bench = bench
        self.gpu_ring = wanted.gpu_ring
        self.settings = BatchSettings(*wanted.batches).clamped(wanted.gpu_ring, HOST_RING)
        self.problems: list[str] = []
        self._wanted = wanted
        self._rng = rng
        self._pools = pinned, pageable
        self.back = back
        self._generation = generation
        self._outcome = outcome
        self._holds: list[Hold] = []
        self.held = [0, 0]  # until it was to go on; and in all
        self.raw = Raw()

    def play(self, what: Callable[[_Stage], None]) -> list[str]:
        """Run a transition, drain everything, and return what was wrong."""
        self.back.clear()
        with self.raw:
            self.streams = [self.raw.stream(), self.raw.stream()]
            try:
                what(self)
            finally:
                for stream in self.streams:
                    _hip.synchronize_stream(stream)
        return self.problems + self.back.problems()

    # --- making things ------------------------------------------------------------------------------------------

    @contextmanager
    def streamer(self, slots: Sequence[int] | None = None) -> Iterator[ExpertStreamer]:
        """A streamer whose kernels run on the first of our streams."""
        with self.bench.streamer(SLOT, gpu_ring=self.gpu_ring, host_ring=HOST_RING, workers=2, settings=self.settings,
                                 slots=slots, compute_stream=self.streams[0]) as made:
            try:
                yield made
            finally:
                self.release()  # also after an error: closing waits for the device

    def lent_slots(self) -> list[int]:
        """Slots of ours, in no particular order and not back to back."""
        base = self.raw.memory((2 * self.gpu_ring + 1) * SLOT)
        return [base + 2 * SLOT * int(k) for k in self._rng.permutation(self.gpu_ring)]

    def entries(self, count: int) -> Entries:
        """A list whose bytes no other list has."""
        self._generation += 1
        kinds = make_kinds(self._rng, self._wanted.kind, count)
        return make_entries(self._rng, kinds, *self._pools, SLOT, self._generation, ragged=False)

    def long(self) -> Entries:
        """A list that goes round the ring more than twice."""
        return self.entries(2 * self.gpu_ring + self.gpu_ring // 2 + 1)

    # --- the engine's side ---------------------------------------------------------------------------------------

    def hold(self, stream: int) -> None:
        """Hold a stream back from here on."""
        self._holds.append(self.bench.hold(stream, _BUSY_S))

    def release(self) -> None:
        """Let the streams go on."""
        while self._holds:
            hold = self._holds.pop()
            self.held[0] += hold.lasts()
            self.held[1] += 1
            hold.release()

    def read(self, entries: Entries, slot: Slot, stream: int, what: str) -> None:
        """Queue a kernel that reads a slot."""
        self.back.read(entries, slot.entry, slot.address, stream, what)

    def consume(self, request: Request, entries: Entries, what: str, *, stream: int, first: int = 0,
                stop: int | None = None) -> None:
        """Acquire, read and release entries."""
        for _ in range(first, len(entries) if stop is None else stop):
            slot = request.acquire(DEADLINE_S)
            self.read(entries, slot, stream, what)
            slot.release()

    def serve(self, streamer: ExpertStreamer, entries: Entries, what: str, *, stream: int | None = None,
              hold: int = 0, long_prefill: bool = True, begin_waits: int = 0,
              slots: Sequence[int] | None = None) -> None:
        """Run a whole request; the last `hold` entries, one turn of the ring at most, are read behind a latch.

        Latches of earlier requests are opened once this one has submitted its first copies.
        """
        where = self.streams[0] if stream is None else stream
        with streamer.begin(entries.copies, long_prefill=long_prefill, compute_stream=stream, slots=slots) as request:
            if self._holds:
                first = self._groups(entries, request.settings)[0].end
                self._published(request, first)
                self.release()
            self.consume(request, entries, what, stream=where, stop=len(entries) - hold)
            if hold:
                request.flush()  # what is pending where dependencies are shared: the ring's next turn waits for it
                self.hold(where)
                self.consume(request, entries, what, stream=where, first=len(entries) - hold)
        self.count(request, what, begin_waits)

    def _published(self, request: Request, least: int) -> None:
        """Wait until a group is published: its copies are submitted then."""
        settles(lambda: min(request.issued, least), least, "entries published")

    def _groups(self, entries: Entries, settings: BatchSettings) -> list[Group]:
        return Oracle(self.gpu_ring, HOST_RING, **asdict(settings)).groups([entries.kinds])

    def published(self, request: Request, entries: Entries, entry: int) -> None:
        """Wait until the group of an entry is published."""
        groups = self._groups(entries, request.settings)
        self._published(request, next(group.end for group in groups if entry < group.end))

    def count(self, request: Request, what: str, begin_waits: int) -> None:
        """Look at the counters of a request that is over."""
        self._outcome.generations += 1
        self._outcome.note(request.counters)
        if request.counters.begin_waits != begin_waits:
            self.problems.append(f"{what}: begin_waits is {request.counters.begin_waits}, expected {begin_waits}")
        if request.counters.fence_errors:
            self.problems.append(f"{what}: fence_errors is {request.counters.fence_errors}")
        # The sources are the engine's again, to do with as it likes.
        for pool in self._pools:
            pool.spoil()
            pool.restore()

    def abort(self, request: Request) -> None:
        """Abort a request; latches are opened by another thread once the abort waits for the device."""
        if not self.bench.software:
            self.release()
        if not self._holds:
            request.abort()
            return
        before = _waits_for_device()

        def open_latches() -> None:
            # The abort may also wait for a worker that waited for the device before, which no call shows.
            began = time.perf_counter()
            while _waits_for_device() == before and time.perf_counter() - began < _GRACE_S:
                time.sleep(50e-6)
            self.release()

        opener = threading.Thread(target=open_latches, name="opens latches")
        opener.start()
        try:
            request.abort()
        finally:
            opener.join()


def _waits_for_device() -> int:
    calls = control.calls()
    return sum(calls[name] for name in _SYNCHRONIZE)


# --- the transitions -------------------------------------------------------------------------------------------


def _short_after_long(stage: _Stage) -> None:
    """The long request's last turn is still being read when the short one begins."""
    with stage.streamer() as streamer:
        stage.serve(streamer, stage.long(), "long", hold=stage.gpu_ring)
        stage.serve(streamer, stage.entries(3), "short", hold=2)
        stage.serve(streamer, stage.entries(1), "shortest")


def _long_after_short(stage: _Stage) -> None:
    """A request shorter than the ring has used some slots later than the others: also within one group."""
    with stage.streamer() as streamer:
        stage.serve(streamer, stage.long(), "long")
        for count in (1, 3, stage.gpu_ring - 1):
            short = stage.entries(count)
            stage.serve(streamer, short, f"short of {count}", hold=count)
            stage.serve(streamer, stage.long(), f"long after {count}")


def _aborted(stage: _Stage) -> None:
    """Aborted in the middle of the ring, with copies queued behind a reuse wait, and begun again at once."""
    ring = stage.gpu_ring
    with stage.streamer() as streamer:
        stage.serve(streamer, stage.long(), "before")
        for held in (0, 2):
            entries = stage.long()
            request = streamer.begin(entries.copies)
            stage.consume(request, entries, "aborted", stream=stage.streams[0], stop=ring // 2)
            stage.hold(stage.streams[0])
            stage.consume(request, entries, "aborted", stream=stage.streams[0], first=ring // 2, stop=ring)
            # The second turn's first group is queued; it waits for reads behind the latch.
            stage.published(request, entries, ring)
            for entry in range(ring, ring + held):
                stage.published(request, entries, entry)
                stage.read(entries, request.acquire(DEADLINE_S), stage.streams[0], "aborted, never released")
            stage.abort(request)
            stage.count(request, "aborted", 0)
            stage.serve(streamer, stage.long(), f"after an abort with {held} slots held")


def _aborted_unread(stage: _Stage) -> None:
    """Aborted before anything was acquired, several times, each at another length."""
    with stage.streamer() as streamer:
        for count in (1, 5, 2 * stage.gpu_ring):
            request = streamer.begin(stage.entries(count).copies)
            stage.abort(request)
            stage.count(request, "aborted unread", 0)
            stage.serve(streamer, stage.entries(stage.gpu_ring + 2), f"after {count} unread")


def _lent(stage: _Stage) -> None:
    """Kernels that strata knows nothing of still read lent slots when the next request begins."""
    slots = stage.lent_slots()
    ring = stage.gpu_ring
    with stage.streamer(slots) as streamer:
        for turn in range(2):
            entries = stage.long()
            stage.serve(streamer, entries, f"lent {turn}", begin_waits=1)
            stage.hold(stage.streams[0])
            for entry in range(len(entries) - ring, len(entries)):
                stage.back.read(entries, entry, slots[entry % ring], stage.streams[0], "read after the request")
        stage.serve(streamer, stage.entries(3), "lent, short", begin_waits=1)


def _lent_and_owned(stage: _Stage) -> None:
    """Slots lent for single requests, in turn with the streamer's own."""
    slots = stage.lent_slots()
    ring = stage.gpu_ring
    with stage.streamer() as streamer:
        stage.serve(streamer, stage.long(), "owned", hold=ring)
        stage.serve(streamer, stage.long(), "lent", slots=slots, begin_waits=1, hold=ring)
        stage.serve(streamer, stage.long(), "owned again", hold=ring)
        stage.serve(streamer, stage.entries(ring - 1), "lent, short", slots=slots, begin_waits=1, hold=ring - 1)
        stage.serve(streamer, stage.long(), "owned at last")


def _other_stream(stage: _Stage) -> None:
    """The kernels of the request before ran on another stream, which still reads.

    A short request on the second stream uses some slots of a group, so that the latest use among the group's
    slots is on another stream than some earlier ones: only the fence at the short one's begin covers those.
    """
    ring = stage.gpu_ring
    first, second = stage.streams
    with stage.streamer() as streamer:
        stage.serve(streamer, stage.long(), "first stream", hold=ring)
        stage.serve(streamer, stage.entries(3), "second stream, short", stream=second, begin_waits=1, hold=3)
        stage.serve(streamer, stage.long(), "first stream again", stream=first, begin_waits=1, hold=ring)
        stage.serve(streamer, stage.long(), "second stream", stream=second, begin_waits=1, hold=ring)
        stage.serve(streamer, stage.entries(ring), "first stream, short", stream=first, begin_waits=1)


def _empty_between(stage: _Stage) -> None:
    """Empty requests, and short prefills with one dependency an entry, in between."""
    ring = stage.gpu_ring
    with stage.streamer() as streamer:
        stage.serve(streamer, stage.long(), "full", hold=ring)
        with streamer.begin() as request:
            pass
        stage.count(request, "empty", 0)
        stage.serve(streamer, stage.long(), "after an empty one", hold=ring)
        stage.serve(streamer, stage.entries(ring + 3), "short prefill", long_prefill=False, hold=ring)
        stage.serve(streamer, stage.long(), "long prefill again")


_PLAYS: dict[str, Callable[[_Stage], None]] = {
    "short after long": _short_after_long,
    "long after short": _long_after_short,
    "aborted, begun at once": _aborted,
    "aborted unread": _aborted_unread,
    "lent slots": _lent,
    "lent and owned slots": _lent_and_owned,
    "another compute stream": _other_stream,
    "empty and short ones between": _empty_between,
}
