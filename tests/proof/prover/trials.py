"""Dropping one: a run for each dependency call of a configuration, with that call ignored by the runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from strata.errors import StrataError
from strata.runtime.software import control
from tests.proof.prover.configuration import Configuration
from tests.proof.prover.contract import RECORD, WORKER, Call, Play, play
from tests.proof.prover.logs import dependency_calls, find, is_meant, mismatch
from tests.proof.prover.predict import Prediction, predict
from tests.proof.prover.run import Observed, Sources, run

__all__ = ["Trial", "clean_run", "trials"]

# A wrong order shows in bytes, too, where what should come later comes as early as it may.
_SCHEDULES = {
    "copied record": "compute-first", "copied wait": "compute-first",
    "reuse wait": "copies-first", "used record": "copies-first",
    "begin record": "copies-first", "begin wait": "copies-first", "end record": "copies-first",
}

# Strata's threads may be quick or slow: a call that the core may leave out, or a worker's that another worker made,
# is tried again.
_ATTEMPTS = 50


@dataclass(frozen=True)
class Trial:
    """One call ignored, and what came of it.

    Attributes
    ----------
    call : Call
        The call that was ignored.
    prediction : Prediction
        Said before the run.
    found : str
        What found it: ``order`` (the checker), ``bytes``, ``error``; empty where nothing did.
    wrong_bytes : int
        Bytes that were read wrong, whoever found it first.
    lost : frozenset of (str, str)
        Kinds of access that the checker found without an order.
    """

    configuration: Configuration
    call: Call
    prediction: Prediction
    found: str
    wrong_bytes: int
    lost: frozenset[tuple[str, str]]

    @property
    def missed(self) -> bool:
        """Needed, and nothing noticed that it was not made."""
        return self.prediction.needed and not self.found

    @property
    def unexpected(self) -> bool:
        """Redundant by design, and yet something was found."""
        return not self.prediction.needed and bool(self.found)

    def __str__(self) -> str:
        said = "needed" if self.prediction.needed else f"redundant ({self.prediction.reason})"
        return f"{self.configuration.name}: {self.call}: {said}, found by {self.found or 'nothing'}"


def clean_run(configuration: Configuration, schedule: str = "lazy", *, sources: Sources | None = None) -> Play:
    """Run with every call made, and compare what strata called with the contract's own sequence.

    Raises
    ------
    StrataError
        If strata makes another dependency call than the contract, the checker finds anything, or a byte is wrong.
    """
    played = play(configuration)
    sources = Sources(configuration) if sources is None else sources
    for _ in range(_ATTEMPTS):
        outcome = run(configuration, played, sources, schedule=schedule)
        problem = _unclean(outcome) or mismatch(configuration, played, outcome.calls)
        if not problem:
            _compare_counters(configuration, played, outcome)
            return played
        # Only the end of a request has two ways, of which the core takes one by a clock.
        if _unclean(outcome) or not any(p.drains for p in configuration.passes):
            break
    raise StrataError(f"{configuration.name}, {schedule}: {problem}")


def _unclean(outcome: Observed) -> str:
    if outcome.findings:
        return f"the checker finds: {outcome.findings[0]}"
    return f"{outcome.wrong_bytes} wrong bytes" if outcome.wrong_bytes else outcome.error


def _compare_counters(configuration: Configuration, played: Play, outcome: Observed) -> None:
    for number, (expected, counters) in enumerate(zip(played.counters, outcome.counters, strict=True)):
        wrong = {name: (getattr(counters, name), value) for name, value in expected.items()
                 if getattr(counters, name) != value}
        if configuration.is_stager:
            wrong = {name: pair for name, pair in wrong.items() if "copy_calls" not in name}
        if wrong:
            raise StrataError(f"{configuration.name}: request {number}: counters (is, should be): {wrong}")


def trials(
    configuration: Configuration, choose: Callable[[Call], bool] = lambda call: True
) -> Iterator[Trial]:
    """Try each dependency call of a configuration, or those that are chosen.

    Raises
    ------
    StrataError
        If the run with every call made is not clean, or a call cannot be ignored.
    """
    with _quiet():
        sources = Sources(configuration)
        played = clean_run(configuration, sources=sources)
        for call, prediction in zip(played.calls, predict(configuration, played), strict=True):
            if choose(call):
                yield _try(configuration, played, sources, call, prediction)


def _try(
    configuration: Configuration, played: Play, sources: Sources, call: Call, prediction: Prediction
) -> Trial:
    schedule = _SCHEDULES.get(call.purpose, "lazy")
    several = call.role == WORKER and configuration.workers > 1
    nth = call.ordinal
    for _ in range(_ATTEMPTS):
        outcome = run(configuration, played, sources, schedule=schedule, ignored=call, nth=nth)
        made = dependency_calls(outcome.calls)
        struck = [one for one in made if one.struck]
        if several and struck:
            # Whichever worker's call it was: the rule is the same, applied to what that thread had waited for.
            prediction = _predict_worker(outcome, struck[0].entry)
        elif not is_meant(call, played, made):
            there = find(call, made)
            if there is not None:  # a question that was asked more often, or less often, than before
                nth = there.raw + there.questions // 2
            continue
        lost = frozenset((f.earlier.operation, f.later.operation) for f in outcome.findings)
        return Trial(configuration, call, prediction, outcome.found, outcome.wrong_bytes, lost)
    raise StrataError(f"{configuration.name}: {call}: it was never made")


def _predict_worker(outcome: Observed, struck: control.LoggedCall) -> Prediction:
    """Needed, unless this very thread has waited for this very record before."""
    for entry in reversed(outcome.calls[: struck.number - 1]):
        if entry.event != struck.event:
            continue
        if entry.function == RECORD:
            break
        if entry.thread_number == struck.thread_number:
            return Prediction(frozenset(), "same thread")
    return Prediction(frozenset({("H2D read", "host write")}))


@contextmanager
def _quiet() -> Iterator[None]:
    """Buffers that cannot be pinned are meant not to be: no warnings."""
    logger = logging.getLogger("strata")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
