"""The torch ring against a stand-in of torch: what is queued in which order, and what the engine computes with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import strata
from examples.prefill_engine import engine as engine_module
from examples.prefill_engine.arm import bench_arm
from examples.prefill_engine.checkpoint import Checkpoint
from examples.prefill_engine.config import config_from
from examples.prefill_engine.engine import Engine, prompt
from examples.prefill_engine.verify import compare, run_arm
from tests.prefill_engine import stand_in_torch

NBYTES = 64
RING = 2


@pytest.fixture
def ring_module(monkeypatch: pytest.MonkeyPatch, _nothing_left_alive: None) -> Iterator[Any]:
    """The module of the ring, over the stand-in."""
    name = "examples.prefill_engine.torch_ring"
    monkeypatch.setitem(sys.modules, "torch", stand_in_torch)
    monkeypatch.setattr(engine_module, "make_backend", stand_in_torch.StandInBackend)
    sys.modules.pop(name, None)
    stand_in_torch.log.clear()
    from examples.prefill_engine import torch_ring

    yield sys.modules.get(name, torch_ring)
    sys.modules.pop(name, None)


@pytest.fixture
def ring(ring_module: Any) -> Iterator[Any]:
    """A ring of two slots; its events have names."""
    backend = stand_in_torch.StandInBackend()
    backend.allocate_slots(RING, NBYTES)
    with ring_module.TorchRing([backend.slots(k, 1)[0] for k in range(RING)], backend.torch_stream) as ring:
        for kind, events in (("copied", ring._copied), ("used", ring._used)):
            for slot, event in enumerate(events):
                event.name = f"{kind} {slot}"
        ring.backend = backend
        yield ring
    ring.__dict__.clear()  # pytest keeps it longer than its stream may live
    backend.close()


def entries(*numbers: int, pinned: bool = True) -> strata.ExpertCopies:
    """Entries that are full of their number."""
    return strata.ExpertCopies.from_buffers([np.full(NBYTES, n, np.uint8) for n in numbers], pinned=pinned)


def logged() -> list[str]:
    """What was queued since the last look."""
    lines = list(stand_in_torch.log)
    stand_in_torch.log.clear()
    return lines


def copied_to(slot: int, entry: int, *, after_use: bool = True) -> list[str]:
    """What queues the copy of an entry."""
    waits = [f"copies wait for used {slot}"] if after_use else []
    return [*waits, f"copies copy {entry}", f"copies record copied {slot}"]


def test_copies_are_ahead_by_the_ring_and_wait_for_the_last_use(ring) -> None:
    with ring.begin(entries(0, 1, 2, 3, 4)) as request:
        first = [*copied_to(0, 0, after_use=False), *copied_to(1, 1, after_use=False)]
        assert logged() == ["copies wait for compute", *first]
        for entry in range(5):
            slot = request.acquire()
            assert slot.slot == entry % RING
            assert logged() == [f"compute wait for copied {entry % RING}"]
            slot.release()
            ahead = copied_to(entry % RING, entry + RING) if entry + RING < 5 else []
            assert logged() == [f"compute record used {entry % RING}", *ahead]
    assert logged() == ["copies synchronized"]


def test_a_skipped_entry_is_not_waited_for(ring) -> None:
    with ring.begin(entries(0, 1, 2, 3)) as request:
        logged()
        request.skip()
        assert logged() == copied_to(0, 2)
        request.acquire().release()
        assert logged() == ["compute wait for copied 1", "compute record used 1", *copied_to(1, 3)]
        request.skip(2)
        assert logged() == []
    c = request.counters
    assert (c.skipped, c.copied_waits, c.used_records) == (3, 1, 1)


def test_entries_appended_later_go_on_round_the_ring(ring) -> None:
    with ring.begin() as request:
        assert logged() == ["copies wait for compute"]
        request.extend(entries(0))
        assert logged() == copied_to(0, 0, after_use=False)
        held = request.acquire()
        logged()
        request.extend(entries(1, 2))
        assert logged() == copied_to(1, 1, after_use=False)  # slot 0 is held
        request.acquire().release()
        assert logged() == ["compute wait for copied 1", "compute record used 1"]
        held.release()
        held.release()
        assert logged() == ["compute record used 0", *copied_to(0, 2)]
        request.extend(entries(3))
        assert logged() == copied_to(1, 3)
        request.skip(2)


def test_what_cannot_be(ring) -> None:
    request = ring.begin(entries(0, 1, 2))
    with pytest.raises(strata.StrataError, match="still running"):
        ring.begin()
    held = [request.acquire(), request.acquire()]
    with pytest.raises(strata.StrataError, match="entry 2 waits for the release"):
        request.acquire()
    for slot in held:
        slot.release()
    request.skip()
    with pytest.raises(IndexError, match="all 3 entries"):
        request.skip()
    with pytest.raises(ValueError, match=r"copies\[1\] takes 65 bytes: a slot has 64"):
        request.extend(strata.ExpertCopies.from_buffers([np.zeros(64, np.uint8), np.zeros(65, np.uint8)], pinned=True))
    assert len(request) == 3
    request.finish()
    with pytest.raises(strata.RequestAborted, match="over"):
        request.acquire()
    request = ring.begin(entries(0))
    with pytest.raises(strata.StrataError, match="0 of 1 entries"):
        request.finish()
    ring.close()
    with pytest.raises(strata.StrataError, match="closed"):
        ring.begin()


def test_an_exception_waits_for_the_copies_and_queues_no_more(ring) -> None:
    with pytest.raises(ZeroDivisionError), ring.begin(entries(0, 1, 2)) as request:
        slot = request.acquire()
        logged()
        raise ZeroDivisionError
    assert logged() == ["copies synchronized"]
    slot.release()
    assert logged() == []
    with ring.begin(entries(7)) as request:
        assert logged() == ["copies wait for compute", *copied_to(0, 7, after_use=False)]
        request.skip()
    assert ring.counters.skipped == 1


def test_leaving_early_is_no_error(ring) -> None:
    with ring.begin(entries(0, 1, 2)):
        pass
    assert logged()[-1] == "copies synchronized"
    with ring.begin(entries(0)) as request:
        request.skip()


def test_counters(ring) -> None:
    parts = np.full(16, 9, np.uint8)
    staged = strata.ExpertCopies.from_buffers([[parts, parts[:0], parts]] * 3, pinned=False)
    with ring.begin(strata.ExpertCopies.concatenate([entries(0, 1), staged])) as request:
        for _ in range(5):
            request.acquire().release()
    found = request.counters
    assert found.matches({
        "direct_copies": 2, "direct_copy_calls": 2, "direct_bytes": 2 * NBYTES, "direct_copied_records": 2,
        "direct_reuse_waits": 0, "staged_copies": 3, "staged_copy_calls": 6, "staged_bytes": 96,
        "staged_copied_records": 3, "staged_reuse_waits": 3, "copied_waits": 5, "used_records": 5, "begin_waits": 1,
        "skipped": 0, "dma_done_records": 0}) == {}
    for name in ("submission_s", "dependency_calls_s", "wait_publication_s"):
        assert 0 < getattr(found, name) < found.wall_s
    assert ring.counters == found
    assert ring.settings == strata.BatchSettings(1, 1, 1)


def test_sources_are_kept_and_read_where_they_lie(ring, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    frombuffer = stand_in_torch.frombuffer
    monkeypatch.setattr(stand_in_torch, "frombuffer", lambda *given, **named: made.append(1) or frombuffer(
        *given, **named))
    sources = np.stack([np.full(NBYTES, n, np.uint8) for n in (0, 1, 2)])
    copies = strata.ExpertCopies.from_buffers(list(sources), pinned=True)
    for first in (0, 100):
        sources += first
        with ring.begin(copies) as request:
            request.skip(3)
        assert [line for line in logged() if "copy" in line] == [f"copies copy {first + n}" for n in range(3)]
    assert len(made) == 3
    del sources, copies
    # The array, kept once; beside it are the list's guards against a resize.
    assert [kept.shape for kept in ring._owners.values() if isinstance(kept, np.ndarray)] == [(3, NBYTES)]


@pytest.mark.parametrize("pinned", [True, False])
def test_the_kernel_finds_its_entry(ring, schedule, pinned: bool) -> None:
    """Segments apart in memory, at their offsets, round the ring: what the compute stream reads is right."""
    source = [np.full(NBYTES // 2, n, np.uint8) for n in range(24)]
    copies = strata.ExpertCopies.from_buffers([source[n:n + 2] for n in range(0, 24, 2)], pinned=pinned)
    read: list[tuple[int, int]] = []
    with ring.begin(copies) as request:
        for n in range(len(copies)):
            if n % 5 == 3:
                request.skip()
                continue
            slot = request.acquire()
            view = ring.backend.slots(slot.slot, 1)[0].view(np.uint8)
            ring.backend.submit(lambda view=view: read.append((set(view[:32].tolist()), set(view[32:].tolist()))))
            slot.release()
        ring.backend.synchronize()
    assert read == [({2 * n}, {2 * n + 1}) for n in range(12) if n % 5 != 3]


# --- the engine on it -------------------------------------------------------------------------------------------------


@pytest.fixture
def make_torch_engine(ring_module, checkpoint: Checkpoint) -> Iterator[Callable[..., Engine]]:
    """Return a function that makes an engine of the tiny shape on the stand-in."""
    made: list[Engine] = []

    def make(streamer: str = "torch-ring", **options: Any) -> Engine:
        run = config_from("tiny", **options.pop("sizes", {}))[1]
        made.append(Engine(checkpoint, run, strata.BatchSettings(), streamer=streamer, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    made.clear()


@pytest.mark.parametrize("walk", ["all", "routed"])
def test_the_engine_computes_the_same(make_torch_engine, schedule, walk: str) -> None:
    engine = make_torch_engine()
    ids = prompt(engine.model, 40)
    wanted = make_torch_engine("strata").prefill(ids, walk)
    stand_in_torch.log.clear()
    found = engine.prefill(ids, walk)
    assert any(line.startswith("copies copy") for line in stand_in_torch.log)
    assert found.fingerprint() == wanted.fingerprint()
    assert engine.cache.wrong_slots() == ([], [])
    sums = [(c.direct_copies + c.staged_copies + c.dropped, c.direct_bytes + c.staged_bytes + c.dropped_bytes, c.skipped)
            for c in (found.counters, wanted.counters)]  # how much of what was dropped was on its way is a matter of time
    assert sums[0] == sums[1]
    if walk == "routed":
        for name in ("direct_copies", "direct_bytes", "staged_copies", "staged_bytes"):
            assert getattr(found.counters, name) == getattr(wanted.counters, name) > 0
    else:
        assert found.counters.dropped > 0
    assert found.refill_counters.direct_copies + found.refill_counters.staged_copies == 8


@pytest.mark.parametrize("sizes", [{"gpu_ring": 1, "cache_slots": 1}, {"gpu_ring": 12}, {"pinned_share": 0.0}])
def test_other_rings(make_torch_engine, schedule, sizes: dict) -> None:
    engine = make_torch_engine(sizes=sizes)
    ids = prompt(engine.model, 40)
    assert engine.prefill(ids).fingerprint() == make_torch_engine("strata").prefill(ids).fingerprint()
    assert engine.cache.wrong_slots() == ([], [])


def test_after_an_exception_the_cache_is_whole_and_the_next_prompt_right(make_torch_engine, schedule) -> None:
    calls: list[int] = []

    def tap(backend, layer, expert, slot):
        calls.append(layer)
        if len(calls) == 30:
            raise ZeroDivisionError("planted")

    engine = make_torch_engine(tap=tap)
    ids = prompt(engine.model, 40)
    with pytest.raises(ZeroDivisionError, match="planted"):
        engine.prefill(ids)
    assert engine.cache.wrong_slots() == ([], [])
    assert engine.prefill(ids).fingerprint() == make_torch_engine("strata").prefill(ids).fingerprint()


def test_the_arm_has_the_name_and_the_fingerprint_is_that_of_strata(ring_module, tiny_path) -> None:
    arms = {streamer: bench_arm((1, 1, 1), 1, 1, streamer=streamer, shape="tiny", checkpoint=tiny_path)
            for streamer in ("strata", "torch-ring")}
    ring, strata_arm = arms["torch-ring"], arms["strata"]
    assert (strata_arm["arm"], ring["arm"]) == ([1, 1, 1], "torch-ring")
    for field in ("model", "seed", "run", "walk", "fingerprint"):
        assert ring[field] == strata_arm[field]
    json.dumps(ring)


def test_verify_against_the_ring(ring_module, checkpoint: Checkpoint) -> None:
    run = config_from("tiny")[1]
    control = run_arm(checkpoint, run, strata.BatchSettings(), ("all", "routed"))
    ring = run_arm(checkpoint, run, strata.BatchSettings(), ("all", "routed"), streamer="torch-ring")
    assert [line for line in compare(control, ring) if not line.equal] == []
