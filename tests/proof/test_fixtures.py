"""The fixtures of the self-test: they pass under every schedule, and fail where they should."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import strata
from strata import _hip, pinned_empty
from strata.errors import StrataError
from strata.settings import BatchSettings
from strata.tools.selftest import (
    FIXTURES,
    SCHEDULES,
    Bench,
    Outcome,
    copy_groups,
    held_terminal,
    holds,
    ownership,
    run_fixtures,
    spans,
    transitions,
)
from strata.tools.selftest import bench as bench_module
from strata.tools.selftest.oracle import Consumption, Oracle
from strata.tools.selftest.outcome import TooManyFailures

SEED = 20
TWO_QUICK = [name if name in ("eager", "random") else pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES]


def _run(fixture: str, schedule: str = "eager", **options: Any) -> Outcome:
    (outcome,) = run_fixtures(Bench(schedule=schedule, seed=SEED, quick=True, **options), [fixture])
    return outcome


def _taken_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fixtures take the software runtime for one that cannot be asked for help."""
    monkeypatch.setattr(bench_module.runtime, "ensure", lambda: "rocm")
    monkeypatch.setattr(holds, "BALLAST_BYTES", 8 * 1024 * 1024)


def _left(software: Any) -> dict[str, int]:
    """What is alive, without the runtime's threads: those end a moment later."""
    return {key: number for key, number in software.live().items() if key in bench_module._LEAKS}


@pytest.mark.parametrize(("fixture", "schedule", "share"), [
    *((fixture, schedule, False) for fixture in FIXTURES for schedule in SCHEDULES),
    *(pytest.param(fixture, schedule, True, marks=[] if schedule == "lazy" else pytest.mark.slow)
      for fixture in ("copy groups", "held terminal", "transitions", "aborts") for schedule in SCHEDULES),
])
def test_passes(fixture: str, schedule: str, share: bool, software: Any) -> None:
    outcome = _run(fixture, schedule, share=share)
    assert outcome.texts == []
    assert outcome.ok
    assert outcome.cases > 0
    assert outcome.generations >= outcome.cases
    assert outcome.fence_errors == 0
    assert outcome.findings == 0
    assert outcome.accesses is not None
    assert outcome.accesses > 0
    assert outcome.bytes_checked > 0
    assert outcome.left_out == []


