"""Every byte of every kind of entry arrives, whatever the rings, batches and host buffers; counters are exact."""

from __future__ import annotations

import numpy as np
import pytest

import strata
from tests.support.counting import SlotHistory
from tests.support.engine import Reader, read_rest, stream_all
from tests.support.sources import Material, material

NBYTES = 256

MIXES = {
    "direct": "d" * 41,
    "staged": "s" * 41,
    "direct then staged": "d" * 23 + "s" * 29,
    "staged then direct": "s" * 23 + "d" * 29,
    "alternating": "ds" * 17 + "ssd" * 5,
    "segments": "DS" * 7 + "DDDSSS" * 4,
    "empty ones among them": "dzsZe" * 6 + "eeezzzZZZ" + "sss",
    "nothing but empty": "zZe" * 9,
}
RINGS = [(1, 1), (2, 3), (4, 2), (8, 5), (17, 16), (64, 64)]
BATCHES = [
    strata.BatchSettings(),
    strata.BatchSettings(2, 3, 2),
    strata.BatchSettings(8, 16, 16),
    strata.BatchSettings(3, 1, 5),
]


@pytest.mark.parametrize("rings", RINGS, ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_bytes_and_counters(mix: str, rings: tuple[int, int]) -> None:
    gpu_ring, host_ring = rings
    first, second = (material(MIXES[mix], NBYTES, seed) for seed in (1, 2))
    for settings in BATCHES:
        with strata.ExpertStreamer(NBYTES, gpu_ring=gpu_ring, host_ring=host_ring, settings=settings) as streamer:
            history = SlotHistory(gpu_ring)
            for each in (first, second):
                counters = stream_all(streamer, each)
                assert counters.matches(history.expected(each, settings, host_ring)) == {}


@pytest.mark.parametrize("mix", ["direct", "direct then staged", "alternating", "segments"])
def test_a_warmed_request_counts_as_its_plan_says(mix: str) -> None:
    each = material(MIXES[mix], NBYTES)
    for gpu_ring, host_ring in RINGS[:-1]:
        for settings in BATCHES:
            with strata.ExpertStreamer(
                NBYTES, gpu_ring=gpu_ring, host_ring=host_ring, settings=settings
            ) as streamer:
                stream_all(streamer, each)
                plan = strata.CopyPlan(
                    each.copies.jobs(), gpu_ring=gpu_ring, host_ring=host_ring, settings=settings
                )
                counters = stream_all(streamer, each)
                assert counters.matches(plan.counts()) == {}
                assert counters.copied_waits == counters.used_records == len(each)


@pytest.mark.parametrize("pinned_buffers", [0, 1, 3, 5])
@pytest.mark.parametrize("mix", ["staged", "alternating", "segments"])
def test_pageable_host_buffers(mix: str, pinned_buffers: int, pin_at_most, caplog) -> None:
    gpu_ring, host_ring = 7, 5
    settings = strata.BatchSettings(4, 4, 4)
    first, second = (material(MIXES[mix], NBYTES, seed) for seed in (3, 4))
    readers = [Reader(len(each), NBYTES) for each in (first, second)]
    host_pinned = [b < pinned_buffers for b in range(host_ring)]
    with strata.ExpertStreamer(NBYTES, gpu_ring=gpu_ring, host_ring=host_ring, settings=settings) as streamer:
        pin_at_most(pinned_buffers * NBYTES)
        history = SlotHistory(gpu_ring)
        for each, reader in zip((first, second), readers, strict=True):
            with streamer.begin(each.copies) as request:
                read_rest(request, reader, streamer.compute_stream)
            assert reader.wrong(each) == 0
            expected = history.expected(each, settings, host_ring, host_pinned=host_pinned)
            assert request.counters.matches(expected) == {}
    warnings = [record for record in caplog.records if record.name == "strata" and "pinned" in record.getMessage()]
    if pinned_buffers == host_ring:
        assert warnings == []
    else:
        assert len(warnings) == 1  # once, when the buffers were made
        assert f"{host_ring - pinned_buffers} of {host_ring}" in warnings[0].getMessage()


def test_under_every_schedule(schedule: str) -> None:
    each = material("d" * 9 + "S" * 8 + "zD" * 4 + "sedS" * 3, NBYTES)
    again = material("s" * 5 + "d" * 3, NBYTES, seed=1)
    for settings in (strata.BatchSettings(), strata.BatchSettings(3, 2, 2)):
        with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=3, settings=settings) as streamer:
            history = SlotHistory(4)
            # Long, then shorter than the ring, then long: reuse is not always the terminal's.
            for current in (each, again, each, again):
                counters = stream_all(streamer, current)
                assert counters.matches(history.expected(current, settings, 3)) == {}


