"""Closing while kernels still read: a wait that fails must not become a free that comes too early."""

from __future__ import annotations

import threading

import pytest

import strata
from strata.runtime.software.checking import checked
from tests.faults.threads import ISSUER, all_ended, threads_named, wait_until
from tests.support.engine import Reader, read_rest
from tests.support.sources import material

NBYTES = 96
RING = 4

pytestmark = pytest.mark.timeout(120, method="thread")


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize("status", [3, 2, 719])
def test_a_failed_wait_for_the_last_use_does_not_free_what_is_read(status: int, schedule: str, software) -> None:
    """The kernels are held back until the wait for them has failed; what they read is right all the same."""
    software.configure(schedule=schedule)
    each = material("d" * RING, NBYTES)
    reader = Reader(len(each), NBYTES)
    with checked():
        with threads_named(ISSUER):
            streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
        latch = software.hold(streamer.compute_stream)
        with streamer.begin(each.copies) as request:
            read_rest(request, reader, streamer.compute_stream)
        # Fresh slots: the copies waited for nobody, and the request is over while its kernels have not begun.
        injection = software.inject("hipEventSynchronize", 1, status, thread=ISSUER)

        def let_go() -> None:
            wait_until(lambda: injection.fired, "the wait for the kernels has failed")
            latch.release()

        thread = threading.Thread(target=let_go)
        thread.start()
        streamer.close()
        thread.join()
        assert reader.wrong(each, closed=True) == 0
        assert [str(finding) for finding in software.findings()] == []
    all_ended()
