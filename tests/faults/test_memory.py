"""Memory that runs out: pinned at each allocation of the set-up, device memory, host memory altogether."""

from __future__ import annotations

import logging

import pytest

import strata
from tests.support.counting import SlotHistory
from tests.support.engine import Reader, read_rest
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

NBYTES = 4096
RING = 4
HOST_RING = 5
SETTINGS = strata.BatchSettings(2, 2, 3)

pytestmark = pytest.mark.timeout(120, method="thread")


def run_with(pinned: list[bool], software, caplog, restrict) -> None:
    """Two requests: every byte is right, every counter exact, the pageable buffers are told once and stay."""
    each = material("ssdssssssssssddssss", NBYTES)
    reader = Reader(len(each), NBYTES)
    history = SlotHistory(RING)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=HOST_RING, workers=2, settings=SETTINGS) as made:
        restrict()
        before = software.live()["pinned_allocations"]
        for _ in range(2):
            with made.begin(each.copies) as request:
                read_rest(request, reader, made.compute_stream)
            assert reader.wrong(each) == 0
            assert request.counters.matches(history.expected(each, SETTINGS, HOST_RING, host_pinned=pinned)) == {}
        assert software.live()["pinned_allocations"] - before == pinned.count(True)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (not all(pinned))
    for text in warnings:
        assert f"{pinned.count(False)} of {HOST_RING} host buffers of {NBYTES} bytes" in text


@pytest.mark.parametrize("room", range(HOST_RING + 1))
def test_pinned_memory_runs_out_at_each_buffer(room: int, software, caplog) -> None:
    def restrict() -> None:
        software.configure(pinned_limit=software.live()["pinned_bytes"] + room * NBYTES + NBYTES - 1)

    run_with([buffer < room for buffer in range(HOST_RING)], software, caplog, restrict)


@pytest.mark.parametrize("status", [2, 1052])  # a lack of memory; any other status is a failure
@pytest.mark.parametrize("nth", range(1, HOST_RING + 1))
def test_one_buffer_cannot_be_pinned(nth: int, status: int, software, caplog) -> None:
    pinned = [buffer != nth - 1 for buffer in range(HOST_RING)]
    run_with(pinned, software, caplog, lambda: software.inject("hipHostMalloc", nth, status))


@pytest.mark.parametrize("status", [1, 3, 100, 719])
@pytest.mark.parametrize("nth", [1, HOST_RING])
def test_a_failure_of_pinning_is_no_lack_of_memory(nth: int, status: int, software) -> None:
    """A lost device, say: it is raised, nothing stays behind, and the streamer serves the next request."""
    each = material("s" * 8, NBYTES)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=HOST_RING, workers=1) as made:
        before = software.live()["pinned_allocations"]
        software.inject("hipHostMalloc", nth, status)
        with pytest.raises(strata.HipError, match="hipHostMalloc") as caught:
            made.begin(each.copies)
        assert (caught.value.call, caught.value.status) == ("hipHostMalloc", status)
        assert software.live()["pinned_allocations"] == before
        with made.begin(each.copies) as request:
            read_rest(request, reader, made.compute_stream)
        assert reader.wrong(each) == 0
        assert request.counters.pageable_buffers == 0


def test_device_memory_that_does_not_hold_the_slots(software) -> None:
    """The total would do, but something else lies there: the device's own refusal, with the bytes asked for."""
    from strata import _hip

    software.configure(device_memory=64 * NBYTES)
    other = _hip.malloc(40 * NBYTES)
    before = software.live()
    with pytest.raises(strata.HipError, match=f"{32 * NBYTES} bytes for 32 slots of {NBYTES} bytes") as caught:
        strata.ExpertStreamer(NBYTES, gpu_ring=32)
    assert (caught.value.call, caught.value.name) == ("hipMalloc", "hipErrorOutOfMemory")
    assert _hip.last_error() == 0
    assert software.live() == before
    _hip.free(other)
    strata.ExpertStreamer(NBYTES, gpu_ring=32).close()


def test_no_host_memory_for_the_host_ring() -> None:
    """The request fails with the bytes asked for, everything made for it is freed, and the streamer goes on."""
    script = """
    import resource
    MiB = 2**20
    control.configure(pinned_limit=control.live()["pinned_bytes"] + 200 * MiB)
    with strata.ExpertStreamer(64 * MiB, gpu_ring=1, host_ring=16, workers=1) as streamer:
        with streamer.begin(direct) as request:
            request.skip(64)
        before = control.live()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        # Three buffers can be pinned, three more can be had.
        resource.setrlimit(resource.RLIMIT_AS, (used + 430 * MiB, resource.RLIM_INFINITY))
        for turn in range(3):
            try:
                streamer.begin(staged)
            except MemoryError as problem:
                say(problem)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        after = control.live()
        say({key: after[key] - before[key] for key in ("events", "pinned_allocations", "pinned_bytes")})
        say(int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() - used < 192 * MiB)
        with streamer.begin(direct) as request:
            for slot in request:
                slot.synchronize()
                assert (slot.array() == slot.entry).all()
        say(request.counters.direct_copies)
    """
    out = ended_well(run_script(script))
    size = 64 * 2**20
    wanted = f"no host memory for the host ring or plan: {16 * size} bytes were asked for (16 buffers of {size} bytes)"
    assert [line.startswith(wanted) for line in out[:3]] == [True] * 3, out
    assert out[3:] == ["{'events': 0, 'pinned_allocations': 0, 'pinned_bytes': 0}", "True", "64"]
