"""A buffer's event is recorded again only once the worker that waits for it has waited: *ready before re-record*."""

from __future__ import annotations

from typing import Any

import pytest

import strata
from tests.support.sources import material

NBYTES = 4096


def test_ready_before_re_record(software: Any) -> None:
    """Job 2 comes to buffer 0 again. Its worker is held in its wait for the event that was recorded there for job 0.

    No byte need be wrong where the issuer records that event once more meanwhile: the worker then waits for more. So
    the records are counted, by the counters and by the runtime.
    """
    copies = material("ssss", NBYTES).copies
    hang = software.inject("hipEventSynchronize", 1, action="hang", thread="strata-worker-0")
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, host_ring=2, workers=1, settings=strata.BatchSettings()) as streamer:
        before = software.calls()["hipEventRecord"]
        with streamer.begin(copies) as request:
            try:
                for _ in range(2):
                    request.acquire(30).release()
                with pytest.raises(TimeoutError):
                    request.acquire(0.3)
                assert hang.fired
                assert (request.issued, request.counters.dma_done_records) == (2, 2)
                # copied, dma_done and used, of jobs 0 and 1
                assert software.calls()["hipEventRecord"] - before == 3 * 2
            finally:
                software.release_hangs()
            for _ in range(2):
                request.acquire(30).release()
        assert request.counters.dma_done_records == 4
        assert request.counters.host_reuse_waits == 2
        assert software.calls()["hipEventRecord"] - before == 3 * 4