@pytest.mark.parametrize("lengths", [(9, 3, 9), (3, 9, 1, 9), (1, 2, 3, 2, 1, 8)], ids=str)
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_short_requests_between_long_ones(lengths: tuple[int, ...], batch: int, schedule: str) -> None:
    settings = strata.BatchSettings(batch, batch, batch)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=4, settings=settings) as streamer:
        history = SlotHistory(4)
        for seed, length in enumerate(lengths):
            each = material(("dds" * 3)[:length], NBYTES, seed)
            counters = stream_all(streamer, each)
            assert counters.matches(history.expected(each, settings, 4)) == {}


def test_a_first_request_needs_no_reuse_wait() -> None:
    each = material("d" * 4 + "s" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, host_ring=4) as streamer:
        counters = stream_all(streamer, each)
        assert counters.direct_reuse_waits == counters.staged_reuse_waits == 0
        # Slots 0 to 6 were used: the second request waits for each of its seven, as slot 7 stays fresh.
        counters = stream_all(streamer, each)
        assert (counters.direct_reuse_waits, counters.staged_reuse_waits) == (4, 3)
        counters = stream_all(streamer, material("d" * 8, NBYTES))
        assert counters.direct_reuse_waits == 7


def test_decode_runs_with_one_dependency_an_entry() -> None:
    settings = strata.BatchSettings(4, 4, 4)
    each = material("d" * 9 + "s" * 9, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, host_ring=4, settings=settings) as streamer:
        history = SlotHistory(8)
        for long_prefill in (True, False, True, np.False_):
            reader = Reader(len(each), NBYTES)
            with streamer.begin(each.copies, long_prefill=long_prefill) as request:
                read_rest(request, reader, streamer.compute_stream)
            assert reader.wrong(each) == 0
            expected = history.expected(each, settings, 4, long_prefill=bool(long_prefill))
            assert request.counters.matches(expected) == {}
            assert request.settings == (settings if long_prefill else strata.BatchSettings(1, 1, 1))
        assert streamer.settings == settings


def test_settings_are_clamped_to_the_rings() -> None:
    each = material("d" * 20 + "s" * 20, NBYTES)
    wanted = strata.BatchSettings(1000, 1000, 1000)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6, host_ring=4, settings=wanted) as streamer:
        assert streamer.settings == strata.BatchSettings(6, 4, 4)
        assert streamer.max_held == 1
        counters = stream_all(streamer, each)
        assert counters.matches(SlotHistory(6).expected(each, streamer.settings, 4)) == {}
    with strata.ExpertStreamer(NBYTES, gpu_ring=64, host_ring=4, settings=strata.BatchSettings(-3, 0, -1)) as streamer:
        assert streamer.settings == strata.BatchSettings(1, 1, 1)
        assert streamer.max_held == 64


def test_slots_show_the_bytes_and_nothing_but_zeros_between_segments() -> None:
    each = material("S" * 5, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=2, host_ring=2) as streamer, streamer.begin(each.copies) as request:
        for slot in request:
            slot.synchronize()
            image = slot.array()
            assert image.dtype == np.uint8
            assert image.shape == (slot.nbytes,) == (each.extent(slot.entry),)
            assert slot.address == streamer.slots[slot.slot] == image.ctypes.data
            assert slot.slot == slot.entry % 2
            assert each.wrong(slot.entry, image) == 0
            gaps = np.ones(slot.nbytes, np.bool_)
            for offset, data in each.segments[slot.entry]:
                gaps[offset : offset + data.size] = False
            assert gaps.any()
            assert not image[gaps].any()  # no other expert's bytes travel along


