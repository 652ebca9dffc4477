"""Slots held, released, skipped: in what order, how many, and what is an error."""

from __future__ import annotations

import pytest

import strata
from tests.planner.oracle import oracle_ends
from tests.support.engine import Reader, read_rest, stream_all
from tests.support.sources import material

NBYTES = 128


@pytest.mark.parametrize("batches", [(1, 1, 1), (3, 3, 3), (4, 2, 3), (8, 8, 8), (2, 1, 1)], ids=str)
@pytest.mark.parametrize("kinds", ["d" * 24, "s" * 24, "dddsss" * 4, "ds" * 12])
def test_an_acquire_raises_only_where_the_callers_own_release_is_missing(kinds: str, batches) -> None:
    gpu_ring, host_ring = 8, 4
    settings = strata.BatchSettings(*batches)
    each = material(kinds, NBYTES)
    ends = oracle_ends([int(j) for j in each.copies.jobs()], gpu_ring, host_ring, *batches)
    with strata.ExpertStreamer(NBYTES, gpu_ring=gpu_ring, host_ring=host_ring, settings=settings) as streamer:
        most = streamer.max_held
        assert most == gpu_ring - max(streamer.settings.copy_batch, streamer.settings.stage_copy_batch) + 1
        reader = Reader(len(each), NBYTES)
        with streamer.begin(each.copies) as request:
            held: list[strata.Slot] = []
            refused = 0
            while request.consumed < len(each):
                entry = request.consumed + len(held)
                if entry < len(each) and ends[entry] <= request.consumed + gpu_ring:
                    # Enough may be held: this comes, sooner or later, without a release.
                    held.append(request.acquire())
                    assert held[-1].entry == entry
                    continue
                if entry < len(each):
                    refused += 1
                    assert len(held) >= most
                    with pytest.raises(strata.StrataError, match=f"{len(held)} slots are held") as caught:
                        request.acquire()
                    assert f"entry {entry} " in str(caught.value)
                    assert f"At most {most} slots (max_held)" in str(caught.value)
                    assert not isinstance(caught.value, strata.RequestAborted)
                    with pytest.raises(strata.StrataError, match="slots are held"):
                        request.skip()
                # The oldest is read as late as it can be, then given back: the request goes on.
                reader.read(held[0], streamer.compute_stream)
                held.pop(0).release()
            assert refused > 0
        assert reader.wrong(each) == 0
        assert request.counters.copied_waits == request.counters.used_records == len(each)


def test_max_held_slots_can_be_held_all_the_time() -> None:
    each = material("d" * 9 + "s" * 9 + "dds" * 6, NBYTES)
    settings = strata.BatchSettings(3, 4, 2)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=5, host_ring=4, settings=settings) as streamer:
        assert streamer.max_held == 3
        with streamer.begin(each.copies) as request:
            held = []
            for _ in range(len(each)):
                if len(held) == streamer.max_held:
                    reader.read(held[0], streamer.compute_stream)
                    held.pop(0).release()
                held.append(request.acquire())
            for slot in held:
                reader.read(slot, streamer.compute_stream)
                slot.release()
    assert reader.wrong(each, closed=True) == 0


def test_slots_are_released_in_order_and_once() -> None:
    each = material("d" * 6, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=4) as streamer, streamer.begin(each.copies) as request:
        first, second = request.acquire(), request.acquire()
        with pytest.raises(strata.StrataError, match="entry 1 cannot be released before entry 0"):
            second.release()
        assert request.consumed == 0
        first.release()
        with pytest.raises(strata.StrataError, match=r"slot 0 \(entry 0\) was released before"):
            first.release()
        for use in (first.synchronize, first.array):
            with pytest.raises(strata.StrataError, match=r"slot 0 \(entry 0\) was released before"):
                use()
        second.release()
        assert request.consumed == 2
        assert request.counters.used_records == 2
        # A slot of another generation: entry 4 lies in slot 0 again.
        request.skip(2)
        again = request.acquire()
        assert (again.entry, again.slot) == (4, 0)
        with pytest.raises(strata.StrataError, match="released before"):
            first.release()
        again.release()
        request.skip()


