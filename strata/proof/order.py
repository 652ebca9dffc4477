"""Which accesses are ordered by a sequence of calls: sets of what each thread and stream knows to be done.

This is plain bookkeeping, written for the proof and sharing nothing with the checker of the software runtime: every
access has a bit; a thread, a stream, an event and a token of a hand-over each know a set of bits. Two accesses to
the same place, one of them a write, are ordered if the later one's thread or stream knows the earlier one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Facts", "Kind", "Place", "Step", "lost_orders"]

#: A slot, a host buffer, a source: whatever is read and written as one.
Place = Hashable


class Kind(Enum):
    """What a step does."""

    SUBMIT = "an operation, queued on a stream"
    HOST = "an access of the host thread itself"
    RECORD = "an event, recorded on a stream"
    WAIT = "a stream that waits for an event"
    SYNC_EVENT = "a host thread that waits for an event"
    SYNC_STREAM = "a host thread that waits for a stream"
    SYNC_DEVICE = "a host thread that waits for every stream"
    RELEASE = "a hand-over: what the thread knows is given to a token"
    ACQUIRE = "a hand-over: what the token was given is taken"


@dataclass(frozen=True)
class Step:
    """One step of a thread.

    ``accesses`` are ``(place, write, operation)``; of a wait, the accesses that it is there for, which are no steps of
    its own. ``call`` numbers the dependency call that the step is, -1 for none.
    """

    kind: Kind
    thread: str
    stream: str = ""
    name: str = ""
    accesses: tuple[tuple[Place, bool, str], ...] = ()
    call: int = -1


@dataclass
class Facts:
    """What the calls of a run had to do with each other, when none was left out.

    Attributes
    ----------
    asked : dict
        For the number of a call that records: the numbers of the calls that waited for this very record.
    nothing_new : set
        Calls that wait for what their stream or thread knew already.
    unread : set
        Calls that wait for reads which nobody made.
    covered : set
        Calls that wait for reads which their stream knew to be done already.
    repeated : set
        Calls by which a thread waits for a record that the same thread had waited for.
    """

    asked: dict[int, list[int]] = field(default_factory=dict)
    nothing_new: set[int] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)
    covered: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)


def lost_orders(
    steps: Sequence[Step], without: int = -1, facts: Facts | None = None
) -> set[tuple[str, str, Place]]:
    """Find the conflicting accesses that nothing orders.

    Parameters
    ----------
    steps : sequence of Step
        In an order in which they can happen.
    without : int
        Number of the call that is left out: a record that is not made leaves the event with its earlier one, a wait
        that is not made brings nothing.
    facts : Facts, optional
        Filled in.

    Returns
    -------
    set of (str, str, place)
        Earlier operation, later operation, where they meet. Empty: everything is ordered.
    """
    threads: dict[str, int] = {}
    streams: dict[str, int] = {}
    tokens: dict[str, int] = {}
    events: dict[str, tuple[int, int]] = {}  # known, and the number of the call that recorded it
    waited: set[tuple[str, int]] = set()
    writes: dict[Place, tuple[int, str]] = {}
    reads: dict[Place, list[tuple[int, str]]] = {}
    lost: set[tuple[str, str, Place]] = set()
    bit = 1

    def access(step: Step, known: int) -> int:
        nonlocal bit
        made = 0
        for place, write, operation in step.accesses:
            earlier = [writes[place]] if place in writes else []
            if write:
                earlier += reads.pop(place, [])
                writes[place] = (bit, operation)
            else:
                reads.setdefault(place, []).append((bit, operation))
            lost.update((before, operation, place) for mark, before in earlier if not known & mark)
            made |= bit
            bit <<= 1
        return made

    def note(step: Step, new: int, before: int, record: int) -> None:
        if facts is None or step.call < 0:
            return
        if record >= 0:
            facts.asked.setdefault(record, []).append(step.call)
            if (step.thread, record) in waited:
                facts.repeated.add(step.call)
            waited.add((step.thread, record))
        if not new & ~before:
            facts.nothing_new.add(step.call)
        there_for = [mark for place, _, _ in step.accesses for mark, _ in reads.get(place, ())]
        if not there_for:
            facts.unread.add(step.call)
        elif all(before & mark for mark in there_for):
            facts.covered.add(step.call)

    for step in steps:
        if step.call >= 0 and step.call == without:
            continue
        kind = step.kind
        thread = threads.get(step.thread, 0)
        if kind is Kind.SUBMIT or kind is Kind.RECORD or kind is Kind.WAIT:
            known = streams.get(step.stream, 0) | thread
            if kind is Kind.SUBMIT:
                known |= access(step, known)
            elif kind is Kind.RECORD:
                events[step.name] = (known, step.call)
            else:
                captured, record = events.get(step.name, (0, -1))
                note(step, captured, known, record)
                known |= captured
            streams[step.stream] = known
            continue
        if kind is Kind.HOST:
            thread |= access(step, thread)
        elif kind is Kind.RELEASE:
            tokens[step.name] = tokens.get(step.name, 0) | thread
        elif kind is Kind.ACQUIRE:
            thread |= tokens.get(step.name, 0)
        elif kind is Kind.SYNC_EVENT:
            captured, record = events.get(step.name, (0, -1))
            note(step, captured, thread, record)
            thread |= captured
        elif kind is Kind.SYNC_STREAM:
            note(step, streams.get(step.stream, 0), thread, -1)
            thread |= streams.get(step.stream, 0)
        else:
            for known in streams.values():
                thread |= known
        threads[step.thread] = thread
    return lost