def test_configuration_and_announcements_are_put_back(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = software.configuration()
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(_hip, "set_announcements", lambda *hooks: given.append(hooks))
    _run("held terminal", "lazy")
    assert software.configuration() == before
    assert all(given[0])
    assert given[1] == (0, 0, 0, 0, 0)


def test_number_of_cases() -> None:
    per_stager = {len(ownership._cases(jobs, batch, ring)) for ring, batch, jobs in ownership._configurations(False)}
    assert len(list(ownership._configurations(False))) * min(per_stager) >= 1020
    groups = list(copy_groups._configurations(False))
    assert 2 * sum(not c.pageable for c in groups) >= 216
    assert len(set(groups)) == len(groups)
    assert any(c.pageable for c in groups)


def test_values_of_the_cases() -> None:
    """One more and one less than a turn, a ring that no batch divides, two turns and one: what a count hides."""
    assert set(ownership._configurations(False)) == set(itertools.product(
        (16, 17), (1, 2, 4, 8, 16), (1, 15, 16, 17, 31, 32, 33, 65)))
    groups = list(copy_groups._configurations(False))
    assert {(c.gpu_ring, c.host_ring, c.batch) for c in groups} == set(itertools.product(
        (8, 17, 32), (16, 17), (1, 2, 8)))
    assert {(c.kind, c.skipping, c.pageable) for c in groups} == {
        *itertools.product(("direct", "staged", "mixed"), (False, True), [()]),
        *itertools.product(("staged", "mixed"), (False, True), [(2, 3, 9, 15)])}
    assert {(c.gpu_ring, c.batches, c.kind) for c in transitions._configurations(False)} == set(itertools.product(
        (8, 17), ((1, 1, 1), (4, 4, 4), (8, 16, 16)), ("direct", "staged", "mixed")))
    assert {(c.gpu_ring, c.batches, c.kind, c.share) for c in spans._configurations(False)} == set(itertools.product(
        (7, 12), ((1, 1, 1), (4, 3, 2), (8, 5, 5)), ("direct", "staged", "mixed"), (False, True)))


def test_nothing_tried_is_nothing_shown() -> None:
    outcome = Outcome("a fixture", "eager")
    assert not outcome.ok
    outcome.end_case("a case", [])
    assert outcome.ok
    outcome.end_case("another", ["a problem"])
    assert not outcome.ok


def test_buffers_are_forced_pageable_on_a_device(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """strata's own allocation refuses them: the library is not asked, and nothing is left to refuse afterwards."""
    _taken_for_a_device(monkeypatch)
    monkeypatch.setattr(bench_module.control, "inject", None)
    counted = []
    note = Outcome.note
    monkeypatch.setattr(Outcome, "note", lambda self, counters: (
        counted.append(counters.pageable_buffers), note(self, counters))[1])
    (outcome,) = run_fixtures(Bench(seed=SEED, quick=True), ["copy groups"])
    assert outcome.ok, outcome.texts
    assert 4 in counted
    assert set(counted) == {0, 4}
    assert not any("pageable" in text for text in outcome.left_out)
    before = software.live()["pinned_allocations"]
    kept = [pinned_empty(64, "u1") for _ in range(64)]
    assert software.live()["pinned_allocations"] == before + len(kept)


def test_what_a_device_leaves_out(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for a device, the same runtime runs everything but the parts that need its help, and says so."""
    before = _left(software)
    _taken_for_a_device(monkeypatch)
    outcomes = {o.fixture: o for o in run_fixtures(Bench(seed=SEED, quick=True))}
    assert all(o.ok for o in outcomes.values()), [o.texts for o in outcomes.values()]
    assert all(o.schedule == "device" and o.findings is None for o in outcomes.values())
    assert outcomes["held terminal"].bytes_checked > 0
    assert any("log of calls" in text for text in outcomes["held terminal"].left_out)
    assert outcomes["copy groups"].left_out == ["happens-before checker: a real device does not tell what it orders"]
    assert any("compute stream" in text for text in outcomes["transitions"].left_out)
    assert any("checker" in text for text in outcomes["ownership"].left_out)
    assert _left(software) == before


def test_copies_that_pass_the_held_terminal_of_a_device(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No latch, no checker, no log: the fixture itself sees it, while the compute stream is busy."""
    _taken_for_a_device(monkeypatch)
    monkeypatch.setattr(held_terminal, "_BUSY_S", (1.0,))  # the one request with the fault must not be tried again
    monkeypatch.setattr(held_terminal, "_configurations",
                        lambda quick: iter([held_terminal._Configuration(8, 4, staged) for staged in (False, True)]))
    software.inject("hipStreamWaitEvent", 1, action="ignore", thread="strata-issuer")
    outcome = _run("held terminal")
    assert outcome.failures == 1
    assert any(text in outcome.texts[0] for text in ("went past the wait", "no longer holds entry"))


def test_a_device_that_is_not_kept_busy_long_enough(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing was shown, and the fixture says that rather than that all is well."""
    _taken_for_a_device(monkeypatch)
    monkeypatch.setattr(holds, "_MOST", 1)
    monkeypatch.setattr(holds.Busy, "lasts", lambda self: False)
    outcome = _run("held terminal")
    assert outcome.failures == outcome.cases > 0
    assert outcome.generations == 4 * outcome.cases
    assert outcome.texts[0].endswith("the compute stream went on before everything was looked at: 1 s were wanted")


def test_transitions_of_a_device_that_was_never_kept_busy(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _taken_for_a_device(monkeypatch)
    monkeypatch.setattr(holds.Busy, "lasts", lambda self: False)
    outcome = _run("transitions")
    assert outcome.failures == 1
    assert outcome.texts[0].startswith("the compute stream was hardly ever held back for long enough: 0 of ")


@pytest.mark.parametrize(("call", "nth"), [("hipMalloc", 2), ("hipMemsetAsync", 1)])
def test_what_cannot_keep_a_device_busy_is_a_failure(
    call: str, nth: int, software: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the fixture that needs it, and nothing stays behind."""
    _taken_for_a_device(monkeypatch)
    before = _left(software)
    injection = software.inject(call, nth, status=719)  # of hipMalloc, the first is the streamer's
    outcome = _run("held terminal")
    assert injection.fired
    assert f"{call} failed with hipErrorLaunchFailure" in " ".join(outcome.texts)
    assert _left(software) == before
    assert _run("held terminal").ok


def test_memory_that_a_device_does_not_take_back(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before that is not lost."""
    _taken_for_a_device(monkeypatch)
    close = holds.Ballast.close

    def fails(self: holds.Ballast) -> None:
        close(self)
        raise StrataError("no")

    monkeypatch.setattr(holds.Ballast, "close", fails)
    outcome = _run("held terminal")
    assert outcome.cases > 0
    assert outcome.failures == 1
    assert "StrataError: no" in outcome.texts[0]


def test_what_keeps_a_device_busy(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts for about as long as was asked for, ends by itself, and leaves nothing behind."""
    monkeypatch.setattr(holds, "BALLAST_BYTES", 1024 * 1024)
    before = _left(software)
    stream = _hip.create_stream()
    ballast = holds.Ballast()
    latch = software.hold(stream)
    queued = [software.calls()["hipMemsetAsync"]]
    for seconds in (1e-9, 0.05, 1e9):
        busy = ballast.put(stream, seconds)
        queued.append(software.calls()["hipMemsetAsync"])
        assert busy.lasts()
        if seconds < 1:
            busy.release()
    assert queued[1] == queued[0] + 1
    assert queued[1] < queued[2] <= queued[3] - 512
    latch.release()
    _hip.synchronize_stream(stream)
    assert not busy.lasts()
    busy.release()
    busy.release()  # once is enough
    ballast.close()
    _hip.destroy_stream(stream)
    assert _left(software) == before


# --- where they must fail ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("counter", ["direct_copied_records", "staged_reuse_waits", "dma_done_records", "used_records"])
def test_wrong_count_in_copy_groups(counter: str, software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Oracle.counts

    def one_more(self: Oracle, *args: Any) -> dict[str, int]:
        counts = count(self, *args)
        return {**counts, counter: counts[counter] + 1}

    monkeypatch.setattr(Oracle, "counts", one_more)
    some = list(copy_groups._configurations(True))[::8]
    monkeypatch.setattr(copy_groups, "_configurations", lambda quick: iter(some))
    outcome = _run("copy groups")
    assert outcome.failures == outcome.cases > 1
    assert counter in outcome.texts[0]


def test_wrong_groups(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that does not cut at the ring's wrap is not believed by the streamer."""
    monkeypatch.setattr(bench_module, "DEADLINE_S", 0.3)
    monkeypatch.setattr(Oracle, "_admits", lambda self, members, jobs, staged, entry, kind, job: kind is staged)
    outcome = _run("copy groups")
    assert outcome.failures >= 5
    assert any("entries published with" in text for text in outcome.texts)
    assert "gave up" in outcome.texts[-1]


def test_wrong_plan(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's own arrays are looked at, too."""
    plan = copy_groups.CopyPlan

    def other_plan(*args: Any, settings: BatchSettings, **options: Any) -> Any:
        return plan(*args, settings=BatchSettings(3, 3, 3), **options)

    monkeypatch.setattr(copy_groups, "CopyPlan", other_plan)
    outcome = _run("copy groups")
    assert outcome.failures == outcome.cases
    assert "copy group ends at" in " ".join(outcome.texts)


def test_late_window(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More entries published than may be are found: here all that will be are waited for, and fewer allowed."""
    settled = copy_groups.settles
    published = Oracle.published

    def wait_for_the_truth(read: Callable[[], int], wanted: int, what: str) -> None:
        settled(read, wanted + 1, what)

    monkeypatch.setattr(Oracle, "published", lambda self, groups, consumed: published(self, groups, consumed) - 1)
    monkeypatch.setattr(copy_groups, "settles", wait_for_the_truth)
    outcome = _run("copy groups")
    assert outcome.failures == outcome.cases
    assert all("at most" in text for text in outcome.texts)


def test_wrong_fences(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "fences", lambda submitted, groups: 0)
    outcome = _run("ownership")
    assert 0 < outcome.failures < outcome.cases
    assert "fences is 1, expected 0" in outcome.texts[0]


@pytest.fixture
def one_ownership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_configurations", lambda quick: iter([(16, 4, 33)]))


@pytest.mark.parametrize("schedule", TWO_QUICK)
def test_ignored_wait_for_a_host_buffer(schedule: str, software: Any, one_ownership: None) -> None:
    """The first event that is waited for is that of job 0's ownership group, by the worker of job 16 to 19."""
    injection = software.inject("hipEventSynchronize", 1, action="ignore")
    outcome = _run("ownership", schedule)
    assert injection.fired
    assert outcome.failures > 0


@pytest.mark.parametrize("schedule", TWO_QUICK)
def test_ignored_dma_done(schedule: str, software: Any, one_ownership: None) -> None:
    injection = software.inject("hipEventRecord", 1, action="ignore")
    outcome = _run("ownership", schedule)
    assert injection.fired
    assert outcome.failures > 0


@pytest.mark.parametrize("schedule", TWO_QUICK)
def test_ignored_copy(schedule: str, software: Any, one_ownership: None) -> None:
    injection = software.inject("hipMemcpyAsync", 20, action="ignore")
    outcome = _run("ownership", schedule)
    assert injection.fired
    assert "job 19: 65" in " ".join(outcome.texts)


@pytest.mark.parametrize("schedule", TWO_QUICK)
def test_ignored_reuse_wait(schedule: str, software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the waits of the four entries acquired first, the reuse wait of the second turn's first group."""
    monkeypatch.setattr(held_terminal, "_configurations",
                        lambda quick: iter([held_terminal._Configuration(8, 4, False)]))
    injection = software.inject("hipStreamWaitEvent", 1, action="ignore", thread="strata-issuer")
    outcome = _run("held terminal", schedule)
    assert injection.fired
    assert outcome.failures > 0
    assert "happens-before" in " ".join(outcome.texts)


@pytest.mark.parametrize("schedule", ["lazy", "copies-first", "random"])
def test_copies_that_pass_the_held_terminal(schedule: str, software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, as the fixture itself sees it: the stream went on and the old bytes are gone."""
    monkeypatch.setattr(held_terminal, "_configurations",
                        lambda quick: iter([held_terminal._Configuration(8, 4, False)]))
    software.inject("hipStreamWaitEvent", 1, action="ignore", thread="strata-issuer")
    outcome = _run("held terminal", schedule)
    assert "went past the wait" in " ".join(outcome.texts)


@pytest.mark.parametrize("schedule", TWO_QUICK)
@pytest.mark.parametrize("call", ["hipEventRecord", "hipStreamWaitEvent"])
@pytest.mark.parametrize(("play", "fences_before"), [("another compute stream", 0), ("lent slots", 1)])
def test_ignored_begin_fence(
    play: str, fences_before: int, call: str, schedule: str, software: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The begin fence of the second request; each acquire of the first was one wait, each release one record."""
    monkeypatch.setattr(transitions, "_configurations",
                        lambda quick: iter([transitions.Configuration(8, (4, 4, 4), "direct")]))
    monkeypatch.setattr(transitions, "_PLAYS", {play: transitions._PLAYS[play]})
    entries = 2 * 8 + 8 // 2 + 1
    software.thread_role("engine")
    try:
        injection = software.inject(call, fences_before + entries + 1, action="ignore", thread="engine")
        outcome = _run("transitions", schedule)
    finally:
        software.thread_role(None)
    assert injection.fired
    assert outcome.failures > 0
    assert "happens-before" in " ".join(outcome.texts)


@pytest.fixture
def few_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_configurations",
                        lambda quick: iter([spans._Configuration(7, (8, 5, 5), "direct", True)]))


@pytest.mark.parametrize("call", ["hipEventRecord", "hipStreamWaitEvent"])
def test_ignored_dependencies_of_spans(call: str, software: Any, few_spans: None) -> None:
    """The engine's: shared `used` records, of which nobody may ask for one or the other, and spans' waits."""
    found = 0
    software.thread_role("engine")
    try:
        for nth in range(1, 9):
            injection = software.inject(call, nth, action="ignore", thread="engine")
            outcome = _run("spans", "copies-first" if call == "hipEventRecord" else "compute-first")
            assert injection.fired
            software.clear_injections()
            found += "happens-before" in " ".join(outcome.texts)
    finally:
        software.thread_role(None)
    assert found >= 3


@pytest.mark.parametrize(("what", "wrong", "batches", "text"), [
    ("span_end", lambda self, begin, end: end, (4, 3, 2), "the span is"),
    ("asked", lambda self, entry: None, (8, 5, 5), "the span is"),
])
def test_wrong_spans(what: str, wrong: Callable[..., Any], batches: tuple[int, int, int], text: str, software: Any,
                     monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that cuts no span, or forgets what is pending, is not believed."""
    kind = "mixed" if what == "span_end" else "direct"
    monkeypatch.setattr(spans, "_configurations",
                        lambda quick: iter([spans._Configuration(7, batches, kind, True)]))
    monkeypatch.setattr(Consumption, what, wrong)
    outcome = _run("spans")
    assert outcome.failures > 0
    assert text in " ".join(outcome.texts)


def test_what_was_shared_counts_as_asked_for(software: Any) -> None:
    counters = strata.Counters(copied_waits=3, copied_waits_shared=2, used_records=4)
    expected = {"copied_waits": 5, "used_records": 4}
    assert Bench(share=True).differences(counters, expected) == []
    assert Bench().differences(counters, expected) == ["copied_waits is 3, expected 5"]


def test_error_in_a_case(software: Any) -> None:
    """A call that fails is the failure of its case; the others go on."""
    injection = software.inject("hipMemcpyAsync", 30, 719)
    outcome = _run("transitions")
    assert injection.fired
    assert "hipMemcpyAsync failed with hipErrorLaunchFailure" in " ".join(outcome.texts)
    assert outcome.cases == len(transitions._PLAYS) * len(list(transitions._configurations(True)))


def test_gives_up_where_nothing_works(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Iterator[None]:
        raise MemoryError("none left")

    monkeypatch.setattr(ownership._Engine, "serve", refuse)
    outcome = _run("ownership")
    assert outcome.cases == 4  # of one stager each
    assert "MemoryError: none left" in outcome.texts[0]
    assert "gave up" in outcome.texts[-1]


def test_fixture_that_breaks_off(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bench: Bench, outcome: Outcome) -> None:
        raise RuntimeError("a mistake of the fixture's")

    monkeypatch.setitem(FIXTURES, "ownership", broken)
    outcome = _run("ownership")
    assert not outcome.ok
    assert "a mistake of the fixture's" in outcome.texts[0]


def test_fixture_that_does_nothing(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIXTURES, "ownership", lambda bench, outcome: None)
    outcome = _run("ownership")
    assert not outcome.ok
    assert "seen no access" in outcome.texts[0]


def test_leak(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def leaky(bench: Bench, outcome: Outcome) -> None:
        made.append(_hip.create_event())
        FIXTURES["held terminal"](bench, outcome)

    monkeypatch.setitem(FIXTURES, "ownership", leaky)
    outcome = _run("ownership")
    _hip.destroy_event(made[0])
    assert outcome.texts == ["left behind: events are 1, were 0"]


def test_work_left_pending(software: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule cannot be put back then; the outcome is not lost over it."""
    stream = _hip.create_stream()
    latches = []
    monkeypatch.setitem(FIXTURES, "ownership", lambda bench, outcome: latches.append(software.hold(stream)))
    outcome = _run("ownership", "lazy")
    latches[0].release()
    _hip.synchronize_stream(stream)
    _hip.destroy_stream(stream)
    assert "cannot be put back" in outcome.texts[-1]
    assert "pending" in outcome.texts[-1]


def test_outcome_travels_as_json() -> None:
    outcome = Outcome("ownership", "lazy", seed=3, left_out=["this"])
    outcome.end_case("first", [])
    outcome.end_case("second", ["broken", "twice"])
    assert Outcome.from_dict(outcome.as_dict()) == outcome
    assert outcome.as_dict()["ok"] is False
    assert outcome.texts == ["second: broken (and 1 more)"]
    for _ in range(100):
        outcome.fail("again")
    assert (outcome.failures, len(outcome.texts)) == (101, 20)


def test_errors_end_a_fixture() -> None:
    outcome = Outcome("ownership", "lazy")
    for _ in range(3):
        outcome.end_case("a case", ["an error"], error=True)
    with pytest.raises(TooManyFailures, match="4 cases"):
        outcome.end_case("a case", ["an error"], error=True)
