"""Each dependency call is needed, or redundant for a reason: drop it, and see who notices.

The quick tests drop one call of each purpose and prediction in one configuration of each kind; the slow ones drop
every call of the whole suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import strata
from strata import _hip
from strata.runtime.software import checking, control
from tests.proof.prover import necessity, table
from tests.proof.prover.configuration import Configuration, Pass
from tests.proof.prover.contract import Call, play
from tests.proof.prover.logs import mismatch
from tests.proof.prover.order import Facts, Kind, Step, lost_orders, lost_without_each
from tests.proof.prover.predict import AVOIDED, REASONS, predict
from tests.proof.prover.run import Sources, run
from tests.proof.prover.suite import quick_suite, suite
from tests.proof.prover.trials import Trial, clean_run, trials

REPOSITORY = Path(__file__).resolve().parents[2]
PAIRS = strata.BatchSettings(2, 2, 2)


def one_of_each(configuration: Configuration) -> Callable[[Call], bool]:
    """Choose the first call of each purpose and prediction."""
    played = play(configuration)
    predictions = predict(configuration, played)
    chosen = {(c.purpose, p.lost, p.reason): c for c, p in reversed(list(zip(played.calls, predictions, strict=True)))}
    return lambda call: call in chosen.values()


@pytest.mark.parametrize("configuration", quick_suite(), ids=lambda c: c.kind)
def test_one_call_of_each_purpose(configuration: Configuration) -> None:
    results = list(trials(configuration, one_of_each(configuration)))
    assert necessity.faults(results) == []
    needed = [trial for trial in results if trial.prediction.needed]
    assert len(needed) >= 3
    assert all(trial.found == "order" for trial in needed)
    assert any(trial.wrong_bytes for trial in needed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_call() -> None:
    """Every dependency call of every configuration, dropped once. The whole page is left in ``build/``."""
    everything = [trial for configuration in suite() for trial in trials(configuration)]
    (REPOSITORY / "build").mkdir(exist_ok=True)
    (REPOSITORY / "build" / "necessity.md").write_text(table.NecessityReport(everything).markdown(), encoding="utf-8")
    assert necessity.faults(everything) == []
    assert sum(trial.missed for trial in everything) == 0
    # No configuration is tried in vain, and nothing in it is left out.
    for configuration in suite():
        results = [trial for trial in everything if trial.configuration == configuration]
        assert [trial.call for trial in results] == list(play(configuration).calls)
        assert sum(trial.prediction.needed for trial in results) >= 3, configuration.name
    # Nearly every loss is seen in the bytes, too, and every reason occurs.
    found = [trial for trial in everything if trial.found]
    assert sum(trial.wrong_bytes > 0 for trial in found) > 0.9 * len(found)
    assert {trial.prediction.reason for trial in everything if not trial.prediction.needed} == set(REASONS)
    _the_docs_have(everything)


def _the_docs_have(everything: list[Trial]) -> None:
    in_docs = (REPOSITORY / "docs" / "necessity.md").read_text(encoding="utf-8")
    for kind, configurations, tried, found, _, redundant, missed in table.by_kind(everything):
        row = f"| {kind} | {configurations} | {tried:,} | "
        if kind != "staged, two workers":  # which of them waits twice depends on the run
            row += f"{found:,} | "
        (line,) = [line for line in in_docs.splitlines() if line.startswith(row)]
        if kind != "staged, two workers":
            assert line.endswith(f" | {redundant:,} | {missed} |")
    assert f"{len(everything):,} calls tried" in in_docs
    assert "missed: 0\n" in in_docs


def test_each_call_alone_and_all_at_once_agree() -> None:
    steps = play(SMALL).steps
    each = lost_without_each(steps)
    assert len(each) > 30
    assert each == {call: lost_orders(steps, call) for call in each}


def test_every_kind_of_ring_and_batch_is_in_the_suite() -> None:
    kinds = Counter(c.kind for c in suite())
    for kind in ("staged, pinned buffers", "direct and staged mixed"):
        some = [c for c in suite() if c.kind == kind]
        assert {(c.gpu_ring, c.host_ring) for c in some} == {(4, 3), (4, 4), (8, 3), (8, 4)}
        assert {c.settings for c in some} == {strata.BatchSettings(), PAIRS, strata.BatchSettings(4, 3, 4)}
    plain = {kind for kind in kinds if not kind.startswith("shared: ")}
    assert plain | {"shared: direct and staged mixed", "shared: spans", "shared: slots held"} == {
        c.kind for c in quick_suite()}
    assert {f"shared: {kind}" for kind in plain if "stager alone" not in kind} == set(kinds) - plain
    assert any(command.name == "flush" for c in quick_suite() for command in play(c).script)


def test_what_stream_order_gives_is_not_asked_for_where_it_is_shared() -> None:
    plain = Configuration("k", 4, 3, PAIRS, (Pass(("dddsssssss",), held=1), Pass(("ddss",), stream=1), Pass(("dd",))))
    reasons = {p.reason for p in predict(plain, play(plain))}
    assert {"group's first wait", "covered", "same thread"} <= reasons & AVOIDED
    shared = replace(plain, share=True)
    assert not {p.reason for p in predict(shared, play(shared))} & AVOIDED
    with pytest.raises(RuntimeError, match="sharing should have avoided it"):
        predict(shared, play(plain))


# --- would the proof see a fault? ---------------------------------------------------------------------------------


SMALL = Configuration("small", 4, 3, PAIRS, (Pass(("ddddss",)), Pass(("dddss",))))


def dropped(call: Call, *, check: bool = True) -> Trial:
    """Ignore one call of the small configuration, under a schedule that hides a lost reuse wait from the bytes."""
    played = play(SMALL)
    outcome = run(SMALL, played, Sources(SMALL), schedule="compute-first", ignored=call, check=check)
    lost = frozenset((f.earlier.operation, f.later.operation) for f in outcome.findings)
    return Trial(SMALL, call, predict(SMALL, played)[call.number], outcome.found, outcome.wrong_bytes, lost)


def needed_reuse_wait() -> Call:
    played = play(SMALL)
    return next(c for c, p in zip(played.calls, predict(SMALL, played), strict=True)
                if c.purpose == "reuse wait" and p.needed)


def test_without_the_checker_a_lost_wait_is_missed() -> None:
    # Kernels that are early hide it from the bytes. The checker finds it in the very same run.
    assert dropped(needed_reuse_wait(), check=False).missed
    assert dropped(needed_reuse_wait()).found == "order"


def test_faults_are_told() -> None:
    good = dropped(needed_reuse_wait())
    redundant = replace(good.prediction, lost=frozenset(), reason="covered")
    assert necessity.faults([good]) == []
    assert [line.split(":")[0] for line in necessity.faults([
        replace(good, found=""), replace(good, prediction=redundant), replace(good, lost=frozenset({("a", "b")})),
    ])] == ["missed", "unexpected", "found as [('a', 'b')] instead of [('D2H read', 'H2D write')]"]


def test_strata_makes_exactly_the_calls_of_the_contract() -> None:
    played = clean_run(SMALL)
    logged = run(SMALL, played, Sources(SMALL)).calls
    assert mismatch(SMALL, played, logged) == ""
    ours = [k for k, entry in enumerate(logged) if entry.thread in ("engine", "issuer", "worker")
            and entry.function in ("hipEventRecord", "hipStreamWaitEvent", "hipEventSynchronize")]
    for k in ours:
        assert mismatch(SMALL, played, logged[:k] + logged[k + 1:]) != ""
        assert mismatch(SMALL, played, [*logged[:k], logged[k], *logged[k:]]) != ""
    # The right function on another slot's event, once.
    events = {logged[k].event for k in ours}
    for k in ours[2:]:
        other = next(event for event in events if event != logged[k].event)
        assert mismatch(SMALL, played, [*logged[:k], replace(logged[k], event=other), *logged[k + 1:]]) != ""


@pytest.mark.parametrize("changed", [
    replace(SMALL, settings=strata.BatchSettings(1, 2, 2)),
    replace(SMALL, settings=strata.BatchSettings(2, 1, 2)),
    replace(SMALL, settings=strata.BatchSettings(2, 2, 1)),
], ids=lambda c: str(c.settings))
def test_other_groups_are_other_calls(changed: Configuration) -> None:
    logged = run(SMALL, play(SMALL), Sources(SMALL)).calls
    assert mismatch(changed, play(changed), logged) != ""


# --- the bookkeeping by itself --------------------------------------------------------------------------------------


def submit(stream: str, place: str, operation: str, thread: str = "t") -> Step:
    return Step(Kind.SUBMIT, thread, stream, accesses=((place, operation.startswith("w"), operation),))


def record(event: str, stream: str, call: int = -1) -> Step:
    return Step(Kind.RECORD, "t", stream, event, call=call)


def wait(stream: str, event: str, call: int = -1) -> Step:
    return Step(Kind.WAIT, "t", stream, event, call=call)


def test_events_order_streams() -> None:
    steps = [submit("a", "x", "write"), record("e", "a", 0), wait("b", "e", 1), submit("b", "x", "read")]
    assert lost_orders(steps) == set()
    assert lost_orders(steps, 0) == lost_orders(steps, 1) == {("write", "read", "x")}


def test_a_lost_record_leaves_the_earlier_one() -> None:
    steps = [submit("a", "x", "write"), record("e", "a"), submit("a", "y", "write"), record("e", "a", 0),
             wait("b", "e"), submit("b", "x", "read"), submit("b", "y", "read")]
    assert lost_orders(steps) == set()
    assert lost_orders(steps, 0) == {("write", "read", "y")}
    assert lost_without_each(steps) == {0: {("write", "read", "y")}}


def test_a_wait_keeps_what_it_captured() -> None:
    steps = [submit("a", "x", "write"), record("e", "a"), wait("b", "e"), submit("a", "y", "write"), record("e", "a"),
             submit("b", "x", "read"), submit("b", "y", "read")]
    assert lost_orders(steps) == {("write", "read", "y")}


def test_submission_is_no_completion() -> None:
    steps = [submit("a", "x", "read"), Step(Kind.HOST, "t", accesses=(("x", True, "write"),))]
    assert lost_orders(steps) == {("read", "write", "x")}
    steps.insert(1, Step(Kind.SYNC_STREAM, "t", "a"))
    assert lost_orders(steps) == set()


def test_what_a_thread_knows_goes_with_its_hand_overs_and_submissions() -> None:
    steps = [submit("a", "x", "write", "one"), Step(Kind.SYNC_DEVICE, "one"), Step(Kind.RELEASE, "one", name="token"),
             Step(Kind.ACQUIRE, "two", name="token"), submit("b", "x", "read", "two")]
    assert lost_orders(steps) == set()
    assert lost_orders([step for step in steps if step.kind is not Kind.ACQUIRE]) == {("write", "read", "x")}


def test_reads_do_not_conflict_and_all_of_them_count() -> None:
    steps = [submit("a", "x", "read"), submit("b", "x", "read"), submit("b", "x", "write")]
    assert lost_orders(steps) == {("read", "write", "x")}


def test_facts() -> None:
    facts = Facts()
    assert lost_orders([
        submit("a", "x", "read"), record("e", "a", 0),
        Step(Kind.WAIT, "t", "b", "e", (("x", False, "read"),), 1),
        Step(Kind.WAIT, "t", "b", "e", (("x", False, "read"),), 2),
        Step(Kind.WAIT, "t", "b", "e", (("y", False, "read"),), 3),
    ], facts=facts) == set()
    assert facts.asked == {0: [1, 2, 3]}
    assert facts.nothing_new == {2, 3}
    assert facts.covered == {2}
    assert facts.unread == {3}
    assert facts.repeated == {2, 3}


# --- the host's own question ----------------------------------------------------------------------------------------


def read_on_the_host(streamer: strata.ExpertStreamer, copies: strata.ExpertCopies) -> list[control.Finding]:
    """The engine reads slots on the host once they have arrived."""
    with checking.checked():
        with streamer.begin(copies) as request:
            while request.issued < len(copies):
                pass
            for slot in request:
                slot.synchronize()
                control.host_read(slot.address, slot.nbytes)
        _hip.synchronize_stream(streamer.compute_stream)
    return control.findings()


def test_a_query_that_says_arrived_too_early(software: object) -> None:
    control.configure(schedule="lazy", idle_ms=0)
    rows = strata.pinned_empty((3, 64), "uint8")
    copies = strata.ExpertCopies.from_buffers(list(rows))
    with strata.ExpertStreamer(64, gpu_ring=4) as streamer:
        assert read_on_the_host(streamer, copies) == []
        tried = 0
        while True:
            injection = control.inject("hipEventQuery", tried + 1, action="ignore")
            found = read_on_the_host(streamer, copies)
            if not injection.fired:
                break
            assert ("H2D write", "host read") in {(f.earlier.operation, f.later.operation) for f in found}, tried
            control.clear_injections()
            tried += 1
        assert found == []
        assert tried >= 2 * 3  # each entry's first one and its last one, the true yes, among them


# --- the command ------------------------------------------------------------------------------------------------------


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(necessity, "quick_suite", lambda: [SMALL])
    assert necessity.main(["--quick", "--markdown", str(tmp_path / "page.md")]) == 0
    tried = len(play(SMALL).calls)
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert f"| **all** | 1 | {tried} |" in page
    assert "missed: 0\n" in page
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(necessity, "trials", lambda configuration: [replace(dropped(needed_reuse_wait()), found="")])
    assert necessity.main(["--quick"]) == 1
    shown = capsys.readouterr()
    assert "missed: 1\n" in shown.out
    assert shown.err.startswith("missed: small: ")
