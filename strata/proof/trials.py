"""Dropping one: a run for each dependency call of a configuration, with that call ignored by the runtime."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from strata.errors import StrataError
from strata.proof.configuration import Configuration
from strata.proof.contract import (
    ENGINE,
    ISSUER,
    QUERY,
    RECORD,
    SYNC_EVENT,
    SYNC_STREAM,
    WAIT,
    WORKER,
    Call,
    Play,
    play,
)
from strata.proof.predict import Prediction, predict
from strata.proof.run import Outcome, Sources, run
from strata.runtime.software import control

__all__ = ["Trial", "clean_run", "mismatch", "trials"]

_FUNCTIONS = (RECORD, WAIT, SYNC_EVENT, SYNC_STREAM, QUERY)
_ROLES = (ENGINE, ISSUER, WORKER)

# A wrong order shows in bytes, too, where what should come later comes as early as it may.
_SCHEDULES = {
    "copied record": "compute-first", "copied wait": "compute-first",
    "reuse wait": "copies-first", "used record": "copies-first",
    "begin record": "copies-first", "begin wait": "copies-first",
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


def _unclean(outcome: Outcome) -> str:
    if outcome.findings:
        return f"the checker finds: {outcome.findings[0]}"
    return f"{outcome.wrong_bytes} wrong bytes" if outcome.wrong_bytes else outcome.error


def _compare_counters(configuration: Configuration, played: Play, outcome: Outcome) -> None:
    for number, (expected, counters) in enumerate(zip(played.counters, outcome.counters, strict=True)):
        wrong = {name: (getattr(counters, name), value) for name, value in expected.items()
                 if getattr(counters, name) != value}
        if configuration.is_stager:
            wrong = {name: pair for name, pair in wrong.items() if "copy_calls" not in name}
        if wrong:
            raise StrataError(f"{configuration.name}: request {number}: counters (is, should be): {wrong}")


def mismatch(configuration: Configuration, played: Play, logged: Sequence[control.LoggedCall]) -> str:
    """Compare strata's dependency calls with the contract's, thread by thread, argument by argument.

    Several workers share the jobs as they come: their calls are compared as a set.

    Returns
    -------
    str
        The first difference; empty where there is none.
    """
    names: dict[int, str] = {}
    made = defaultdict(list)
    for entry in logged:
        if entry.thread in _ROLES and entry.function in _FUNCTIONS:
            made[entry.thread].append(entry)
    for role in _ROLES:
        expected = [call for call in played.calls if call.role == role]
        if not any(entry.function == QUERY for entry in made[role]):
            expected = [call for call in expected if not call.optional]
        elif any(call.optional for call in expected):
            queries = sum(entry.function == QUERY for entry in made[role])
            while queries < sum(call.function == QUERY for call in expected):
                expected.remove(next(call for call in reversed(expected) if call.optional))
            made[role].sort(key=lambda entry: entry.function == QUERY)  # which request's is left out is not told
            expected.sort(key=lambda call: call.function == QUERY)
        if role == WORKER and configuration.workers > 1:
            wanted = Counter((c.function, c.event) for c in expected)
            has = Counter((e.function, names.get(e.event, "unknown")) for e in made[role])
            if wanted != has:
                return f"the workers called {has - wanted} and not {wanted - has}"
            continue
        for call, entry in zip(expected, made[role], strict=False):
            if call.function != entry.function:
                return f"{call} was expected and {entry} was made"
            for handle, name in ((entry.event, call.event), (entry.stream, call.stream)):
                if bool(handle) != bool(name) or (handle and names.setdefault(handle, name) != name):
                    return f"{call} was expected and {entry} was made, with {names.get(handle)}"
        if len(expected) != len(made[role]):
            return f"{role} made {len(made[role])} dependency calls; {len(expected)} were expected"
    if len(set(names.values())) != len(names):
        return f"two handles stand for one event: {sorted(names.values())}"
    return ""


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
    for _ in range(_ATTEMPTS):
        outcome = run(configuration, played, sources, schedule=schedule, ignored=call)
        struck = [entry for entry in outcome.calls if entry.intercepted]
        if several and struck:
            # Whichever worker's call it was: the rule is the same, applied to what that thread had waited for.
            prediction = _predict_worker(outcome, struck[0])
        elif not struck or not _is_meant(call, played, outcome.calls):
            continue
        lost = frozenset((f.earlier.operation, f.later.operation) for f in outcome.findings)
        return Trial(configuration, call, prediction, outcome.found, outcome.wrong_bytes, lost)
    raise StrataError(f"{configuration.name}: {call}: it was never made")


def _is_meant(call: Call, played: Play, logged: Sequence[control.LoggedCall]) -> bool:
    """Whether the call that was ignored had the event and the stream of the call that was meant."""
    expected = {(c.role, c.function, c.ordinal): c for c in played.calls}
    ordinals: Counter[tuple[str, str]] = Counter()
    events: dict[str, Counter[int]] = defaultdict(Counter)
    streams: dict[str, Counter[int]] = defaultdict(Counter)
    struck = None
    for entry in logged:
        ordinals[entry.thread, entry.function] += 1
        known = expected.get((entry.thread, entry.function, ordinals[entry.thread, entry.function]))
        if known is not None:
            events[known.event][entry.event] += 1
            streams[known.stream][entry.stream] += 1
        if entry.intercepted:
            struck = entry
            if known is not call or (call.optional and _commands(logged[: entry.number - 1]) != sum(
                    c.role == ENGINE and c.function in (RECORD, WAIT) for c in played.calls[: call.number])):
                return False
    return (struck is not None and events[call.event].most_common(1)[0][0] == struck.event
            and streams[call.stream].most_common(1)[0][0] == struck.stream)


def _commands(logged: Sequence[control.LoggedCall]) -> int:
    """Count the engine's records and waits."""
    return sum(entry.thread == ENGINE and entry.function in (RECORD, WAIT) for entry in logged)


def _predict_worker(outcome: Outcome, struck: control.LoggedCall) -> Prediction:
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
