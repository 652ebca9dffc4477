"""Fixture 2, copy groups: maximal groups, the window's release, records and waits, and every byte.

Before each step the number of published entries must come to what the oracle predicts from the entries
released so far, and must never be beyond it. As the releases go up one by one, every group's boundary
shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from strata import _hip
from strata._planner import CopyPlan
from strata.engine.request import Request
from strata.engine.slot import Slot
from strata.settings import BatchSettings
from strata.streamer import ExpertStreamer
from strata.tools.selftest.bench import DEADLINE_S, Bench, settles
from strata.tools.selftest.entries import KINDS, Entries, make_entries, make_kinds
from strata.tools.selftest.oracle import Consumption, Group, Oracle, ownership_groups
from strata.tools.selftest.outcome import Outcome
from strata.tools.selftest.readback import Readback
from strata.tools.selftest.sources import Pool

__all__ = ["run"]

GPU_RINGS = (8, 17, 32)
HOST_RINGS = (16, 17)
BATCHES = (1, 2, 8)
SLOT = 16 * 1024
_POOL = 4 * 1024 * 1024

#: Direct batch -> stage batch and stage copy batch that go with it.
_STAGE = {1: (1, 1), 2: (4, 3), 8: (16, 16)}
#: Buffers that are kept from being pinned: single ones, neighbours, and the ring's last.
_PAGEABLE = (2, 3, 9, 15)


@dataclass(frozen=True)
class _Configuration:
    gpu_ring: int
    host_ring: int
    batch: int
    kind: str
    skipping: bool
    pageable: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return (
            f"gpu_ring {self.gpu_ring}, host_ring {self.host_ring}, copy_batch {self.batch}, {self.kind}"
            + (", skipping" if self.skipping else "")
            + (f", buffers {self.pageable} pageable" if self.pageable else "")
        )

    @property
    def settings(self) -> BatchSettings:
        stage, stage_copy = _STAGE[self.batch]
        return BatchSettings(self.batch, stage, stage_copy).clamped(self.gpu_ring, self.host_ring)

    @property
    def entries(self) -> int:
        # Beyond two turns of either ring, and not a multiple of one.
        return max(2 * self.gpu_ring + self.gpu_ring // 2 + 5, 2 * self.host_ring + 7)


def _configurations(quick: bool) -> Iterator[_Configuration]:
    number = 0
    for gpu_ring in GPU_RINGS:
        for host_ring in HOST_RINGS:
            for batch in BATCHES:
                for kind in KINDS:
                    for skipping in (False, True):
                        for pageable in ((), _PAGEABLE) if kind != "direct" else ((),):
                            number += 1
                            if not quick or number % 7 == 0:
                                yield _Configuration(gpu_ring, host_ring, batch, kind, skipping, pageable)


def run(bench: Bench, outcome: Outcome) -> None:
    """Run the fixture."""
    pinned = Pool(bench, _POOL, pinned=True)
    pageable = Pool(bench, _POOL, pinned=False)
    back = Readback(bench, 4 * max(GPU_RINGS), SLOT)
    for number, wanted in enumerate(_configurations(bench.quick)):
        bench.say(f"copy groups: {wanted.name}")
        rng = np.random.default_rng([bench.seed, number])
        with (
            outcome.case(wanted.name) as problems,
            bench.unpinnable(wanted.pageable),
            bench.streamer(SLOT, gpu_ring=wanted.gpu_ring, host_ring=wanted.host_ring, workers=1 + number % 2,
                           settings=wanted.settings) as streamer,
        ):
            course = _Course(bench, wanted, streamer, back, rng)
            for generation in range(2):
                entries = make_entries(rng, _kinds(wanted, rng), pinned, pageable, SLOT, 2 * number + generation)
                outcome.generations += 1
                problems += [f"generation {generation}: {text}"
                             for text in course.generation(entries, outcome, again=generation == 1)]
    outcome.bytes_checked += back.bytes_checked


def _kinds(wanted: _Configuration, rng: np.random.Generator) -> list[bool]:
    kinds = make_kinds(rng, wanted.kind, wanted.entries)
    return kinds if any(kinds) or wanted.kind == "direct" else [True] * wanted.entries


class _Course:
    """The generations of one streamer beside what the oracle expects of them."""

    def __init__(
        self, bench: Bench, wanted: _Configuration, streamer: ExpertStreamer, back: Readback, rng: np.random.Generator
    ) -> None:
        self._bench = bench
        self._wanted = wanted
        self._streamer = streamer
        self._back = back
        self._rng = rng
        self._oracle = Oracle(wanted.gpu_ring, wanted.host_ring, **asdict(wanted.settings),
                              pageable=frozenset(wanted.pageable))

    def generation(self, entries: Entries, outcome: Outcome, *, again: bool) -> list[str]:
        """Stream a list, the second time in extensions and with several slots held; return what was wrong."""
        cuts = sorted(self._rng.choice(np.arange(1, len(entries)), 2, replace=False).tolist()) if again else []
        parts = entries.parts(cuts)
        groups = self._oracle.groups(parts)
        problems = [] if again else self._plan_problems(entries, groups)
        skips = [self._wanted.skipping and bool(self._rng.integers(3) == 0) for _ in range(len(entries))]
        held = int(self._rng.integers(1, self._streamer.max_held + 1)) if again else 1
        first, *others = entries.extensions(cuts)
        self._back.clear()
        with self._streamer.begin(first) as request:
            for part in others:
                request.extend(part)
            problems += self._consume(request, entries, groups, skips, held)
            if problems:
                request.abort()
        _hip.synchronize_stream(self._streamer.compute_stream)
        outcome.note(request.counters)
        expected = {
            **self._oracle.counts(parts, sum(skips)), **entries.copy_calls, **entries.payload, "begin_waits": 0,
        }
        return problems + self._bench.differences(request.counters, expected) + self._back.problems()

    def _plan_problems(self, entries: Entries, groups: list[Group]) -> list[str]:
        """Compare the planner's own arrays with the oracle's groups."""
        wanted = self._wanted
        plan = CopyPlan(
            entries.copies.jobs(), gpu_ring=wanted.gpu_ring, host_ring=wanted.host_ring, settings=wanted.settings,
            host_pinned=[buffer not in wanted.pageable for buffer in range(wanted.host_ring)],
        )
        ends = [group.end for group in groups for _ in range(group.begin, group.end)]
        problems = []
        if plan.ends.tolist() != ends:
            at = next(i for i, pair in enumerate(zip(plan.ends.tolist(), ends, strict=True)) if pair[0] != pair[1])
            problems.append(f"entry {at}'s copy group ends at {plan.ends[at]}, expected {ends[at]}")
        owned = ownership_groups(sum(entries.kinds), wanted.host_ring, wanted.settings.stage_batch)
        if plan.ownership_ends.tolist() != [group[-1] + 1 for group in owned for _ in group]:
            problems.append("the planner's ownership groups are not those expected")
        return problems

    def _consume(
        self, request: Request, entries: Entries, groups: list[Group], skips: list[bool], held: int
    ) -> list[str]:
        """Take every entry, looking at publication before each; stop at the first thing that is wrong."""
        streamer = self._streamer
        holding: deque[Slot] = deque()
        expected = Consumption(groups, streamer.gpu_ring, self._bench.share)
        for entry, skip in enumerate(skips):
            # What the engine holds back it has not consumed; skipped entries wait behind held ones.
            expected.give_back_to(holding[0].entry if holding else entry)
            if self._oracle.published(groups, expected.consumed) <= entry:
                request.flush()  # as an acquire would, where dependencies are shared
                expected.asked(entry)
            consumed = expected.consumed
            allowed = self._oracle.published(groups, consumed)
            settles(lambda: request.issued, allowed, f"entries published with {consumed} released")
            if request.consumed != consumed:
                return [f"consumed is {request.consumed}, expected {consumed}"]
            if skip:
                request.skip()
                expected.give_back_to(holding[0].entry if holding else entry + 1)
                consumed = expected.consumed
                allowed = self._oracle.published(groups, consumed)
            else:
                slot = request.acquire(DEADLINE_S)
                if (slot.entry, slot.slot) != (entry, entry % streamer.gpu_ring):
                    return [f"acquired entry {slot.entry} in slot {slot.slot}, expected entry {entry}"]
                if slot.nbytes != entries.extent(entry) or slot.address != streamer.slots[slot.slot]:
                    return [f"entry {entry} has {slot.nbytes} bytes at {slot.address:#x}"]
                self._back.read(entries, entry, slot.address, streamer.compute_stream)
                holding.append(slot)
            if request.issued > allowed:
                return [f"{request.issued} entries are published with {consumed} released, at most {allowed} may be"]
            # As many entries as are taken and not consumed count as held, skipped ones among them.
            while holding and entry + 1 - holding[0].entry >= held:
                holding.popleft().release()
        while holding:
            holding.popleft().release()
        if request.issued != len(entries) or request.consumed != len(entries):
            return [f"{request.issued} issued and {request.consumed} consumed of {len(entries)} entries"]
        return []
