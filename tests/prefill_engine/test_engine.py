"""Walks, the cache and its borrowed slots, and ends that are not orderly."""

from __future__ import annotations

import numpy as np
import pytest

from examples.prefill_engine import engine as engine_module
from examples.prefill_engine.engine import Engine, prompt
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.result import PrefillResult
from examples.prefill_engine.walks import chosen_walk, expected_routed_share


def as_they_were(engine) -> bool:
    return engine.cache.wrong_slots() == ([], [])


def test_the_cache_holds_its_experts_before_and_after(make_engine, schedule) -> None:
    engine = make_engine()
    assert as_they_were(engine)
    ids = prompt(engine.model, 40)
    prints = set()
    for walk in ("all", "routed", "all"):
        outcome = engine.prefill(ids, walk)
        prints.add(outcome.fingerprint())
        assert as_they_were(engine)
        assert outcome.refill_counters.direct_copies + outcome.refill_counters.staged_copies == 8
    assert len(prints) == 1


def test_reading_back_sees_a_single_byte(make_engine) -> None:
    engine = make_engine()
    for slot, wanted in ((1, ([1], [])), (9, ([], [9]))):
        values = engine.backend.slots(slot, 1)[0].view(np.uint8)
        values[77] ^= 1
        assert engine.cache.wrong_slots() == wanted
        values[77] ^= 1
    assert as_they_were(engine)


def test_the_walk_of_all_lists_all_absent_experts_by_spans_and_drops_what_is_not_routed(make_engine) -> None:
    engine = make_engine(short_below=0, chunk=20)
    outcome = engine.prefill(prompt(engine.model, 40), "all")
    c = outcome.counters
    absent = 4 * 16 - 4  # the cache retains 12 - 8
    unrouted = 2 * absent - wanted_entries(engine, outcome)
    assert unrouted > 0
    assert c.direct_copies + c.staged_copies + c.dropped == 2 * absent
    assert c.direct_bytes + c.staged_bytes + c.dropped_bytes == 2 * absent * engine.model.expert_bytes
    assert c.dropped + c.dropped_late == unrouted
    assert c.skipped == 0
    # One wait and one record a span: at most half of the ring of 8, so a layer takes 4 to 15 of them.
    assert 2 * absent / 4 <= c.copied_waits == c.used_records < 2 * absent
    assert c.direct_copies > 0
    assert c.staged_copies > 0
    assert c.direct_copied_records < c.direct_copies


def test_the_walk_of_the_routed_streams_only_those(make_engine) -> None:
    engine = make_engine(short_below=0, chunk=20)
    outcome = engine.prefill(prompt(engine.model, 40), "routed")
    c = outcome.counters
    assert c.direct_copies + c.staged_copies == wanted_entries(engine, outcome) < 2 * 60
    assert c.skipped == c.dropped == 0


def wanted_entries(engine: Engine, outcome: PrefillResult) -> int:
    """Absent experts that some token of a chunk of 20 takes, over layers and chunks."""
    return sum(int(engine.cache.slot_of[layer, e] < 0) for layer, routing in enumerate(outcome.routing)
               for chunk in (routing.chosen[:20], routing.chosen[20:]) for e in np.unique(chunk))


