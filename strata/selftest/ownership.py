"""Fixture 1, ownership: no host buffer is filled again before the DMA that read it is done.

The fixture is the engine: it waits for a job, queues the job's copy to a place of its own in device memory,
and says so. Afterwards it reads everything back. A buffer that was filled again too early has left another
job's bytes there; a copy of a job that was dropped has changed bytes that had to stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from strata import _hip
from strata.copies import ExpertCopies
from strata.errors import StrataError
from strata.pinned import pinned_empty
from strata.selftest.bench import DEADLINE_S, Bench, Raw
from strata.selftest.oracle import fences, ownership_groups, records_before
from strata.selftest.outcome import Outcome
from strata.selftest.sources import Pool
from strata.stager import HostStager

__all__ = ["run"]

PAYLOAD = 64 * 1024
BATCHES = (1, 2, 4, 8, 16)
JOBS = (1, 15, 16, 17, 31, 32, 33, 65)
RINGS = (16, 17)
_POOL = 8 * 1024 * 1024
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
        engine = _Engine(bench, raw, max(JOBS))
        for ring, batch, jobs in _configurations(bench.quick):
            name = f"host_ring {ring}, stage_batch {batch}, jobs {jobs}"
            bench.say(f"ownership: {name}")
            # Whatever the number of workers, jobs are claimed in order.
            workers = 1 + (generation // 13) % 3
            stager = HostStager(PAYLOAD, host_ring=ring, workers=workers, stage_batch=batch)
            try:
                for case in _cases(jobs, batch, ring):
                    generation += 1
                    error = False
                    try:
                        problems = engine.serve(stager, case, pool, generation, outcome)
                    except (StrataError, MemoryError, TimeoutError) as problem:
                        problems, error = [f"{type(problem).__name__}: {problem}"], True
                    outcome.generations += 1
                    outcome.end_case(f"{name}, {case.what} ({case.submitted} submitted)", problems, error=error)
                    if error:
                        break
            finally:
                stager.close()


class _Engine:
    """Issues the copies of jobs and reads them back."""

    def __init__(self, bench: Bench, raw: Raw, jobs: int) -> None:
        self._bench = bench
        self._copy = raw.stream()
        self._compute = raw.stream()
        self._arrived = raw.event()
        self._device = raw.memory(jobs * PAYLOAD)
        self._back = pinned_empty((jobs, PAYLOAD), np.uint8)
        self._poison = np.full(PAYLOAD, _POISON, np.uint8)

    def serve(
        self, stager: HostStager, case: _Case, pool: Pool, generation: int, outcome: Outcome
    ) -> list[str]:
        """Run one request, and return what was wrong with it."""
        offsets = [pool.offset(generation, job, PAYLOAD) for job in range(case.jobs)]
        if case.jobs:
            _hip.memset_async(self._device, _POISON, case.jobs * PAYLOAD, self._copy)
        stager.start(ExpertCopies([pool.address + o for o in offsets], [PAYLOAD] * case.jobs, False))
        for job in range(case.submitted):
            buffer = stager.wait(job, DEADLINE_S)
            _hip.memcpy_h2d_async(self._device + job * PAYLOAD, buffer, PAYLOAD, self._copy)
            stager.submitted(job, self._copy)
        counted = []
        for _ in range(case.finishes):
            stager.finish()
            counted.append(stager.counters)
        outcome.note(counted[0])

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
        problems += self._compare(case, pool, offsets, outcome)
        return problems

    def _compare(self, case: _Case, pool: Pool, offsets: list[int], outcome: Outcome) -> list[str]:
        """Read everything back on the compute stream, behind the copies."""
        if case.jobs == 0:
            return []
        _hip.record_event(self._arrived, self._copy)
        _hip.wait_event(self._compute, self._arrived)
        _hip.memcpy_d2h_async(self._back.ctypes.data, self._device, case.jobs * PAYLOAD, self._compute)
        _hip.synchronize_stream(self._compute)
        back = self._back[: case.jobs]
        self._bench.announce_read(back)
        outcome.bytes_checked += back.nbytes
        problems = []
        for job, offset in enumerate(offsets):
            sent = job < case.submitted
            wanted = pool.window(offset, PAYLOAD) if sent else self._poison
            if not np.array_equal(back[job], wanted):
                wrong = int(np.count_nonzero(back[job] != wanted))
                problems.append(f"job {job}: {wrong} wrong bytes" if sent
                                else f"job {job}: {wrong} bytes arrived, though it was never submitted")
        return problems
