"""Which accesses are ordered by a sequence of calls: sets of what each thread and stream knows to be done.

This is plain bookkeeping, written for the proof and sharing nothing with the checker of the software runtime: every
access has a bit; a thread, a stream, an event and a token of a hand-over each know a set of bits. Two accesses to
the same place, one of them a write, are ordered if the later one's thread or stream knows the earlier one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Facts", "Kind", "Place", "Step", "lost_orders", "lost_without_each"]

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


class _Knowledge:
    """What every thread, stream, event and token knows at one point of a run."""

    def __init__(self) -> None:
        self.threads: dict[str, int] = {}
        self.streams: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self.events: dict[str, tuple[int, int]] = {}  # known, and the number of the call that recorded it
        self.writes: dict[Place, tuple[int, str]] = {}
        self.reads: dict[Place, tuple[tuple[int, str], ...]] = {}  # since the last write
        self.lost: set[tuple[str, str, Place]] = set()
        self.bit = 1

    def copy(self) -> _Knowledge:
        """Give a run that goes on in another way."""
        other = _Knowledge()
        for name, value in vars(self).items():
            setattr(other, name, value if isinstance(value, int) else value.copy())
        return other

    def access(self, step: Step, known: int) -> int:
        """Enter accesses by somebody who knows `known`; return what is known after them."""
        made = 0
        for place, write, operation in step.accesses:
            mark = self.bit
            last = self.writes.get(place)
            if last is not None and not known & last[0]:
                self.lost.add((last[1], operation, place))
            reads = self.reads.get(place, ())
            if write:
                self.lost.update((before, operation, place) for bit, before in reads if not known & bit)
                self.writes[place] = (mark, operation)
                self.reads[place] = ()
            else:
                self.reads[place] = (*reads, (mark, operation))
            made |= mark
            self.bit = mark << 1
        return known | made

    def step(self, step: Step, facts: _Notes | None = None) -> None:
        kind = step.kind
        thread = self.threads.get(step.thread, 0)
        if kind is Kind.SUBMIT or kind is Kind.RECORD or kind is Kind.WAIT:
            known = self.streams.get(step.stream, 0) | thread
            if kind is Kind.SUBMIT:
                known = self.access(step, known)
            elif kind is Kind.RECORD:
                self.events[step.name] = (known, step.call)
            else:
                captured, record = self.events.get(step.name, (0, -1))
                if facts is not None:
                    facts.wait(self, step, captured, known, record)
                known |= captured
            self.streams[step.stream] = known
            return
        if kind is Kind.HOST:
            thread = self.access(step, thread)
        elif kind is Kind.RELEASE:
            self.tokens[step.name] = self.tokens.get(step.name, 0) | thread
        elif kind is Kind.ACQUIRE:
            thread |= self.tokens.get(step.name, 0)
        elif kind is Kind.SYNC_DEVICE:
            for known in self.streams.values():
                thread |= known
        else:
            captured, record = (self.events.get(step.name, (0, -1)) if kind is Kind.SYNC_EVENT
                                else (self.streams.get(step.stream, 0), -1))
            if facts is not None:
                facts.wait(self, step, captured, thread, record)
            thread |= captured
        self.threads[step.thread] = thread


class _Notes:
    """Collects `Facts`."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.waited: set[tuple[str, int]] = set()

    def wait(self, knowledge: _Knowledge, step: Step, captured: int, known: int, record: int) -> None:
        """A wait brings what was captured to somebody who knows `known`."""
        if step.call < 0:
            return
        if record >= 0:
            self.facts.asked.setdefault(record, []).append(step.call)
            if (step.thread, record) in self.waited:
                self.facts.repeated.add(step.call)
            self.waited.add((step.thread, record))
        if not captured & ~known:
            self.facts.nothing_new.add(step.call)
        there_for = [bit for place, _, _ in step.accesses for bit, _ in knowledge.reads.get(place, ())]
        if not there_for:
            self.facts.unread.add(step.call)
        elif all(known & bit for bit in there_for):
            self.facts.covered.add(step.call)


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
    knowledge = _Knowledge()
    notes = None if facts is None else _Notes(facts)
    for step in steps:
        if step.call < 0 or step.call != without:
            knowledge.step(step, notes)
    return knowledge.lost


def lost_without_each(steps: Sequence[Step]) -> dict[int, set[tuple[str, str, Place]]]:
    """Find what is lost without each call, by its number: `lost_orders` for all of them."""
    knowledge = _Knowledge()
    lost = {}
    for position, step in enumerate(steps):
        if step.call >= 0:
            other = knowledge.copy()
            for later in steps[position + 1:]:
                other.step(later)
            lost[step.call] = other.lost
        knowledge.step(step)
    return lost
