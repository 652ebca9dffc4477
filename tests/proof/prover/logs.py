"""Strata's dependency calls in the log of a run, compared with the contract's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from strata.runtime.software.control import LoggedCall
from tests.proof.prover.configuration import Configuration
from tests.proof.prover.contract import (
    ENGINE,
    ISSUER,
    QUERY,
    QUERY_EVENT,
    RECORD,
    SYNC_EVENT,
    SYNC_STREAM,
    WAIT,
    WORKER,
    Call,
    Play,
)

__all__ = ["Made", "dependency_calls", "find", "is_meant", "mismatch"]

_FUNCTIONS = (RECORD, WAIT, SYNC_EVENT, SYNC_STREAM, QUERY, QUERY_EVENT)
_ROLES = (ENGINE, ISSUER, WORKER)


@dataclass
class Made:
    """A dependency call that was made. Asking for one event until it is done counts as one call.

    Attributes
    ----------
    entry : LoggedCall
        The call, or the first question.
    ordinal : int
        Its number among the thread's dependency calls of that function, from 1.
    raw : int
        Its number, or the first question's, among all the thread's calls of that function, from 1.
    questions : int
        How often it was asked.
    struck : bool
        Whether it, or one of the questions, was ignored.
    """

    entry: LoggedCall
    ordinal: int
    raw: int
    questions: int
    struck: bool


def dependency_calls(logged: Sequence[LoggedCall]) -> list[Made]:
    """Pick strata's dependency calls out of a log."""
    made: list[Made] = []
    latest: dict[str, Made] = {}
    ordinals: Counter[tuple[str, str]] = Counter()
    raw: Counter[tuple[str, str]] = Counter()
    for entry in logged:
        if entry.thread not in _ROLES or entry.function not in _FUNCTIONS:
            continue
        key = (entry.thread, entry.function)
        raw[key] += 1
        last = latest.get(entry.thread)
        if (last is not None and entry.function == last.entry.function == QUERY_EVENT
                and entry.event == last.entry.event):
            last.questions += 1
            last.struck |= entry.intercepted
            continue
        ordinals[key] += 1
        latest[entry.thread] = Made(entry, ordinals[key], raw[key], 1, entry.intercepted)
        made.append(latest[entry.thread])
    return made


def find(call: Call, made: Sequence[Made]) -> Made | None:
    """Find a call of the contract among those that were made, by thread, function and ordinal."""
    for one in made:
        if (one.entry.thread, one.entry.function, one.ordinal) == (call.role, call.function, call.ordinal):
            return one
    return None


def mismatch(configuration: Configuration, played: Play, logged: Sequence[LoggedCall]) -> str:
    """Compare strata's dependency calls with the contract's, thread by thread, argument by argument.

    Several workers share the jobs as they come: their calls are compared as a set.

    Returns
    -------
    str
        The first difference; empty where there is none.
    """
    names: dict[int, str] = {}
    by_role = defaultdict(list)
    for made in dependency_calls(logged):
        by_role[made.entry.thread].append(made.entry)
    for role in _ROLES:
        entries = by_role[role]
        expected = [call for call in played.calls if call.role == role]
        spare = sum(call.function == QUERY for call in expected) - sum(entry.function == QUERY for entry in entries)
        if spare > 0:
            # Left out where a thread was late. Of which request is not told: compared apart from the others.
            for call in [call for call in expected if call.optional][:spare]:
                expected.remove(call)
            entries = sorted(entries, key=lambda entry: entry.function == QUERY)
            expected = sorted(expected, key=lambda call: call.function == QUERY)
        if role == WORKER and configuration.workers > 1:
            wanted = Counter((call.function, call.event) for call in expected)
            has = Counter((entry.function, names.get(entry.event, "unknown")) for entry in entries)
            if wanted != has:
                return f"the workers called {has - wanted} and not {wanted - has}"
            continue
        for call, entry in zip(expected, entries, strict=False):
            if call.function != entry.function:
                return f"{call} was expected and {entry} was made"
            for handle, name in ((entry.event, call.event), (entry.stream, call.stream)):
                if bool(handle) != bool(name) or (handle and names.setdefault(handle, name) != name):
                    return f"{call} was expected and {entry} was made, with {names.get(handle)}"
        if len(expected) != len(entries):
            return f"{role} made {len(entries)} dependency calls; {len(expected)} were expected"
    if len(set(names.values())) != len(names):
        return f"two handles stand for one event: {sorted(names.values())}"
    return ""


def is_meant(call: Call, played: Play, made: Sequence[Made]) -> bool:
    """Whether the call that was ignored is the one that was meant, with its event and its stream."""
    expected = {(c.role, c.function, c.ordinal): c for c in played.calls}
    events: dict[str, Counter[int]] = defaultdict(Counter)
    streams: dict[str, Counter[int]] = defaultdict(Counter)
    commands = 0
    struck = None
    for one in made:
        entry = one.entry
        known = expected.get((entry.thread, entry.function, one.ordinal))
        if known is not None:
            events[known.event][entry.event] += 1
            streams[known.stream][entry.stream] += 1
        if one.struck:
            if known is not call or (call.optional and commands != _commands(played, call)):
                return False
            struck = entry
        commands += entry.thread == ENGINE and entry.function in (RECORD, WAIT)
    return (struck is not None and events[call.event].most_common(1)[0][0] == struck.event
            and streams[call.stream].most_common(1)[0][0] == struck.stream)


def _commands(played: Play, call: Call) -> int:
    """Count the engine's records and waits before a call: where in the run it is, if its like may be left out."""
    return sum(c.role == ENGINE and c.function in (RECORD, WAIT) for c in played.calls[: call.number])
