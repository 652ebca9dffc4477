"""Fixture 6, spans: runs of neighbouring slots of every length, held, passed over, dropped and abandoned.

For each length that a ring allows one request is given up at a random span, and another is served to its end, with
each dependency asked for by itself and with shared ones. Their lists come in extensions; some entries are skipped, some
are dropped, in time or late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from strata import _hip
from strata.engine.request import Request
from strata.engine.span import Span
from strata.settings import BatchSettings
from strata.streamer import ExpertStreamer
from strata.tools.selftest.bench import DEADLINE_S, Bench
from strata.tools.selftest.entries import KINDS, Entries, make_entries, make_kinds
from strata.tools.selftest.oracle import Consumption, Oracle
from strata.tools.selftest.outcome import Outcome
from strata.tools.selftest.readback import Readback
from strata.tools.selftest.sources import Pool
from strata.tools.selftest.transitions import Configuration

__all__ = ["run"]

SLOT = 4 * 1024
HOST_RING = 5
GPU_RINGS = (7, 12)
BATCHES = ((1, 1, 1), (4, 3, 2), (8, 5, 5))


@dataclass(frozen=True)
class _Configuration(Configuration):
    share: bool

    @property
    def name(self) -> str:
        return super().name + (", shared" if self.share else "")


def _configurations(quick: bool) -> Iterator[_Configuration]:
    for gpu_ring in GPU_RINGS[:1] if quick else GPU_RINGS:
        for batches in BATCHES[2:] if quick else BATCHES:
            for kind in KINDS[2:] if quick else KINDS:
                for share in (False, True):
                    yield _Configuration(gpu_ring, batches, kind, share)


def run(bench: Bench, outcome: Outcome) -> None:
    """Run the fixture."""
    pools = Pool(bench, 256 * 1024, pinned=True), Pool(bench, 256 * 1024, pinned=False)
    back = Readback(bench, 8 * max(GPU_RINGS), SLOT)
    for number, wanted in enumerate(_configurations(bench.quick)):
        rng = np.random.default_rng([bench.seed, number, 6])
        count = 2 * wanted.gpu_ring + wanted.gpu_ring // 2 + 1
        with bench.streamer(SLOT, gpu_ring=wanted.gpu_ring, host_ring=HOST_RING, workers=2,
                            settings=BatchSettings(*wanted.batches), share=wanted.share) as streamer:
            for limit in range(1, wanted.gpu_ring + 1):
                name = f"{wanted.name}, up to {limit}"
                bench.say(f"spans: {name}")
                back.clear()
                with outcome.case(name) as problems:
                    for turn in range(2):
                        entries = make_entries(rng, make_kinds(rng, wanted.kind, count), *pools, SLOT,
                                               100 * number + 2 * limit + turn)
                        outcome.generations += 1
                        problems += _Course(streamer, entries, limit, back, rng).run(outcome, abandoned=turn == 0)
                    _hip.synchronize_stream(streamer.compute_stream)
                    problems += back.problems()
    outcome.bytes_checked += back.bytes_checked


class _Course:
    """One request beside what the oracle expects of it."""

    def __init__(self, streamer: ExpertStreamer, entries: Entries, limit: int, back: Readback,
                 rng: np.random.Generator) -> None:
        count = len(entries)
        self._streamer = streamer
        self._entries = entries
        self._limit = limit
        self._back = back
        self._cuts = sorted(rng.choice(np.arange(1, count), 2, replace=False).tolist())
        self._skipped = rng.random(count) < 0.1
        self._dropped = rng.random(count) < 0.3
        self._held = int(rng.integers(0, 3))
        self._end = int(rng.integers(1, count))
        groups = Oracle(streamer.gpu_ring, HOST_RING, **asdict(streamer.settings)).groups(entries.parts(self._cuts))
        self._expected = Consumption(groups, streamer.gpu_ring, streamer.share_dependencies)
        self._holding: deque[Span] = deque()
        self._waiting: deque[int] = deque()  # skipped behind what is held
        self._read = self._passed = 0  # spans with bytes that are wanted; skipped entries that were not dropped

    def run(self, outcome: Outcome, *, abandoned: bool) -> list[str]:
        """Serve the request, or give it up in the middle with what it holds; return what was wrong."""
        first, *others = self._entries.extensions(self._cuts)
        with self._streamer.begin(first) as request:
            for part in others:
                request.extend(part)
            request.drop(np.flatnonzero(self._dropped))
            problems = self._consume(request, self._end if abandoned else len(self._entries))
            if problems or abandoned:
                request.abort()
        outcome.note(request.counters)
        return problems or ([] if abandoned else self._counter_problems(request))

    def _consume(self, request: Request, stop: int) -> list[str]:
        at = 0
        expected, ring = self._expected, self._streamer.gpu_ring
        while at < stop:
            while self._holding and not expected.may_hold(at):
                self._release()
            if self._skipped[at]:
                expected.asked(at)
                request.skip()
                self._passed += not self._dropped[at]
                self._pass(at)
                at += 1
            else:
                edge = next(e for e in (*self._cuts, len(self._entries)) if e > at)
                end = expected.span_end(at, min(at + self._limit, edge, (at // ring + 1) * ring))
                span = request.acquire_span(self._limit, timeout=DEADLINE_S)
                if problem := self._look(span, at, end):
                    return [problem]
                self._holding.append(span)
                at = end
                if len(self._holding) > self._held:
                    self._release()
            if (request.consumed, request.released) != (expected.consumed, expected.released):
                return [f"before entry {at}: consumed is {request.consumed} and released {request.released}, expected "
                        f"{expected.consumed} and {expected.released}"]
        while stop == len(self._entries) and self._holding:
            self._release()
        return []

    def _look(self, span: Span, begin: int, end: int) -> str:
        """Read what is wanted; say what is not as it must be."""
        streamer, wanted = self._streamer, ~self._dropped[begin:end]
        if (span.begin, span.end, span.slot) != (begin, end, begin % streamer.gpu_ring):
            return (f"the span is {span.begin} to {span.end} from slot {span.slot}, expected {begin} to {end} from "
                    f"{begin % streamer.gpu_ring}")
        places = [span.address + k * span.stride for k in range(len(span))]
        if places != list(streamer.slots[span.slot : span.slot + len(span)]):
            return f"the span of {begin} to {end} lies at {span.address:#x}, {span.stride} bytes apart"
        sizes = [self._entries.extent(begin + k) * int(w) for k, w in enumerate(wanted)]
        if span.wanted.tolist() != wanted.tolist() or span.nbytes.tolist() != sizes:
            return f"the span of {begin} to {end} has {span.nbytes.tolist()} bytes, expected {sizes}"
        for k in np.flatnonzero(wanted):
            self._back.read(self._entries, begin + int(k), places[k], streamer.compute_stream)
        self._read += bool(wanted.any())
        return ""

    def _release(self) -> None:
        span = self._holding.popleft()
        span.release()
        self._expected.give_back(span.end, read=not self._dropped[span.begin : span.end].all())
        behind = self._holding[0].begin if self._holding else None
        while self._waiting and (behind is None or self._waiting[0] < behind):
            at = self._waiting.popleft()
            self._expected.give_back(at + 1, read=not self._dropped[at])

    def _pass(self, at: int) -> None:
        """A skipped entry has its turn behind what is held."""
        if self._holding:
            self._waiting.append(at)
        else:
            self._expected.give_back(at + 1, read=not self._dropped[at])

    def _counter_problems(self, request: Request) -> list[str]:
        c = request.counters
        found = {
            "copied waits": (c.copied_waits + c.copied_waits_shared, self._read),
            "used records": (c.used_records + c.used_records_shared, self._read + self._passed),
            "used records made": (c.used_records, self._expected.records),
            "dropped entries": (c.dropped + c.dropped_late, int(self._dropped.sum())),
            "copied and dropped": (c.direct_copies + c.staged_copies + c.dropped, len(self._entries)),
            "skipped": (c.skipped, self._passed),
            "fence errors": (c.fence_errors, 0),
        }
        return [f"{what} are {actual}, expected {wanted}"
                for what, (actual, wanted) in found.items() if actual != wanted]
