"""A streamer belongs to one device; its calls leave the engine's thread on the engine's own."""

from __future__ import annotations

import pytest

import strata
from strata import _hip
from tests.support.engine import Reader, read_rest
from tests.support.sources import material

NBYTES = 80


@pytest.fixture
def two_devices(software):
    software.configure(devices=2)
    yield
    _hip.use_device(0)


def test_it_works_on_its_device_and_restores_the_engines(two_devices) -> None:
    each = material("dds" * 5, NBYTES)
    for current, device in ((0, 1), (1, 0), (1, 1), (0, None), (1, None)):
        _hip.use_device(current)
        reader = Reader(len(each), NBYTES)
        with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2, device=device) as streamer:
            assert streamer.device == (current if device is None else device)
            assert _hip.current_device() == current
            for _ in range(2):
                with streamer.begin(each.copies) as request:
                    assert _hip.current_device() == current
                    read_rest(request, reader, streamer.compute_stream)
                    assert _hip.current_device() == current
                assert reader.wrong(each) == 0
            where = {_hip.memory_type(address)[1] for address in streamer.slots}
            where |= {_hip.stream_device(s) for s in (streamer.copy_stream, streamer.compute_stream)}
            assert where == {streamer.device}
            request = streamer.begin(each.copies)
            request.acquire()
            request.abort()
            assert _hip.current_device() == current
        assert _hip.current_device() == current


def test_what_is_lent_says_which_device(two_devices, make_stream, lend_slots) -> None:
    _hip.use_device(1)
    stream, slots = make_stream(), lend_slots(4, NBYTES)
    _hip.use_device(0)
    here, here_slots = make_stream(), lend_slots(4, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, compute_stream=stream) as streamer:
        assert streamer.device == 1
    with strata.ExpertStreamer(NBYTES, slots=slots, compute_stream=0) as streamer:
        assert streamer.device == 1
    for arguments, words in (
        ({"gpu_ring": 4, "compute_stream": stream, "device": 0}, "compute_stream belongs to device 1, and device says"),
        ({"gpu_ring": 4, "compute_stream": stream, "copy_stream": here}, "compute_stream belongs to device 1"),
        ({"slots": slots, "compute_stream": here}, r"slots\[0\] lies on device 1; the streamer's is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            strata.ExpertStreamer(NBYTES, **arguments)
    with strata.ExpertStreamer(NBYTES, slots=here_slots, compute_stream=here) as streamer:
        with pytest.raises(ValueError, match="compute_stream belongs to device 1"):
            streamer.begin(compute_stream=stream)
        with pytest.raises(ValueError, match=r"slots\[0\] lies on device 1"):
            streamer.begin(slots=slots)
    _hip.use_device(0)
