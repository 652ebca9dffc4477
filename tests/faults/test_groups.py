"""A copy fails in the middle of a group: the group is not published, and what was copied before is counted."""

from __future__ import annotations

import pytest

import strata
from strata.runtime.software import control
from tests.faults.judging import NAMES
from tests.faults.threads import ISSUER, threads_named, wait_until
from tests.support.engine import Reader, read_rest, stream_all
from tests.support.sources import material

NBYTES = 80
RING = 12
HOST_RING = 8
LONG = 4
N = 24

pytestmark = pytest.mark.timeout(120, method="thread")


def streamer(**changes: object) -> strata.ExpertStreamer:
    settings = strata.BatchSettings(LONG, 2, LONG)
    with threads_named(ISSUER):
        return strata.ExpertStreamer(
            NBYTES, gpu_ring=RING, host_ring=HOST_RING, workers=1, settings=settings, **changes  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("status", [3, 2, 719])
@pytest.mark.parametrize("nth", range(1, 3 * LONG + 1))
@pytest.mark.parametrize("kind", ["d", "s"])
def test_a_group_with_a_failed_copy_is_never_published(kind: str, nth: int, status: int, software) -> None:
    each = material(kind * N, NBYTES)
    reader = Reader(len(each), NBYTES)
    with streamer() as made:
        stream_all(made, each)
        software.inject("hipMemcpyAsync", nth, status, thread=ISSUER)
        begin = (nth - 1) // LONG * LONG  # of the group that it falls in
        request = made.begin(each.copies)
        with pytest.raises(strata.HipError) as caught:
            read_rest(request, reader, made.compute_stream)
        assert all(entry < begin for entry in reader.entries), "an entry of the failed group was given out"
        error = caught.value
        assert (error.call, error.status, error.name) == ("hipMemcpyAsync", status, NAMES[status])
        assert (error.entry, error.slot) == (nth - 1, (nth - 1) % RING)
        counters = request.counters
        which = "direct" if kind == "d" else "staged"
        assert request.issued == begin
        assert getattr(counters, f"{which}_copies") == getattr(counters, f"{which}_copy_calls") == nth - 1
        assert getattr(counters, f"{which}_copied_records") == begin // LONG
        assert getattr(counters, f"{which}_reuse_waits") == begin // LONG + 1
        if kind == "s":  # ownership groups of two: the last one may want a fence
            assert counters.dma_done_records == (nth - 1) // 2
            assert counters.fences == (nth - 1) % 2
        assert reader.wrong(each) == 0
        stream_all(made, each)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_group_in_one_call_is_copied_or_not_as_a_whole(nth: int, software) -> None:
    each = material("d" * N, NBYTES)
    with streamer(submission="group") as made:
        assert made.submission == "group"
        stream_all(made, each)
        software.inject("hipMemcpyBatchAsync", nth, 719)
        with pytest.raises(strata.HipError) as caught, made.begin(each.copies) as request:
            request.skip(N)
        error = caught.value
        first = (nth - 1) * LONG
        assert (error.call, error.status, error.entry, error.slot) == ("hipMemcpyBatchAsync", 719, first, first % RING)
        assert request.issued == request.counters.direct_copies == request.counters.direct_copy_calls == first
        stream_all(made, each)


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("kind", ["d", "s"])
def test_a_group_without_its_record_is_never_published(kind: str, nth: int, software) -> None:
    """All of its copies were submitted; nobody can wait for them."""
    each = material(kind * N, NBYTES)
    with streamer() as made:
        stream_all(made, each)
        # The issuer's records: one a group, and for staged entries one after each second copy, too.
        turn = nth if kind == "d" else 3 * nth
        software.inject("hipEventRecord", turn, 719, thread=ISSUER)
        with pytest.raises(strata.HipError) as caught, made.begin(each.copies) as request:
            request.skip(N)
        error = caught.value
        assert (error.call, error.entry) == ("hipEventRecord", nth * LONG - 1)
        assert request.issued == (nth - 1) * LONG
        counters = request.counters
        assert counters.direct_copies + counters.staged_copies == nth * LONG
        assert counters.direct_copied_records + counters.staged_copied_records == nth - 1
        stream_all(made, each)


@pytest.mark.parametrize("kind", ["d", "s"])
def test_the_first_cause_is_raised_and_no_later_one(kind: str, software) -> None:
    """A copy fails; then the fence, and the end of the request, fail for another reason."""
    each = material(kind * N, NBYTES)
    with streamer() as made:
        stream_all(made, each)
        first = software.inject("hipMemcpyAsync", 6, 719, thread=ISSUER)
        request = made.begin(each.copies)
        wait_until(lambda: first.fired, "the sixth copy has failed")
        later = software.inject("hipStreamSynchronize" if kind == "d" else "hipEventSynchronize", 1, 700)
        with pytest.raises(strata.HipError) as caught:
            request.skip(N)
        assert (caught.value.call, caught.value.status, caught.value.entry) == ("hipMemcpyAsync", 719, 5)
        assert later.fired
        assert caught.value.__context__ is None
        software.clear_injections()
        stream_all(made, each)


def test_an_extension_that_cannot_be_prepared_ends_the_request(software) -> None:
    """The host ring is made at the first staged entry: here in the middle of a request."""
    direct, staged = material("d" * 6, NBYTES), material("s" * 6, NBYTES)
    reader = Reader(6, NBYTES)
    with streamer() as made:
        before = control.live()
        for nth in range(1, HOST_RING + 1):
            request = made.begin(direct.copies)
            read_rest(request, reader, made.compute_stream)
            software.inject("hipEventCreateWithFlags", nth, 2)
            with pytest.raises(strata.HipError) as caught:
                request.extend(staged.copies)
            assert (caught.value.call, caught.value.status) == ("hipEventCreateWithFlags", 2)
            assert (caught.value.entry, caught.value.slot) == (None, None)
            with pytest.raises(strata.RequestAborted):
                request.acquire()
            assert (request.consumed, request.counters.used_records) == (6, 6)
            assert reader.wrong(direct) == 0
            after = control.live()
            assert {key: after[key] for key in ("events", "pinned_allocations", "pinned_bytes")} == {
                key: before[key] for key in ("events", "pinned_allocations", "pinned_bytes")
            }
        stream_all(made, staged)