def test_gaps_larger_than_a_workers_chunk_are_zeros() -> None:
    """The one host buffer held another expert's bytes everywhere before; a worker writes in chunks of 256 KiB."""
    nbytes, end = 700_001, 100
    full = np.full(nbytes, 0xFF, np.uint8)
    entries = [[(0, nbytes)], [(0, end), (nbytes - end, end)], [(0, nbytes)], [(nbytes - 1, 1)]]  # (offset, bytes)
    rows = [row for entry in entries for row in entry]
    copies = strata.ExpertCopies(
        [full.ctypes.data] * len(rows),
        [size for _, size in rows],
        False,
        offsets=[offset for offset, _ in rows],
        entry_starts=[0, 1, 3, 4, len(rows)],
    )
    with strata.ExpertStreamer(nbytes, gpu_ring=2, host_ring=1) as streamer, streamer.begin(copies) as request:
        for slot in request:
            slot.synchronize()
            image = np.zeros(nbytes, np.uint8)
            for offset, size in entries[slot.entry]:
                image[offset : offset + size] = 0xFF
            np.testing.assert_array_equal(slot.array(), image)


def test_an_empty_slot_has_an_array_without_bytes() -> None:
    each = material("ze", NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=2) as streamer, streamer.begin(each.copies) as request:
        for slot in request:
            slot.synchronize()
            assert slot.nbytes == 0
            assert slot.array().shape == (0,)
    assert request.counters.direct_copies == 2
    assert request.counters.direct_copy_calls == request.counters.direct_bytes == 0
    assert request.counters.direct_copied_records == 2


@pytest.mark.parametrize("given", ["none", "empty", "extended by empty"])
def test_a_request_without_entries_does_nothing(given: str, software) -> None:
    nothing = strata.ExpertCopies([], [])
    with strata.ExpertStreamer(NBYTES, gpu_ring=4) as streamer:
        software.reset_calls()
        with streamer.begin(nothing if given == "empty" else None) as request:
            if given == "extended by empty":
                request.extend(nothing)
            assert len(request) == request.issued == request.consumed == 0
            assert list(request) == []
            with pytest.raises(IndexError, match="entry 0 is past the end"):
                request.acquire()
        assert request.counters == strata.Counters()
        work = {name: n for name, n in software.calls().items() if n and "Error" not in name and "Get" not in name}
        assert work == {}
    assert streamer.counters == strata.Counters()


def test_totals_are_the_sum_of_the_requests() -> None:
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2) as streamer:
        total = strata.Counters()
        for seed in range(3):
            total += stream_all(streamer, material("ddsse", NBYTES, seed))
            assert streamer.counters == total
        last = material("dd", NBYTES)
        with streamer.begin(last.copies) as request:
            request.acquire().release()
            assert streamer.counters.used_records == total.used_records + 1
            request.skip()
        assert streamer.counters == total + request.counters


def test_a_snapshot_in_the_middle_counts_what_was_done_so_far() -> None:
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=2) as streamer, streamer.begin(each.copies) as request:
        before = request.counters
        request.acquire().release()
        request.acquire().release()
        after = request.counters
        assert (after - before).copied_waits == (after - before).used_records == 2
        assert after.direct_copies >= 2
        request.skip(4)


def test_timing_counts_seconds_and_no_timing_none() -> None:
    each = material("d" * 40 + "s" * 40, NBYTES)
    names = [name for name in strata.Counters().as_dict() if name.endswith("_s")]
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2, timing=False) as streamer:
        counters = stream_all(streamer, each).as_dict()
        assert {name: counters[name] for name in names} == dict.fromkeys(names, 0.0)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4, host_ring=2, timing=True) as streamer:
        stream_all(streamer, each)
        timed = stream_all(streamer, each)
        for name in ("submission_s", "dependency_calls_s", "host_memcpy_s", "wait_host_reuse_s", "wall_s"):
            assert timed.as_dict()[name] > 0, name
        # One thread's waits cannot be longer than the request. (The workers' are added up.)
        assert timed.wait_publication_s <= timed.wall_s
        assert timed.wait_window_s + timed.wait_source_s <= timed.wall_s


