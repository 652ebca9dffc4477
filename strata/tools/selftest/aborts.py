"""Fixture 5, aborts: a hundred requests abandoned at random points, each followed at once by another.

An aborted request's copies are of one pattern, the next request's of another. What the aborted one still had
queued, and what its kernels still read, must touch neither the next one's bytes nor its counters. Between the two
the engine synchronizes nothing.
"""

from __future__ import annotations

import time
from dataclasses import asdict

import numpy as np

from strata import _hip
from strata.engine.request import Request
from strata.errors import RequestAborted, StrataError
from strata.settings import BatchSettings
from strata.streamer import ExpertStreamer
from strata.tools.selftest.bench import DEADLINE_S, Bench, Raw
from strata.tools.selftest.entries import KINDS, Entries, make_entries, make_kinds
from strata.tools.selftest.oracle import Oracle
from strata.tools.selftest.outcome import Outcome
from strata.tools.selftest.readback import Readback
from strata.tools.selftest.sources import Pool
from strata.tools.selftest.transitions import HOST_RING, SLOT, Configuration

__all__ = ["ABORTS", "run"]

ABORTS = 100
#: Bytes of an entry on a real device: those of the reference request's experts.
DEVICE_SLOT = 1_382_400
ENDS = ("abort", "cancel", "exception")
#: The longest that an engine does something else before it gives up.
_PAUSE_S = 2e-3


_CONFIGURATIONS = tuple(
    Configuration(gpu_ring, batches, kind)
    for gpu_ring, batches in ((8, (1, 1, 1)), (17, (8, 16, 16)))
    for kind in KINDS
)


class _EngineFailed(Exception):
    """What the engine raises in its loop."""


def run(bench: Bench, outcome: Outcome) -> None:
    """Run the fixture."""
    nbytes = SLOT if bench.software else DEVICE_SLOT
    pools = Pool(bench, 4 * nbytes, pinned=True), Pool(bench, 4 * nbytes, pinned=False)
    back = Readback(bench, 4 * max(wanted.gpu_ring for wanted in _CONFIGURATIONS) + 8, nbytes)
    aborts = 24 if bench.quick else ABORTS
    for number, wanted in enumerate(_CONFIGURATIONS):
        share = aborts * (number + 1) // len(_CONFIGURATIONS) - aborts * number // len(_CONFIGURATIONS)
        rng = np.random.default_rng([bench.seed, number, 5])
        with Raw() as raw, bench.streamer(nbytes, gpu_ring=wanted.gpu_ring, host_ring=HOST_RING, workers=2,
                                          compute_stream=raw.stream(),
                                          settings=BatchSettings(*wanted.batches)) as streamer:
            engine = _Engine(bench, streamer, nbytes, wanted, rng, pools, back, 10_000 * number)
            for turn in range(share):
                bench.say(f"aborts: {wanted.name}, {turn + 1} of {share}")
                error = False
                try:
                    name, problems = engine.turn(outcome)
                except (StrataError, MemoryError, TimeoutError) as problem:
                    name, problems, error = f"turn {turn}", [f"{type(problem).__name__}: {problem}"], True
                outcome.end_case(f"{wanted.name}, {name}", problems, error=error)
    outcome.bytes_checked += back.bytes_checked


class _Engine:
    """An engine that gives up again and again, on one streamer."""

    def __init__(self, bench: Bench, streamer: ExpertStreamer, nbytes: int, wanted: Configuration,
                 rng: np.random.Generator, pools: tuple[Pool, Pool], back: Readback, generation: int) -> None:
        self._bench = bench
        self._streamer = streamer
        self._nbytes = nbytes
        self._wanted = wanted
        self._rng = rng
        self._pools = pools
        self._back = back
        self._generation = generation
        self._oracle = Oracle(streamer.gpu_ring, HOST_RING, **asdict(streamer.settings),
                              used=set(range(streamer.gpu_ring)))

    def turn(self, outcome: Outcome) -> tuple[str, list[str]]:
        """Abort one request and serve another; what was done, and what was wrong."""
        streamer, rng = self._streamer, self._rng
        self._back.clear()
        with streamer.begin(self._entries(streamer.gpu_ring).copies) as request:  # uses every slot once
            request.skip(streamer.gpu_ring)
        doomed = self._entries(int(rng.integers(1, 2 * streamer.gpu_ring + 1)))
        released = int(rng.integers(0, len(doomed) + 1))
        held = int(rng.integers(0, min(streamer.max_held, len(doomed) - released) + 1))
        end = str(rng.choice(ENDS))
        pause = float(rng.uniform(0, _PAUSE_S)) if rng.integers(2) else 0.0
        name = f"{end} after {released} of {len(doomed)} entries, {held} held, {pause * 1e6:.0f} us"
        self._give_up(doomed, released, held, end, pause)
        outcome.generations += 2
        return name, self._serve(self._entries(int(rng.integers(1, 2 * streamer.gpu_ring + 1))), outcome)

    def _give_up(self, entries: Entries, released: int, held: int, end: str, pause: float) -> None:
        request = self._streamer.begin(entries.copies)
        try:
            with request:
                for _ in range(released):
                    slot = request.acquire(DEADLINE_S)
                    self._read(entries, slot.entry, slot.address, "aborted")
                    slot.release()
                for _ in range(held):
                    slot = request.acquire(DEADLINE_S)
                    self._read(entries, slot.entry, slot.address, "aborted, held")
                until = time.perf_counter() + pause
                while time.perf_counter() < until:
                    pass  # any point of the copy stream's work, not just the one that acquire leaves it at
                self._end(request, end)
        except (_EngineFailed, RequestAborted):
            pass

    def _end(self, request: Request, end: str) -> None:
        if end == "exception":
            raise _EngineFailed
        (request.abort if end == "abort" else request.cancel)()

    def _serve(self, entries: Entries, outcome: Outcome) -> list[str]:
        for pool in self._pools:  # the aborted request has let go of its sources
            pool.spoil()
            pool.restore()
        with self._streamer.begin(entries.copies) as request:
            for _ in range(len(entries)):
                slot = request.acquire(DEADLINE_S)
                self._read(entries, slot.entry, slot.address, "after an abort")
                slot.release()
        outcome.note(request.counters)
        _hip.synchronize_stream(self._streamer.compute_stream)
        expected = {**self._oracle.counts([entries.kinds]), **entries.copy_calls, **entries.payload}
        return self._back.problems() + self._bench.differences(request.counters, expected)

    def _read(self, entries: Entries, entry: int, address: int, what: str) -> None:
        self._back.read(entries, entry, address, self._streamer.compute_stream, what)

    def _entries(self, count: int) -> Entries:
        """A list whose bytes no other list has."""
        self._generation += 1
        kinds = make_kinds(self._rng, self._wanted.kind, count)
        return make_entries(self._rng, kinds, *self._pools, self._nbytes, self._generation, ragged=False)
