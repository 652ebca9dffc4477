"""The host ring by itself: an engine issues its own copies out of the buffers."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import strata
from tests.planner.oracle import oracle_ownership_ends
from tests.stager.conftest import NBYTES, Engine
from tests.support.latch import Latch, release_once_waited_for
from tests.support.sources import Material, material


def submit(stager: strata.HostStager, engine: Engine, each: Material, jobs: range) -> None:
    """Wait for, copy and submit jobs; the n-th staged entry is job n."""
    entries = np.flatnonzero(each.copies.staged)
    for job in jobs:
        address = stager.wait(job)
        engine.copy(job, address, each.extent(int(entries[job])))
        stager.submitted(job, engine.stream)


def wrong(engine: Engine, each: Material, jobs: int) -> int:
    entries = np.flatnonzero(each.copies.staged)
    images = engine.arrived(jobs)
    return sum(each.wrong(int(entries[job]), images[job]) for job in range(jobs))


def expected(jobs: int, submitted: int, host_ring: int, stage_batch: int) -> dict[str, int]:
    """Counters after a request that was ended once so many of its jobs were submitted."""
    ends = oracle_ownership_ends(range(jobs), host_ring, stage_batch)
    done = {end for end in ends if end <= submitted}
    return {
        "dma_done_records": len(done),
        "fences": int(submitted > 0 and submitted not in done),
        "fence_errors": 0,
    }


@pytest.mark.parametrize("stage_batch", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("jobs", [0, 1, 3, 4, 5, 8, 9, 21])
@pytest.mark.parametrize("host_ring", [1, 4, 5])
def test_complete_requests(jobs: int, host_ring: int, stage_batch: int, make_engine) -> None:
    engine = make_engine(jobs)
    with strata.HostStager(NBYTES, host_ring=host_ring, stage_batch=stage_batch) as stager:
        assert stager.stage_batch == min(stage_batch, host_ring)
        for generation in range(3):
            each = material("s" * jobs, NBYTES, generation)
            stager.start(each.copies)
            assert stager.jobs == jobs
            submit(stager, engine, each, range(jobs))
            stager.finish()
            stager.finish()  # a second one adds nothing
            counters = stager.counters
            assert counters.matches(expected(jobs, jobs, host_ring, stager.stage_batch)) == {}
            assert counters.host_reuse_waits == max(0, jobs - host_ring)
            assert wrong(engine, each, jobs) == 0


@pytest.mark.parametrize("stage_batch", [1, 3, 4])
@pytest.mark.parametrize("point", [0, 1, 2, 3, 4, 6, 8, 11, 12])
def test_partial_aborts_then_a_whole_request(point: int, stage_batch: int, make_engine, schedule: str) -> None:
    jobs, host_ring = 12, 4
    engine = make_engine(jobs)
    with strata.HostStager(NBYTES, host_ring=host_ring, stage_batch=stage_batch) as stager:
        for generation in range(2):
            part = material("s" * jobs, NBYTES, 2 * generation)
            stager.start(part.copies)
            submit(stager, engine, part, range(point))
            stager.finish()
            assert stager.counters.matches(expected(jobs, point, host_ring, stage_batch)) == {}
            stager.finish()
            assert stager.counters.matches(expected(jobs, point, host_ring, stage_batch)) == {}
            # The buffers may be filled again at once: every DMA that read them is done.
            whole = material("s" * jobs, NBYTES, 2 * generation + 1)
            assert wrong(engine, part, point) == 0
            stager.start(whole.copies)
            submit(stager, engine, whole, range(jobs))
            stager.finish()
            assert stager.counters.matches(expected(jobs, jobs, host_ring, stage_batch)) == {}
            assert wrong(engine, whole, jobs) == 0


def test_nonempty_then_empty_then_nonempty(make_engine) -> None:
    engine = make_engine(9)
    with strata.HostStager(NBYTES, host_ring=4, stage_batch=2) as stager:
        for kinds in ("s" * 9, "", "s" * 5, "d" * 4, "", "s" * 9, "zZe", "s" * 1):
            each = material(kinds, NBYTES)
            stager.start(each.copies)
            jobs = kinds.count("s")
            assert stager.jobs == jobs
            submit(stager, engine, each, range(jobs))
            stager.finish()
            assert wrong(engine, each, jobs) == 0
            assert stager.counters.matches(expected(jobs, jobs, 4, 2)) == {}
            assert stager.counters.host_reuse_waits == max(0, jobs - 4)


def test_direct_entries_have_no_job(make_engine) -> None:
    each = material("ddsdSszSe", NBYTES)
    engine = make_engine(4)
    with strata.HostStager(NBYTES, host_ring=2) as stager:
        stager.start(each.copies)
        assert stager.jobs == 4
        submit(stager, engine, each, range(4))
        stager.finish()
        assert wrong(engine, each, 4) == 0
        assert stager.counters.dma_done_records == 4
        assert stager.counters.staged_copies == 0  # the copies are the engine's own


def test_decode_records_every_job(make_engine) -> None:
    each = material("s" * 8, NBYTES)
    engine = make_engine(8)
    with strata.HostStager(NBYTES, host_ring=4, stage_batch=4) as stager:
        for long_prefill, records in ((True, 2), (False, 8), (True, 2)):
            stager.start(each.copies, long_prefill)
            submit(stager, engine, each, range(8))
            stager.finish()
            assert stager.counters.dma_done_records == records
            assert wrong(engine, each, 8) == 0


def test_a_buffer_shows_its_job_until_the_copy_is_done(make_engine, software) -> None:
    """The copies are held up: a buffer that was issued, but not read yet, is not filled again."""
    each = material("s" * 6, NBYTES)
    engine = make_engine(6)
    with strata.HostStager(NBYTES, host_ring=3, workers=2) as stager:
        stager.start(each.copies)
        latch = software.hold(engine.stream)
        addresses = []
        for job in range(3):
            addresses.append(stager.wait(job))
            engine.copy(job, addresses[job], each.extent(job))
            stager.submitted(job, engine.stream)
        assert len(set(addresses)) == 3
        with pytest.raises(TimeoutError, match="job 3 was not ready within"):
            stager.wait(3, timeout=0.05)
        for job, address in enumerate(addresses):
            image = np.frombuffer(ctypes.string_at(address, each.extent(job)), np.uint8)
            assert each.wrong(job, image) == 0
        latch.release()
        assert stager.wait(3) == addresses[0]
        submit(stager, engine, each, range(3, 6))
        stager.finish()
        assert wrong(engine, each, 6) == 0


def test_finish_waits_for_the_last_dma(make_engine, software) -> None:
    each = material("s" * 4, NBYTES)
    engine = make_engine(4)
    for stage_batch, submitted in ((1, 4), (4, 3), (2, 3), (4, 1)):
        with strata.HostStager(NBYTES, host_ring=4, stage_batch=stage_batch) as stager:
            stager.start(each.copies)
            latch = Latch(software, engine.stream)
            submit(stager, engine, each, range(submitted))
            watcher = release_once_waited_for(software, latch)
            stager.finish()
            watcher.join()
            assert watcher.waited
            assert software.live()["pending_operations"] == 0
            assert stager.counters.matches(expected(4, submitted, 4, stage_batch)) == {}
            assert wrong(engine, each, submitted) == 0


@pytest.mark.parametrize("pinned_buffers", [0, 1, 2])
def test_pageable_buffers(pinned_buffers: int, make_engine, software, caplog) -> None:
    each = material("s" * 8, NBYTES)
    engine = make_engine(8)
    with strata.HostStager(NBYTES, host_ring=3, stage_batch=2) as stager:
        assert stager.pinned_buffers == ()
        software.configure(pinned_limit=software.live()["pinned_bytes"] + pinned_buffers * NBYTES)
        for _ in range(2):
            stager.start(each.copies)
            submit(stager, engine, each, range(8))
            stager.finish()
            assert wrong(engine, each, 8) == 0
            assert stager.counters.pageable_buffers == 3 - pinned_buffers
        assert stager.pinned_buffers == tuple(b < pinned_buffers for b in range(3))
    assert f"{3 - pinned_buffers} of 3 host buffers" in caplog.text


def test_buffers_are_made_at_the_first_staged_entry(software) -> None:
    with strata.HostStager(NBYTES, host_ring=5) as stager:
        before = software.live()
        stager.start(material("", NBYTES).copies)
        stager.finish()
        assert software.live() == before
        each = material("s", NBYTES)
        pinned = software.live()["pinned_allocations"]
        stager.start(each.copies)
        stager.finish()
        assert software.live()["pinned_allocations"] == pinned + 5
        assert software.live()["events"] == before["events"] + 5


def test_sources_live_until_finish() -> None:
    class Source(bytearray):
        pass

    source = Source(NBYTES)
    with strata.HostStager(NBYTES) as stager:
        stager.start(strata.ExpertCopies.from_buffers([source], False))
        stager.wait(0)
        with pytest.raises(BufferError):
            source.append(1)
        stager.finish()
        source.append(1)


def test_closing_in_the_middle(make_engine) -> None:
    each = material("s" * 9, NBYTES)
    engine = make_engine(9)
    stager = strata.HostStager(NBYTES, host_ring=2, stage_batch=2)
    stager.start(each.copies)
    submit(stager, engine, each, range(3))
    stager.close()
    stager.close()
    assert wrong(engine, each, 3) == 0
    for use in (lambda: stager.start(each.copies), lambda: stager.wait(3), lambda: stager.submitted(3, engine.stream)):
        with pytest.raises(strata.StrataError, match="this stager is closed"):
            use()
    with pytest.raises(strata.StrataError, match="this stager is closed"), stager:
        pass
    assert "closed" in repr(stager)
    stager.finish()  # nothing runs


def test_many_jobs_many_workers(make_engine) -> None:
    each = material("s" * 400, 64)
    engine = make_engine(400)
    with strata.HostStager(64, host_ring=7, workers=6, stage_batch=3) as stager:
        stager.start(each.copies)
        submit(stager, engine, each, range(400))
        stager.finish()
        assert wrong(engine, each, 400) == 0
        assert stager.counters.host_reuse_waits == 393
        assert stager.counters.matches(expected(400, 400, 7, 3)) == {}


def test_a_worker_that_fails_is_named_and_the_next_request_works(make_engine, software) -> None:
    each = material("s" * 8, NBYTES)
    engine = make_engine(8)
    with strata.HostStager(NBYTES, host_ring=2, workers=1) as stager:
        stager.start(each.copies)
        software.inject("hipEventSynchronize", 1, status=719)
        with pytest.raises(strata.HipError) as caught:
            submit(stager, engine, each, range(8))
        assert (caught.value.call, caught.value.status, caught.value.entry) == ("hipEventSynchronize", 719, 2)
        with pytest.raises(strata.HipError):
            stager.finish()
        stager.finish()
        software.clear_injections()
        stager.start(each.copies)
        submit(stager, engine, each, range(8))
        stager.finish()
        assert wrong(engine, each, 8) == 0


def test_a_record_that_fails_is_raised_and_fenced(make_engine, software) -> None:
    each = material("s" * 4, NBYTES)
    engine = make_engine(4)
    with strata.HostStager(NBYTES, host_ring=4) as stager:
        stager.start(each.copies)
        submit(stager, engine, each, range(1))
        software.inject("hipEventRecord", 1, status=400)
        address = stager.wait(1)
        engine.copy(1, address, each.extent(1))
        failed = pytest.raises(strata.HipError, match=r"hipEventRecord failed .* at entry 1")
        with failed:
            stager.submitted(1, engine.stream)
        # Nobody could tell when its buffer is free: the request is over, and says why each time.
        with failed:
            stager.wait(2)
        with failed:
            stager.submitted(2, engine.stream)
        with failed:
            stager.finish()
        assert (stager.counters.dma_done_records, stager.counters.fences, stager.counters.fence_errors) == (1, 1, 0)
        assert wrong(engine, each, 2) == 0


def test_no_buffer_is_filled_again_behind_a_record_that_failed(make_engine, software) -> None:
    """The next job's record must not speak for it: the DMA of job 0 reads late."""
    each = material("s" * 4, NBYTES)
    engine = make_engine(4)
    with strata.HostStager(NBYTES, host_ring=2, workers=1) as stager:
        stager.start(each.copies)
        with software.hold(engine.stream):
            engine.copy(0, stager.wait(0), each.extent(0))
            software.inject("hipEventRecord", 1, status=2)
            with pytest.raises(strata.HipError, match="at entry 0"):
                stager.submitted(0, engine.stream)
            for call in (lambda: stager.submitted(1, engine.stream), lambda: stager.wait(2)):
                with pytest.raises(strata.HipError, match="at entry 0"):
                    call()
        with pytest.raises(strata.HipError, match="at entry 0"):
            stager.finish()
        assert wrong(engine, each, 1) == 0


def test_a_fence_that_fails_is_replaced_by_a_synchronization(make_engine, software) -> None:
    each = material("s" * 4, NBYTES)
    engine = make_engine(4)
    with strata.HostStager(NBYTES, host_ring=4, stage_batch=4) as stager:
        stager.start(each.copies)
        submit(stager, engine, each, range(2))
        software.inject("hipEventRecord", 1, status=400)
        with pytest.raises(strata.HipError, match=r"hipEventRecord failed with \w+ \(400\)"):
            stager.finish()
        stager.finish()  # it is over, and was said
        assert (stager.counters.dma_done_records, stager.counters.fences, stager.counters.fence_errors) == (0, 0, 1)
        assert wrong(engine, each, 2) == 0
        stager.start(each.copies)
        submit(stager, engine, each, range(4))
        stager.finish()
        assert wrong(engine, each, 4) == 0