def test_one_list_serves_many_requests_and_streamers() -> None:
    each = material("dsDS" * 5, NBYTES)
    with (
        strata.ExpertStreamer(NBYTES, gpu_ring=3, host_ring=2) as one,
        strata.ExpertStreamer(NBYTES, gpu_ring=5, host_ring=3, settings=strata.BatchSettings(2, 2, 2)) as other,
    ):
        readers = [Reader(len(each), NBYTES) for _ in range(2)]
        with one.begin(each.copies) as first, other.begin(each.copies) as second:
            for _ in range(len(each)):
                for request, reader, streamer in ((first, readers[0], one), (second, readers[1], other)):
                    slot = request.acquire()
                    reader.read(slot, streamer.compute_stream)
                    slot.release()
        assert [reader.wrong(each) for reader in readers] == [0, 0]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers(workers: int) -> None:
    each = material("sSd" * 30, NBYTES)
    settings = strata.BatchSettings(2, 3, 2)
    with strata.ExpertStreamer(
        NBYTES, gpu_ring=6, host_ring=4, workers=workers, settings=settings
    ) as streamer:
        history = SlotHistory(6)
        for _ in range(3):
            counters = stream_all(streamer, each)
            assert counters.matches(history.expected(each, settings, 4)) == {}


def test_more_jobs_than_sixteen_bits_count() -> None:
    n = 70_000
    page = np.arange(n, dtype=np.uint32)
    copies = strata.ExpertCopies(
        page.ctypes.data + np.arange(n, dtype=np.int64) * 4, np.full(n, 4), False
    )
    seen = np.zeros(n, np.uint32)
    with strata.ExpertStreamer(4, gpu_ring=64, host_ring=16, settings=strata.BatchSettings(8, 16, 16)) as streamer:
        with streamer.begin(copies) as request:
            for slot in request:
                if slot.entry % 1000 == 0 or slot.entry > 65_500:
                    slot.synchronize()
                    seen[slot.entry] = slot.array().view(np.uint32)[0]
        checked = np.flatnonzero((np.arange(n) % 1000 == 0) | (np.arange(n) > 65_500))
        assert np.array_equal(seen[checked], page[checked])
        assert request.counters.staged_copies == n
        assert request.counters.host_reuse_waits == n - 16


@pytest.mark.parametrize("kinds", ["d" * 30, "D" * 12, "dDzeds" * 4])
def test_grouped_submission_moves_the_same_bytes(kinds: str) -> None:
    each = material(kinds, NBYTES)
    settings = strata.BatchSettings(4, 2, 2)
    with strata.ExpertStreamer(
        NBYTES, gpu_ring=6, host_ring=3, settings=settings, submission="group"
    ) as streamer:
        assert streamer.submission == "group"
        history = SlotHistory(6)
        for _ in range(2):
            counters = stream_all(streamer, each)
            assert counters.matches(history.expected(each, settings, 3)) == {}


def test_sources_are_read_when_the_copy_runs_and_not_after_finish() -> None:
    each: Material = material("ds" * 6, NBYTES)
    want = [pool.copy() for pool in each.pools]
    with strata.ExpertStreamer(NBYTES, gpu_ring=3, host_ring=2) as streamer:
        reader = Reader(len(each), NBYTES)
        with streamer.begin(each.copies) as request:
            read_rest(request, reader, streamer.compute_stream)
        for pool in each.pools:
            pool[...] = 0  # the request is over: nobody reads these any more
        kept = [row.copy() for row in want]
        for entry, rows in enumerate(each.segments):
            pool = kept[0] if each.kinds[entry] == "d" else kept[1]
            each.segments[entry] = [(offset, pool[entry, : data.size]) for offset, data in rows]
        assert reader.wrong(each) == 0