def test_the_walk_is_chosen_by_the_expected_routed_share(make_engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens, share in ((0, 0.0), (1, 10 / 512), (35, 0.499), (36, 0.508), (4205, 1.0)):
        assert expected_routed_share(tokens, 10, 512) == pytest.approx(share, abs=1e-3)
        assert chosen_walk(tokens, 10, 512) == ("all" if share >= 0.5 else "routed")
    assert [chosen_walk(n, 16, 16) for n in (0, 1)] == ["routed", "all"]
    # The formula against the routing that it speaks of: each token takes any k of E.
    rng = np.random.default_rng(4)
    seen = [len({int(e) for _ in range(30) for e in rng.choice(16, 2, replace=False)}) / 16 for _ in range(300)]
    assert np.mean(seen) == pytest.approx(expected_routed_share(30, 2, 16), abs=0.01)
    opened = []
    for name in ("AllExperts", "RoutedExperts"):
        made = getattr(engine_module, name)
        monkeypatch.setattr(engine_module, name, lambda *a, made=made, name=name, **k: opened.append(name) or made(*a, **k))
    engine = make_engine(short_below=0, chunk=16)  # 0.88 of the experts; the last chunk's 2 tokens take 0.23 of them
    prints = {walk: engine.prefill(prompt(engine.model, 34), walk).fingerprint() for walk in ("auto", "all", "routed")}
    assert opened[:3] == ["AllExperts", "AllExperts", "RoutedExperts"]
    assert len(set(prints.values())) == 1


def test_a_short_chunk_runs_at_one_dependency_an_entry(make_engine) -> None:
    engine = make_engine(short_below=1000)
    c = engine.prefill(prompt(engine.model, 40), "all").counters
    assert c.direct_copied_records == c.direct_copies > 0
    assert c.staged_copied_records == c.dma_done_records == c.staged_copies > 0
    assert c.skipped == 0  # the short path streams routed experts only
    grouped = make_engine(short_below=0).prefill(prompt(engine.model, 40), "routed").counters
    assert grouped.direct_copies == c.direct_copies
    assert grouped.direct_copied_records < c.direct_copied_records
    assert grouped.staged_copied_records < c.staged_copied_records


def test_resident_experts_are_used_where_they_lie(make_engine) -> None:
    used: list[tuple[int, int, int]] = []
    engine = make_engine(tap=lambda backend, layer, expert, slot: used.append((layer, expert, slot)))
    engine.prefill(prompt(engine.model, 40))
    retained = {(layer, expert): slot for slot, (layer, expert) in enumerate(engine.cache.content[:4])}
    hits = [(layer, expert, slot) for layer, expert, slot in used if (layer, expert) in retained]
    assert hits
    assert all(slot == retained[layer, expert] for layer, expert, slot in hits)
    assert all(slot >= 4 for layer, expert, slot in used if (layer, expert) not in retained)


@pytest.mark.parametrize("sizes", [
    {"gpu_ring": 12}, {"gpu_ring": 1, "cache_slots": 1}, {"cache_slots": 64, "gpu_ring": 16},
    {"pinned_share": 0.0}, {"pinned_share": 1.0}, {"host_ring": 1}, {"workers": 3}])
def test_other_sizes_compute_the_same(make_engine, sizes: dict) -> None:
    ids = prompt(make_engine().model, 40)
    reference = make_engine((1, 1, 1)).prefill(ids).fingerprint()
    engine = make_engine(**sizes)
    for walk in ("all", "routed"):
        assert engine.prefill(ids, walk).fingerprint() == reference
    assert as_they_were(engine)


@pytest.mark.parametrize(("ids", "walk", "words"), [
    ([], "all", "0 tokens"), ([1] * 15, "all", "has 15 tokens and a chunk 16"), ([1] * 20 + [64], "all", "64"),
    ([-1] * 20, "routed", "-1"), ([1] * 20, "some", "walk is 'some'")])
def test_bad_prompts_leave_everything_as_it_was(make_engine, ids: list[int], walk: str, words: str) -> None:
    engine = make_engine()
    before = engine.prefill(prompt(engine.model, 40)).fingerprint()
    counters = engine._streamer.counters
    with pytest.raises(InputError, match=words):
        engine.prefill(np.array(ids, np.int64), walk)
    assert engine._streamer.counters == counters
    assert as_they_were(engine)
    assert engine.prefill(prompt(engine.model, 40)).fingerprint() == before


@pytest.mark.parametrize(("sizes", "words"), [
    ({"gpu_ring": 13}, "gpu_ring is 13.*cache_slots is 12"), ({"cache_slots": 65}, "cache_slots is 65"),
    ({"cache_slots": 0}, "cache_slots is 0")])
def test_caches_that_do_not_fit(make_engine, sizes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_engine(**sizes)


@pytest.mark.parametrize("walk", ["all", "routed"])
@pytest.mark.parametrize("where", ["engine", "stream"])
def test_after_an_exception_the_cache_is_whole_and_the_next_prompt_right(make_engine, schedule, walk, where) -> None:
    calls = []

    def explode():
        raise ZeroDivisionError("planted")

    def tap(backend, layer, expert, slot):
        calls.append(layer)
        if len(calls) == 30:
            explode() if where == "engine" else backend.submit(explode)

    engine = make_engine(tap=tap)
    ids = prompt(engine.model, 40)
    with pytest.raises(ZeroDivisionError, match="planted"):
        engine.prefill(ids, walk)
    assert as_they_were(engine)
    calls[:] = [0] * 100
    assert engine.prefill(ids, walk).fingerprint() == make_engine((1, 1, 1)).prefill(ids, walk).fingerprint()
    assert as_they_were(engine)


def test_a_failed_copy_is_raised_and_the_next_prompt_is_right(make_engine, software) -> None:
    engine = make_engine()
    ids = prompt(engine.model, 40)
    right = engine.prefill(ids).fingerprint()
    software.inject("hipMemcpyAsync", nth=20, status=999)
    with pytest.raises(Exception, match="hipMemcpyAsync"):
        engine.prefill(ids)
    software.clear_injections()
    assert as_they_were(engine)
    assert engine.prefill(ids).fingerprint() == right
