"""A list that grows while it is streamed: the same bytes as one list, groups that end where a list ends."""

from __future__ import annotations

import numpy as np
import pytest

import strata
from tests.support.counting import SlotHistory
from tests.support.engine import Reader, read_rest, stream_all
from tests.support.sources import material

NBYTES = 200

CUTS = {
    "one by one": [1] * 30,
    "layers": [7, 7, 7, 9],
    "first empty": [0, 16, 14],
    "empty ones between": [5, 0, 0, 20, 0, 5],
    "longer than the rings": [29, 1],
}
KINDS = {
    "direct": "d" * 30,
    "staged": "s" * 30,
    "mixed": "ddsss" * 6,
    "staged last": "d" * 16 + "s" * 14,
    "staged first": "s" * 16 + "d" * 14,
    "segments": "DSe" * 10,
}


@pytest.mark.parametrize("when", ["ahead", "layer by layer"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kinds", KINDS)
def test_extensions_give_the_same_bytes(kinds: str, cut: str, when: str) -> None:
    lengths = CUTS[cut]
    for rings, batches in (((4, 3), (3, 2, 3)), ((8, 16), (8, 16, 8)), ((5, 2), (1, 1, 1))):
        settings = strata.BatchSettings(*batches)
        with strata.ExpertStreamer(NBYTES, gpu_ring=rings[0], host_ring=rings[1], settings=settings) as streamer:
            history = SlotHistory(rings[0])
            for seed in (1, 2):
                each = material(KINDS[kinds], NBYTES, seed)
                reader = Reader(len(each), NBYTES)
                with streamer.begin() as request:
                    listed = 0
                    for length in lengths:
                        request.extend(each.take(listed, listed + length))
                        listed += length
                        assert len(request) == listed
                        if when == "layer by layer":
                            read_rest(request, reader, streamer.compute_stream)
                            assert request.consumed == listed
                    read_rest(request, reader, streamer.compute_stream)
                assert reader.wrong(each) == 0
                filled = [length for length in lengths if length]
                expected = history.expected(each, streamer.settings, rings[1], lengths=filled)
                assert request.counters.matches(expected) == {}


def test_one_list_and_its_extensions_agree_on_everything_but_the_groups() -> None:
    each = material("dds" * 12, NBYTES)
    settings = strata.BatchSettings(4, 4, 4)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, host_ring=4, settings=settings) as streamer:
        whole = stream_all(streamer, each)
        reader = Reader(len(each), NBYTES)
        with streamer.begin(each.take(0, 7)) as request:
            request.extend(each.take(7, 36))
            read_rest(request, reader, streamer.compute_stream)
        assert reader.wrong(each) == 0
        cut = request.counters
    for name in ("copies", "copy_calls", "bytes"):
        for kind in ("direct", "staged"):
            assert getattr(cut, f"{kind}_{name}") == getattr(whole, f"{kind}_{name}")
    assert cut.direct_copied_records > whole.direct_copied_records


def test_acquire_past_the_end_then_extend_and_go_on() -> None:
    each = material("dsd" * 3, NBYTES)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2) as streamer:
        with streamer.begin(each.take(0, 4)) as request:
            read_rest(request, reader, streamer.compute_stream)
            with pytest.raises(IndexError, match=r"entry 4 is past the end of the list \(4 entries\)"):
                request.acquire()
            with pytest.raises(IndexError, match="entry 4"):
                request.acquire(timeout=0)
            with pytest.raises(IndexError, match="entry 4"):
                request.skip()
            request.extend(each.take(4, 9))
            read_rest(request, reader, streamer.compute_stream)
            assert (request.issued, request.consumed) == (9, 9)
    assert reader.wrong(each, closed=True) == 0
    assert request.counters.used_records == 9


def test_iteration_goes_on_after_an_extension() -> None:
    each = material("d" * 9, NBYTES)
    seen = []
    with strata.ExpertStreamer(NBYTES, gpu_ring=4) as streamer, streamer.begin() as request:
        for begin, end in ((0, 3), (3, 3), (3, 9)):
            request.extend(each.take(begin, end))
            for slot in request:
                seen.append(slot.entry)
                if slot.entry == 1 and len(request) == 3:
                    request.extend(each.take(0, 0))  # a list may grow in the loop, too
    assert seen == list(range(9))


def test_a_list_that_grows_in_the_loop_is_streamed_to_its_new_end() -> None:
    each = material("ds" * 10, NBYTES)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2) as streamer:
        with streamer.begin(each.take(0, 2)) as request:
            for slot in request:
                reader.read(slot, streamer.compute_stream)
                if slot.entry % 2 and slot.entry < 19:
                    request.extend(each.take(slot.entry + 1, slot.entry + 3))
    assert reader.entries == list(range(20))
    assert reader.wrong(each, closed=True) == 0


def test_an_extension_that_does_not_fit_is_refused_and_the_request_goes_on() -> None:
    each = material("d" * 6, NBYTES)
    large = strata.ExpertCopies.from_buffers([np.zeros(NBYTES, np.uint8), np.zeros(NBYTES + 1, np.uint8)], True)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4) as streamer:
        with streamer.begin(each.take(0, 4)) as request:
            with pytest.raises(ValueError, match=rf"entry 5 needs {NBYTES + 1} bytes and a slot has {NBYTES}"):
                request.extend(large)
            with pytest.raises(TypeError, match=r"copies is list; a strata\.ExpertCopies is wanted"):
                request.extend([1])
            assert len(request) == 4
            request.extend(each.take(4, 6))
            read_rest(request, reader, streamer.compute_stream)
    assert reader.wrong(each, closed=True) == 0
    assert request.counters.direct_copies == 6


def test_extensions_that_come_while_slots_are_held() -> None:
    each = material("d" * 12, NBYTES)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4) as streamer:
        with streamer.begin(each.take(0, 2)) as request:
            held = [request.acquire(), request.acquire()]
            request.extend(each.take(2, 12))
            held.append(request.acquire())
            for slot in held:
                reader.read(slot, streamer.compute_stream)
                slot.release()
            read_rest(request, reader, streamer.compute_stream)
    assert reader.wrong(each, closed=True) == 0
