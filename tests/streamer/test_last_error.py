"""The engine's own unread error outlives what strata does; strata's own is never left behind."""

from __future__ import annotations

import ctypes

import pytest

import strata
from strata import _hip
from strata.runtime.software import library_path
from tests.support.engine import stream_all
from tests.support.sources import material

NBYTES, RING = 80, 6

#: What an engine may leave unread, and a call that leaves it.
ERRORS = {
    1: lambda hip: hip.hipPointerGetAttributes(None, None),
    101: lambda hip: hip.hipSetDevice(99),
    400: lambda hip: hip.hipEventQuery(None),
    2: lambda hip: hip.hipMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(2**63)),
}


@pytest.fixture
def hip():
    library = ctypes.CDLL(str(library_path()))
    yield library
    library.hipGetLastError()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_an_unread_error_survives_whole_requests(hip, error: int, schedule: str, software) -> None:
    each = material("ds" * RING, NBYTES)
    before = software.configuration()
    software.configure(schedule=schedule)
    try:
        assert ERRORS[error](hip) == error
        streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=4)
        assert _hip.last_error() == error
        stream_all(streamer, each)
        assert _hip.last_error() == error
        request = streamer.begin(each.copies)
        with request.acquire() as slot:
            slot.synchronize()  # asks whether the bytes are there
        request.abort()
        assert _hip.last_error() == error
        streamer.close()
        assert _hip.last_error() == error
    finally:
        hip.hipDeviceSynchronize()
        software.configure(**before)


@pytest.mark.parametrize("error", ERRORS)
def test_an_unread_error_survives_a_stager(hip, error: int, software) -> None:
    each = material("s" * RING, NBYTES)
    stream = _hip.create_stream()
    assert ERRORS[error](hip) == error
    stager = strata.HostStager(NBYTES, host_ring=4)
    stager.start(each.copies)
    stager.wait(0)
    stager.submitted(0, stream)
    stager.close()  # with a request under way: its end is waited for
    assert _hip.last_error() == error
    _hip.destroy_stream(stream)


@pytest.mark.parametrize("error", [0, *ERRORS])
def test_a_failed_pin_leaves_what_was_there(hip, error: int, software) -> None:
    each = material("s" * RING, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=4) as streamer:
        if error:
            assert ERRORS[error](hip) == error
        for nth in range(1, 5):
            software.inject("hipHostMalloc", nth, 2)
        with streamer.begin(each.copies) as request:
            request.skip(len(each))
            request.finish()
        assert streamer.counters.pageable_buffers == 4
        assert _hip.last_error() == error


@pytest.mark.parametrize("status", [1, 100, 700, 719, 801, 999])
def test_only_a_lack_of_memory_makes_a_buffer_pageable(status: int, software) -> None:
    each = material("s" * RING, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=4) as streamer:
        software.inject("hipHostMalloc", 2, status)
        with pytest.raises(strata.HipError) as caught, streamer.begin(each.copies):
            pass
        assert (caught.value.call, caught.value.status) == ("hipHostMalloc", status)
        assert streamer.counters.pageable_buffers == 0
        assert _hip.last_error() == 0
        software.clear_injections()
        stream_all(streamer, each)


@pytest.mark.parametrize("status", [2, 1052])
def test_a_lack_of_memory_makes_a_buffer_pageable(status: int, software) -> None:
    each = material("s" * RING, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=4) as streamer:
        software.inject("hipHostMalloc", 2, status)
        with streamer.begin(each.copies) as request:
            request.skip(len(each))
            request.finish()
        assert streamer.counters.pageable_buffers == 1
        stream_all(streamer, each)


@pytest.mark.parametrize("handle", [2])
def test_the_threads_own_stream_is_refused_by_name(handle: int, software) -> None:
    each = material("s" * RING, NBYTES)
    for name in ("copy_stream", "compute_stream"):
        with pytest.raises(ValueError, match=f"{name} is 2, hipStreamPerThread"):
            strata.ExpertStreamer(NBYTES, gpu_ring=RING, **{name: handle})
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        with pytest.raises(ValueError, match="compute_stream is 2, hipStreamPerThread"):
            streamer.begin(each.copies, compute_stream=handle)
        stream_all(streamer, each)
    with pytest.raises(ValueError, match="stream is 2, hipStreamPerThread"):
        strata.runtime.launch_host(handle, print)
    stager = strata.HostStager(NBYTES, host_ring=4)
    stager.start(each.copies)
    stager.wait(0)
    with pytest.raises(ValueError, match="stream is 2, hipStreamPerThread"):
        stager.submitted(0, handle)
    stager.close()


def test_a_failing_question_is_named(software) -> None:
    software.inject("hipDeviceGetName", 1, 719)
    with pytest.raises(strata.HipError) as caught:
        _hip.device_name(0)
    assert caught.value.call == "hipDeviceGetName"
