"""What a stager refuses, with words, and without harm to the request that runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import strata
from strata import _hip
from tests.stager.conftest import NBYTES
from tests.stager.test_stager import submit, wrong
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

BAD_ARGUMENTS = [
    ("buffer_bytes", 0, ValueError, ["0", "from 1"]),
    ("buffer_bytes", -5, ValueError, ["-5"]),
    ("buffer_bytes", 1.0, TypeError, ["1.0", "integer"]),
    ("buffer_bytes", 2**60, ValueError, [str(2**60)]),
    ("host_ring", 0, ValueError, ["0", "from 1"]),
    ("host_ring", -1, ValueError, ["-1"]),
    ("host_ring", 2**62, ValueError, [str(2**62)]),
    ("host_ring", "16", TypeError, ["'16'", "integer"]),
    ("host_ring", True, TypeError, ["True", "integer"]),
    ("workers", 0, ValueError, ["0", "from 1 to 64"]),
    ("workers", 65, ValueError, ["65", "from 1 to 64"]),
    ("stage_batch", 1.5, TypeError, ["1.5", "integer"]),
    ("stage_batch", None, TypeError, ["None", "integer"]),
]


@pytest.mark.parametrize(("name", "value", "kind", "words"), BAD_ARGUMENTS, ids=lambda x: repr(x)[:30])
def test_arguments(name: str, value: Any, kind: type[Exception], words: list[str], software) -> None:
    before = software.live()
    with pytest.raises((TypeError, ValueError)) as caught:
        strata.HostStager(**{"buffer_bytes": NBYTES, name: value})
    assert caught.type is kind, caught.value
    for word in (name, *words):
        assert word in str(caught.value)
    assert software.live() == before


@pytest.mark.parametrize(("given", "clamped"), [(-3, 1), (0, 1), (1, 1), (4, 4), (5, 4), (10**9, 4)])
def test_batches_are_clamped(given: int, clamped: int) -> None:
    with strata.HostStager(NBYTES, host_ring=4, stage_batch=given) as stager:
        assert stager.stage_batch == clamped


def test_what_start_refuses(make_engine) -> None:
    each = material("s" * 4, NBYTES)
    engine = make_engine(4)
    rows = [np.zeros(8, np.uint8), np.zeros(NBYTES + 1, np.uint8)]
    with strata.HostStager(NBYTES, host_ring=2) as stager:
        with pytest.raises(ValueError, match=f"entry 1 needs {NBYTES + 1} bytes and a buffer has {NBYTES}"):
            stager.start(strata.ExpertCopies.from_buffers(rows, False))
        with pytest.raises(TypeError, match=r"copies is list; a strata\.ExpertCopies is wanted"):
            stager.start(rows)  # type: ignore[arg-type]
        for value in (1, None, "yes"):
            with pytest.raises(TypeError, match=r"long_prefill is .*; True or False is wanted"):
                stager.start(each.copies, value)  # type: ignore[arg-type]
        stager.start(strata.ExpertCopies.from_buffers(rows, True))  # direct: no buffer of this ring is needed
        stager.finish()
        stager.start(each.copies)
        with pytest.raises(strata.StrataError, match=r"still running: finish\(\) it first"):
            stager.start(each.copies)
        submit(stager, engine, each, range(4))
        stager.finish()
        assert wrong(engine, each, 4) == 0


def test_calls_without_a_request() -> None:
    with strata.HostStager(NBYTES) as stager:
        for use in (lambda: stager.wait(0), lambda: stager.submitted(0, 0)):
            with pytest.raises(strata.StrataError, match=r"no request of this stager runs: start\(\) one first"):
                use()
        stager.finish()
        stager.finish()
        assert stager.counters == strata.Counters()


def test_jobs_and_streams_out_of_line(make_engine) -> None:
    each = material("s" * 5, NBYTES)
    engine, other = make_engine(5), make_engine(5)
    with strata.HostStager(NBYTES, host_ring=2, stage_batch=2) as stager:
        stager.start(each.copies)
        for job, kind in ((-1, ValueError), (5, ValueError), (2**70, ValueError), (1.0, TypeError), ("0", TypeError)):
            with pytest.raises(kind, match="job is"):
                stager.wait(job)  # type: ignore[arg-type]
            with pytest.raises(kind, match="job is"):
                stager.submitted(job, engine.stream)  # type: ignore[arg-type]
        # Too far ahead: its buffer comes free only when the caller submits an older job.
        for job in (2, 4):
            words = f"job {job} cannot be ready before job {job - 1} is submitted"  # the group is 2 long
            with pytest.raises(strata.StrataError, match=words):
                stager.wait(job)
        stager.wait(1)  # within the ring: in any order, and more than once
        first = stager.wait(0)
        assert stager.wait(0) == first
        with pytest.raises(ValueError, match="job is 1; jobs are submitted in order, the next one is 0"):
            stager.submitted(1, engine.stream)
        for stream, kind in ((None, TypeError), ("0", TypeError), (-1, ValueError), (2**64, ValueError)):
            with pytest.raises(kind, match="stream is"):
                stager.submitted(0, stream)  # type: ignore[arg-type]
        engine.copy(0, first, each.extent(0))
        stager.submitted(0, engine.stream)
        with pytest.raises(ValueError, match="job 0 was submitted before; the next one is 1"):
            stager.wait(0)
        with pytest.raises(ValueError, match="job is 0; jobs are submitted in order, the next one is 1"):
            stager.submitted(0, engine.stream)
        with pytest.raises(ValueError, match=f"stream is {other.stream:#x}; this request's copies go on"):
            stager.submitted(1, other.stream)
        submit(stager, engine, each, range(1, 5))
        stager.finish()
        assert wrong(engine, each, 5) == 0
        assert stager.counters.dma_done_records == 3
        # The next request may go on another stream.
        stager.start(each.copies)
        submit(stager, other, each, range(5))
        stager.finish()
        assert wrong(other, each, 5) == 0


def test_a_stream_that_is_none_of_the_runtimes() -> None:
    """It is refused before anything is recorded on it, and the request goes on."""
    # Out of process: a record on such a stream can never be waited for.
    script = """
        from strata import _hip
        stream, device = _hip.create_stream(), _hip.malloc(64)
        with strata.HostStager(64, host_ring=2) as stager:
            for _ in range(2):
                stager.start(staged.take([0, 1, 2]))
                for job in range(3):
                    address = stager.wait(job)
                    if job == 0:
                        try:
                            stager.submitted(job, 0xBAD)
                        except ValueError as error:
                            say(error)
                    _hip.memcpy_h2d_async(device, address, 64, stream)
                    stager.submitted(job, stream)
                stager.finish()
                say(stager.counters.dma_done_records, stager.counters.fences)
    """
    out = ended_well(run_script(script))
    assert out[1::2] == ["3 0", "3 0"]
    for line in out[::2]:
        assert "stream is 0xbad" in line
        assert "no stream of the software runtime" in line


def test_a_job_cannot_be_submitted_before_it_is_ready(make_engine, software) -> None:
    each = material("s" * 2, NBYTES)
    engine = make_engine(2)
    with strata.HostStager(NBYTES, host_ring=1, workers=1) as stager:
        stager.start(each.copies)
        latch = software.hold(engine.stream)
        submit(stager, engine, each, range(1))
        # Job 1 waits for the DMA of job 0, which is held up.
        with pytest.raises(ValueError, match=r"job 1 is not ready yet: wait\(1\) for it"):
            stager.submitted(1, engine.stream)
        latch.release()
        submit(stager, engine, each, range(1, 2))
        stager.finish()
        assert wrong(engine, each, 2) == 0
        _hip.synchronize_stream(engine.stream)


@pytest.mark.parametrize(
    ("value", "kind"), [("1", TypeError), (-1, ValueError), (float("nan"), ValueError), ([], TypeError)], ids=repr
)
def test_timeouts(value: Any, kind: type[Exception], make_engine) -> None:
    each = material("s" * 2, NBYTES)
    engine = make_engine(2)
    with strata.HostStager(NBYTES) as stager:
        stager.start(each.copies)
        stager.wait(0)  # ready: refused all the same
        with pytest.raises(kind, match="timeout is"):
            stager.wait(0, value)
        stager.wait(1, timeout=float("inf"))
        submit(stager, engine, each, range(2))
        stager.finish()
        assert wrong(engine, each, 2) == 0
