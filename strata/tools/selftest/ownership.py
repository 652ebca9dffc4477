"""Fixture 1, ownership: no host buffer is filled again before the DMA that read it is done.

The fixture is the engine: it waits for a job, queues the job's copy to a place of its own in device memory,
and says so. Once all requests of a stager are through it reads everything back. A buffer that was filled again
too early, by its own request or by the next, has left another job's bytes there; a copy of a job that was
dropped has changed bytes that had to stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from strata import _hip
from strata.copies import ExpertCopies
from strata.counters import Counters
from strata.errors import StrataError
from strata.pinned import pinned_empty
from strata.stager import HostStager
from strata.tools.selftest.bench import DEADLINE_S, Bench, Raw
from strata.tools.selftest.oracle import fences, ownership_groups, records_before
from strata.tools.selftest.outcome import Outcome
from strata.tools.selftest.sources import Pool

__all__ = ["run"]

PAYLOAD = 64 * 1024
BATCHES = (1, 2, 4, 8, 16)
JOBS = (1, 15, 16, 17, 31, 32, 33, 65)
RINGS = (16, 17)
_POOL = 2 * 1024 * 1024
_POISON = 0x5A


@dataclass(frozen=True)
class _Case:
    """One request: how many jobs it has, how many are submitted, how often it is finished."""

    what: str
    jobs: int
    submitted: int
    finishes: int = 1


def _cases(jobs: int, batch: int, ring: int) -> list[_Case]:
    """The requests of one stager, one after the other: complete, aborted at several points, empty."""
    groups = ownership_groups(jobs, ring, batch)
    middle = groups[len(groups) // 2]
    return [
        _Case("complete", jobs, jobs),
        _Case("complete again", jobs, jobs, finishes=3),
        _Case("aborted before the first submission", jobs, 0),
        _Case("complete after an abort", jobs, jobs),
        _Case("aborted within the first group", jobs, groups[0][len(groups[0]) // 2], finishes=2),
        _Case("empty", 0, 0, finishes=2),
        _Case("complete after an empty one", jobs, jobs),
        _Case("aborted at a group's end", jobs, middle[-1] + 1),
        _Case("aborted within a group", jobs, middle[len(middle) // 2]),
        _Case("aborted one before the end", jobs, jobs - 1),
        _Case("empty after an abort", 0, 0),
        _Case("aborted at the ring's wrap", jobs, min(jobs, ring), finishes=2),
        _Case("complete at last", jobs, jobs, finishes=2),
    ]


def _configurations(quick: bool) -> Iterator[tuple[int, int, int]]:
    for ring in RINGS:
        for batch in (1, 4, 16) if quick else BATCHES:
            for jobs in (1, 17, 33) if quick else JOBS:
                yield ring, batch, jobs


def run(bench: Bench, outcome: Outcome) -> None:
    """Run the fixture."""
    pool = Pool(bench, _POOL, pinned=False)
    generation = 0
    with Raw() as raw:
        engine = _Engine(bench, raw)
        for ring, batch, jobs in _configurations(bench.quick):
            name = f"host_ring {ring}, stage_batch {batch}, jobs {jobs}"
            bench.say(f"ownership: {name}")
            # Whatever the number of workers, jobs are claimed in order.
            workers = 1 + (generation // 13) % 3
            stager = HostStager(PAYLOAD, host_ring=ring, workers=workers, stage_batch=batch)
            cases = _cases(jobs, batch, ring)
            problems: list[list[str]] = []
            error = False
            try:
                for case in cases:
                    generation += 1
                    problems.append([])
                    try:
                        problems[-1] += engine.serve(stager, case, pool, generation, outcome)
                    except (StrataError, MemoryError, TimeoutError) as problem:
                        problems[-1].append(f"{type(problem).__name__}: {problem}")
                        error = True
                        break
            finally:
                stager.close()
                for number, texts in enumerate(engine.compare(pool, outcome)):
                    problems[number] += texts
            for case, texts in zip(cases, problems, strict=False):
                outcome.generations += 1
                outcome.end_case(f"{name}, {case.what} ({case.submitted} submitted)", texts)
            if error:
                outcome.count_error()


@dataclass(frozen=True)
class _Sent:
    """A request of the engine's that is to be compared: its payloads, and where in the area they went."""

    case: _Case
    offsets: list[int]
    first_row: int