def test_what_a_slot_says_of_itself_outlives_its_release() -> None:
    each = material("d" * 2, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=2) as streamer:
        with streamer.begin(each.copies) as request:
            slots = []
            for slot in request:
                assert "held" in repr(slot)
                slots.append((slot, slot.entry, slot.slot, slot.address, slot.nbytes))
        for slot, *words in slots:
            assert [slot.entry, slot.slot, slot.address, slot.nbytes] == words
            assert "released" in repr(slot)


def test_a_slot_may_be_released_in_the_loop() -> None:
    each = material("d" * 10, NBYTES)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=3) as streamer, streamer.begin(each.copies) as request:
        for slot in request:
            reader.read(slot, streamer.compute_stream)
            if slot.entry % 2:
                slot.release()
                assert request.consumed == slot.entry + 1
            else:
                assert request.consumed == slot.entry
    assert reader.wrong(each, closed=True) == 0
    assert request.counters.used_records == 10


def test_finish_releases_the_loops_last_slot() -> None:
    each = material("d" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=3) as streamer:
        request = streamer.begin(each.copies)
        for slot in request:
            if slot.entry == 2:
                break
        request.finish()
        assert request.consumed == 3
        assert request.counters.used_records == 3


@pytest.mark.parametrize("kinds", ["d" * 20, "s" * 20, "dsS" * 6 + "zd"])
@pytest.mark.parametrize("batches", [(1, 1, 1), (4, 3, 3)], ids=str)
def test_skipped_entries_cost_no_wait_and_are_issued_all_the_same(kinds: str, batches) -> None:
    settings = strata.BatchSettings(*batches)
    each = material(kinds, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=5, host_ring=3, settings=settings) as streamer:
        for skipped in ([], [0], [19], [3, 4, 5, 6, 7, 8, 9], range(20), range(0, 20, 2), range(1, 20, 3)):
            counters = stream_all(streamer, each, skipped)
            assert counters.skipped == len(skipped)
            assert counters.copied_waits == 20 - len(skipped)
            assert counters.used_records == 20
            assert counters.direct_copies + counters.staged_copies == 20


def test_skip_takes_a_number() -> None:
    each = material("d" * 9, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=3) as streamer, streamer.begin(each.copies) as request:
        request.skip(0)
        assert request.consumed == 0
        request.skip(5)  # more than the ring has
        assert request.consumed == 5
        request.skip()
        with pytest.raises(IndexError, match="entry 9 is past the end"):
            request.skip(4)
        assert request.consumed == 6  # nothing was skipped
        request.skip(3)
    assert request.counters.skipped == 9


def test_skips_behind_a_held_slot_advance_with_its_release() -> None:
    each = material("d" * 12, NBYTES)
    reader = Reader(len(each), NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6) as streamer:
        with streamer.begin(each.copies) as request:
            first = request.acquire()
            request.skip(2)
            fourth = request.acquire()
            request.skip()
            assert fourth.entry == 3
            assert request.consumed == 0
            assert request.counters.used_records == 0
            with pytest.raises(strata.StrataError, match="entry 3 cannot be released before entry 0"):
                fourth.release()
            reader.read(first, streamer.compute_stream)
            first.release()
            assert request.consumed == 3  # with the two behind it
            reader.read(fourth, streamer.compute_stream)
            fourth.release()
            assert request.consumed == 5
            read_rest(request, reader, streamer.compute_stream)
    assert reader.wrong(each, closed=True) == 0
    assert request.counters.skipped == 3
    assert request.counters.copied_waits == 9
    assert request.counters.used_records == 12


def test_held_slots_keep_their_bytes_while_the_ring_turns_behind_them() -> None:
    each = material("dds" * 8, NBYTES)
    settings = strata.BatchSettings(2, 2, 2)
    with strata.ExpertStreamer(NBYTES, gpu_ring=6, host_ring=2, settings=settings) as streamer:
        with streamer.begin(each.copies) as request:
            held = []
            for _ in range(len(each)):
                held.append(request.acquire())
                if len(held) == streamer.max_held:
                    for slot in held:
                        slot.synchronize()
                        assert each.wrong(slot.entry, slot.array()) == 0
                    held.pop(0).release()
            for slot in held:
                slot.release()


def test_a_request_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError, match=r"ExpertStreamer.begin"):
        strata.Request()
    with pytest.raises(TypeError, match=r"Request.acquire"):
        strata.Slot()
