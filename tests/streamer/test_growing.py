"""A request that grows step by step: what was consumed costs nothing any more, neither time nor memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import strata
from strata.engine.core import chain_length
from tests.support.engine import Reader, read_rest
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

NBYTES = 96
RING = 4
STEPS = 1000
#: A chain is shortened once it has grown by so many commands; those of a host ring's last jobs stay. Where a worker has
#: not come to rest by then, it is the next step's turn: on a loaded machine that takes some steps more.
SHORT = 4 * (64 + 2 + 3)


@pytest.mark.parametrize("kinds", ["d", "s", "ds", "sdd", "e"])
@pytest.mark.parametrize("wait", [True, False], ids=["synchronized", "consumed"])
def test_the_chain_of_commands_stays_short(kinds: str, wait: bool) -> None:
    """As long as a step is done before the next is listed. Every byte is right, across every shortening."""
    each = material(kinds, NBYTES)
    settings = strata.BatchSettings(2, 2, 2)
    longest = 0
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=2, settings=settings) as streamer:
        with streamer.begin() as request:
            for _ in range(STEPS // len(kinds)):
                request.extend(each.copies)
                for entry in range(len(kinds)):
                    slot = request.acquire()
                    if wait:
                        assert each.wrong(entry, slot.array()) == 0
                    slot.release()
                longest = max(longest, chain_length(streamer._core))
            assert len(request) == request.consumed == STEPS // len(kinds) * len(kinds)
        assert longest <= (SHORT if wait else STEPS)
        assert request.counters.used_records == len(request)


def test_after_staged_steps_direct_ones_leave_nothing_behind() -> None:
    """Between commands that a host buffer's next job asks for, others go all the same."""
    steps = [material("s", NBYTES), material("d", NBYTES, seed=1), material("sds", NBYTES, seed=2)]
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=3) as streamer, streamer.begin() as request:
        for turn in range(900):
            each = steps[turn // 300 if turn % 150 else 2]
            request.extend(each.copies)
            for entry in range(len(each)):
                slot = request.acquire()
                assert each.wrong(entry, slot.array()) == 0
                slot.release()
            assert chain_length(streamer._core) <= SHORT + 3


def test_a_step_that_is_not_done_keeps_the_chain(hold) -> None:
    """Held slots, a copy that has not run, entries not taken: nothing of theirs goes."""
    each = material("d", NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin() as request:
        for _ in range(100):
            request.extend(each.copies)
        for _ in range(100):
            request.acquire().release()
        with hold(streamer.copy_stream):
            request.extend(each.copies)         # may shorten: all is done
            held = request.acquire()
            for _ in range(100):
                request.extend(each.copies)
            assert chain_length(streamer._core) >= 100
            assert request.consumed == 100
        held.release()
        request.skip(100)


def test_sources_of_steps_that_are_done_are_let_go() -> None:
    """And none before: a list lives as long as a copy may read from it."""
    alive: list[weakref.ref[strata.ExpertCopies]] = []
    row = strata.pinned_empty(NBYTES, np.uint8)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin() as request:
        for _ in range(STEPS):
            copies = strata.ExpertCopies.from_buffers([row])
            alive.append(weakref.ref(copies))
            request.extend(copies)
            del copies
            assert alive[-1]() is not None
            with request.acquire() as slot:
                slot.synchronize()
        gc.collect()
        assert sum(each() is not None for each in alive) <= SHORT


def test_letting_go_of_the_sources_may_end_the_request() -> None:
    row = strata.pinned_empty(NBYTES, np.uint8)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin()
        first = strata.ExpertCopies.from_buffers([row])
        weakref.finalize(first, request.abort)
        request.extend(first)
        del first
        with pytest.raises(strata.RequestAborted, match="it was aborted"):
            for _ in range(STEPS):
                with request.acquire() as slot:
                    slot.synchronize()
                request.extend(strata.ExpertCopies.from_buffers([row]))


@pytest.mark.parametrize("kinds", ["d", "s"])
def test_a_request_that_has_ended_keeps_no_plan(kinds: str) -> None:
    """16 bytes an entry, 24 of a staged one, would stay until the next request ends."""
    script = f"""
    import resource
    n = 4_000_000
    source = direct if {kinds!r} == "d" else staged
    copies = source.take(np.zeros(n, np.int64))
    def held():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with strata.ExpertStreamer(64, gpu_ring=8, host_ring=8) as streamer:
        before = held()
        request = streamer.begin(copies)
        request.cancel()
        try:
            request.acquire()
        except strata.RequestAborted:
            pass
        say((held() - before) // n)
    """
    assert ended_well(run_script(script)) == ["0"]


def test_extensions_behind_an_early_end() -> None:
    """The next request finds a chain that was shortened, and its own beginning."""
    each = material("dss", NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING, host_ring=2) as streamer:
        for end in ("finish", "abort", "finish"):
            request = streamer.begin()
            for _ in range(150):
                request.extend(each.copies)
                for entry in range(3):
                    with request.acquire() as slot:
                        assert each.wrong(entry, slot.array()) == 0
            getattr(request, end)()
            reader = Reader(3, NBYTES)
            with streamer.begin(each.copies) as following:
                read_rest(following, reader, streamer.compute_stream)
            assert reader.wrong(each) == 0


def test_a_step_of_direct_entries_asks_the_system_for_nothing(monkeypatch) -> None:
    """How much host memory there is matters once a host ring is made."""
    from strata.engine import request as engine

    asked = []
    monkeypatch.setattr(engine, "room", lambda: asked.append(1) or (2**40, "plenty"))
    direct, staged = material("dDz", NBYTES), material("ds", NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer, streamer.begin(direct.copies) as request:
        for each, times in ((direct, 0), (direct, 0), (staged, 1), (staged, 1), (direct, 1)):
            request.extend(each.copies)
            request.skip(len(request) - request.consumed)
            assert len(asked) == times