class _Engine:
    """Issues the copies of jobs, one request behind the other, and reads them back when all are through.

    Between two requests it synchronizes nothing: that finish() has waited for all that it must is what keeps
    one request's copies from reading what the next one's workers write.
    """

    def __init__(self, bench: Bench, raw: Raw) -> None:
        rows = len(_cases(1, 1, 1)) * max(JOBS)
        self._bench = bench
        self._copy = raw.stream()
        self._compute = raw.stream()
        self._arrived = raw.event()
        self._sent_last = raw.event()
        self._device = raw.memory(rows * PAYLOAD)
        self._back = pinned_empty((rows, PAYLOAD), np.uint8)
        self._poison = np.full(PAYLOAD, _POISON, np.uint8)
        self._sent: list[_Sent] = []
        self._rows = 0

    def serve(
        self, stager: HostStager, case: _Case, pool: Pool, generation: int, outcome: Outcome
    ) -> list[str]:
        """Run one request, and return what was wrong with it so far."""
        offsets = [pool.offset(generation, job, PAYLOAD) for job in range(case.jobs)]
        device = self._device + self._rows * PAYLOAD
        if case.jobs:
            _hip.memset_async(device, _POISON, case.jobs * PAYLOAD, self._copy)
        stager.start(ExpertCopies([pool.address + o for o in offsets], [PAYLOAD] * case.jobs, False))
        self._sent.append(_Sent(case, offsets, self._rows))
        self._rows += case.jobs
        for job in range(case.submitted):
            buffer = stager.wait(job, DEADLINE_S)
            _hip.memcpy_h2d_async(device + job * PAYLOAD, buffer, PAYLOAD, self._copy)
            if job == case.submitted - 1:
                _hip.record_event(self._sent_last, self._copy)
            stager.submitted(job, self._copy)
        counted = []
        for _ in range(case.finishes):
            stager.finish()
            counted.append(stager.counters)
        problems = []
        if case.submitted and not _hip.query_event(self._sent_last):
            problems.append("finish() has returned before the last submitted copy was done")
        if case.submitted < case.jobs:
            pool.spoil()  # an abort lets go of the sources
            pool.restore()
        outcome.note(counted[0])
        return problems + self._count(stager, case, counted)

    def _count(self, stager: HostStager, case: _Case, counted: list[Counters]) -> list[str]:
        groups = ownership_groups(case.jobs, stager.host_ring, stager.stage_batch)
        expected = {
            "dma_done_records": records_before(case.submitted, groups),
            "fences": fences(case.submitted, groups),
            "fence_errors": 0,
            "pageable_buffers": 0,
        }
        reused = max(0, case.jobs - stager.host_ring)
        if case.submitted == case.jobs:
            expected["host_reuse_waits"] = reused
        problems = [
            f"{key} is {actual}, expected {wanted}"
            for key, (actual, wanted) in counted[0].matches(expected).items()
        ]
        if counted[0].host_reuse_waits > reused:
            problems.append(f"host_reuse_waits is {counted[0].host_reuse_waits}, at most {reused} are needed")
        if any(later != counted[0] for later in counted):
            problems.append("another finish() changed the counters")
        return problems

    def compare(self, pool: Pool, outcome: Outcome) -> list[list[str]]:
        """Read everything back on the compute stream, behind the copies; what was wrong with each request."""
        sent, rows = self._sent, self._rows
        self._sent, self._rows = [], 0
        if rows:
            _hip.record_event(self._arrived, self._copy)
            _hip.wait_event(self._compute, self._arrived)
            _hip.memcpy_d2h_async(self._back.ctypes.data, self._device, rows * PAYLOAD, self._compute)
            _hip.synchronize_stream(self._compute)
        self._bench.announce_read(self._back[:rows])
        outcome.bytes_checked += rows * PAYLOAD
        return [self._wrong(request, pool) for request in sent]

    def _wrong(self, request: _Sent, pool: Pool) -> list[str]:
        problems = []
        for job, offset in enumerate(request.offsets):
            back = self._back[request.first_row + job]
            sent = job < request.case.submitted
            wanted = pool.window(offset, PAYLOAD) if sent else self._poison
            if not np.array_equal(back, wanted):
                wrong = int(np.count_nonzero(back != wanted))
                problems.append(f"job {job}: {wrong} wrong bytes" if sent
                                else f"job {job}: {wrong} bytes arrived, though it was never submitted")
        return problems
