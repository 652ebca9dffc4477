"""The contract on the streams, played through for one configuration, without strata's own code.

Each thread is a coroutine that makes its calls in the order that the contract gives, and says what it waits for. They
are run one at a time: strata's threads first, until they can go no further, then one step of the engine's. So the
result is one definite sequence: a script for the engine, which the real run follows, and the steps of all threads,
with every dependency call among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from tests.proof.prover.configuration import Configuration, Pass
from tests.proof.prover.order import Kind, Place, Step

__all__ = ["Call", "Command", "Play", "play"]

ENGINE, ISSUER, WORKER = "engine", "issuer", "worker"
COPY = "copy"
HOME = "compute 0"  # the streamer's own compute stream; others are lent to one request each

RECORD, WAIT = "hipEventRecord", "hipStreamWaitEvent"
SYNC_EVENT, SYNC_STREAM = "hipEventSynchronize", "hipStreamSynchronize"
QUERY_EVENT, QUERY = "hipEventQuery", "hipStreamQuery"

_KINDS = {RECORD: Kind.RECORD, WAIT: Kind.WAIT, SYNC_EVENT: Kind.SYNC_EVENT, QUERY_EVENT: Kind.SYNC_EVENT,
          SYNC_STREAM: Kind.SYNC_STREAM, QUERY: Kind.SYNC_STREAM}

_Actor = Generator[Callable[[], bool], None, None]


@dataclass(frozen=True)
class Call:
    """One dependency call of a run.

    Attributes
    ----------
    number : int
        Its number among the dependency calls of the run.
    purpose : str
        What the contract makes it for: ``reuse wait``, ``copied record``, …
    function, event, stream : str
        The HIP function and its arguments, by name; empty where it has none.
    role, ordinal : str, int
        It is the ``ordinal``-th call of the function by that thread, from 1. Asking until the answer is yes is one
        call.
    request, first, last : int
        The request, and the entries (jobs, slots) that it is about.
    group : int
        Which of the request's copy or ownership groups it belongs to, by the group's end.
    skipped : bool
        Whether it is about a skipped entry alone.
    optional : bool
        The core may leave it out, depending on how quick its threads are.
    """

    number: int
    purpose: str
    function: str
    event: str
    stream: str
    role: str
    ordinal: int
    request: int
    first: int
    last: int
    group: int = -1
    skipped: bool = False
    optional: bool = False

    def __str__(self) -> str:
        about = f"{self.first}" if self.first == self.last else f"{self.first}..{self.last}"
        names = ", ".join(name for name in (self.event, self.stream) if name)
        call = f"{self.function}({names}), {self.role} #{self.ordinal}"
        return f"{self.purpose} {about} of request {self.request}: {call}"


@dataclass(frozen=True)
class Command:
    """One step of the engine's script: a name of `tests.proof.prover.run`'s, and its arguments."""

    name: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class Play:
    """What a configuration comes to.

    Attributes
    ----------
    script : tuple of Command
        What the engine does.
    steps : tuple of Step
        What all threads do, in one order in which it can happen.
    calls : tuple of Call
        The dependency calls, by number.
    counters : tuple of dict
        Each request's counters at its end.
    """

    script: tuple[Command, ...]
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    counters: tuple[dict[str, int], ...]


def play(configuration: Configuration) -> Play:
    """Play a configuration through.

    Raises
    ------
    RuntimeError
        If all threads wait for each other.
    """
    return _Stage(configuration).run()


@dataclass
class _Entry:
    number: int  # in its request
    job: int  # -1: direct
    segments: int
    end: int = 0  # of its copy group
    owner_end: int = 0  # of its job's ownership group


class _Stage:
    def __init__(self, configuration: Configuration) -> None:
        self.c = configuration
        self.steps: list[Step] = []
        self.calls: list[Call] = []
        self.script: list[Command] = []
        self.ordinals: Counter[tuple[str, str]] = Counter()
        self.final: list[dict[str, int]] = []
        self.request = -1
        self.accesses = 0
        # GPU ring: which `used` covers a slot's last use, in which order.
        self.last_use: dict[int, tuple[int, str]] = {}
        self.uses = 0
        self.waited_use = 0  # the copy stream has waited for every use up to this one
        self.last_stream: str | None = None
        # Copy stream: its length so far, where it is held, where an event was recorded.
        self.length = 0
        self.holds: list[int] = []
        self.recorded_at: dict[str, int] = {}
        buffers = configuration.host_ring
        pinned = buffers if configuration.pinned_buffers is None else configuration.pinned_buffers
        self.pinned = [b < pinned for b in range(buffers)]
        self.begin_request()

    def begin_request(self) -> None:
        self.request += 1
        self.entries: list[_Entry] = []
        self.jobs: list[_Entry] = []
        self.issued = self.consumed = self.ready = self.submitted = self.dma_published = 0
        self.waited = 0  # the compute stream has waited for every entry below
        self.released = 0  # given back; what lies between `consumed` and here has no record yet
        self.unrecorded: list[bool] = []  # what was given back there, entries or spans: whether it was skipped
        self.list_ends: list[int] = []
        self.ended = self.stopped = False
        self.counts: Counter[str] = Counter()
        self.helpers: list[tuple[_Actor, Callable[[], bool]]] = []

    # --- running the threads --------------------------------------------------------------------------------------

    def run(self) -> Play:
        engine = self.stager_engine() if self.c.is_stager else self.engine()
        waits_for = next(engine)
        while True:
            while self.advance_helpers():
                pass
            if not waits_for():
                at = f"entry {self.consumed} of request {self.request}"
                raise RuntimeError(f"{self.c.name}: all threads wait at {at}")
            try:
                waits_for = next(engine)
            except StopIteration:
                return Play(tuple(self.script), tuple(self.steps), tuple(self.calls), tuple(self.final))

    def advance_helpers(self) -> bool:
        moved = False
        for index, (actor, waits_for) in enumerate(self.helpers):
            if not self.stopped and waits_for():
                moved = True
                self.helpers[index] = (actor, next(actor, lambda: False))
        return moved

    def start(self, actor: _Actor) -> None:
        self.helpers.append((actor, next(actor)))

    # --- steps ----------------------------------------------------------------------------------------------------

    def submit(self, thread: str, stream: str, *accesses: tuple[Place, bool, str]) -> None:
        self.steps.append(Step(Kind.SUBMIT, thread, stream, accesses=accesses))
        self.accesses += len(accesses)
        if stream == COPY:
            self.length += 1

    def host(self, thread: str, *accesses: tuple[Place, bool, str]) -> None:
        self.steps.append(Step(Kind.HOST, thread, accesses=accesses))

    def release(self, thread: str, token: str) -> None:
        self.steps.append(Step(Kind.RELEASE, thread, name=token))

    def acquire(self, thread: str, token: str) -> None:
        self.steps.append(Step(Kind.ACQUIRE, thread, name=token))

    def call(
        self, purpose: str, function: str, role: str, first: int, last: int | None = None, *, event: str = "",
        stream: str = "", group: int = -1, skipped: bool = False, optional: bool = False, does: bool = True,
        guards: tuple[tuple[Place, bool, str], ...] = (),
    ) -> None:
        self.ordinals[role, function] += 1
        number = len(self.calls)
        self.calls.append(Call(number, purpose, function, event, stream, role, self.ordinals[role, function],
                               self.request, first, first if last is None else last, group, skipped, optional))
        if does:
            self.steps.append(Step(_KINDS[function], role, stream, event, guards, number))
        if stream == COPY and function in (RECORD, WAIT):
            self.length += 1
            if function == RECORD:
                self.recorded_at[event] = self.length

    def tell(self, name: str, *arguments: object) -> None:
        self.script.append(Command(name, arguments))

    # --- what threads wait for ------------------------------------------------------------------------------------

    def has_job(self, job: int) -> bool:
        return job < len(self.jobs)

    def has_entry(self) -> bool:
        return self.issued < len(self.entries)

    def has_dma_published(self, end: int) -> bool:
        return self.dma_published >= end

    def may_complete(self, event: str) -> bool:
        return all(position > self.recorded_at[event] for position in self.holds)

    def window_is_open(self, end: int) -> bool:
        return end <= self.consumed + self.c.gpu_ring

    def is_ready(self, job: int) -> bool:
        return self.ready > job

    # --- groups ---------------------------------------------------------------------------------------------------

    @property
    def here(self) -> Pass:
        return self.c.passes[self.request]

    def batches(self) -> tuple[int, int, int]:
        if not self.here.long_prefill:
            return 1, 1, 1
        s, gpu, host = self.c.settings, self.c.gpu_ring, self.c.host_ring
        return (min(s.copy_batch, gpu, 32), min(s.stage_batch, host), min(s.stage_copy_batch, gpu, host))

    def list_entries(self, letters: str) -> list[_Entry]:
        """Append a list, or an extension: its groups end with it."""
        made = []
        for letter in letters:
            staged = letter in "sS"
            job = len(self.jobs) if staged else -1
            made.append(_Entry(len(self.entries), job, 2 if letter in "DS" else 1))
            self.entries.append(made[-1])
            if staged:
                self.jobs.append(made[-1])
        if not self.c.is_stager:
            begin = 0
            while begin < len(made):
                end = begin + 1
                while end < len(made) and self.may_grow(made[begin], made[end - 1], made[end]):
                    end += 1
                for entry in made[begin:end]:
                    entry.end = made[end - 1].number + 1
                begin = end
        self.list_ends.append(len(self.entries))
        ring, batch = self.c.host_ring, self.batches()[1]
        for entry in made:
            if entry.job >= 0:
                within = entry.job % ring
                cut = entry.job - within + min((within // batch + 1) * batch, ring)
                entry.owner_end = min(cut, len(self.jobs))
        return made

    def may_grow(self, first: _Entry, last: _Entry, entry: _Entry) -> bool:
        """Whether the group ``first .. last`` may take the next entry."""
        ring, (copy_batch, _, stage_copy_batch) = self.c.gpu_ring, self.batches()
        staged = first.job >= 0
        if entry.number - first.number >= (stage_copy_batch if staged else copy_batch):
            return False
        if entry.number // ring != first.number // ring or (entry.job >= 0) != staged:
            return False
        if not staged:
            return True
        host = self.c.host_ring
        return (entry.job == last.job + 1 and entry.job // host == first.job // host
                and all(self.pinned[job % host] for job in range(first.job, entry.job + 1)))

    # --- a worker -------------------------------------------------------------------------------------------------

    def worker(self) -> _Actor:
        job = 0
        found = 0  # the end of the latest ownership group whose DMA was waited for
        while True:
            yield partial(self.has_job, job)
            self.acquire(WORKER, "available")
            buffer = job % self.c.host_ring
            if job >= self.c.host_ring:
                end = self.jobs[job - self.c.host_ring].owner_end
                event = f"dma_done[{(end - 1) % self.c.host_ring}]"
                yield partial(self.has_dma_published, end)
                self.acquire(WORKER, "dma published")
                if self.c.share and end <= found:
                    self.counts["host_reuse_waits_shared"] += 1
                else:
                    yield partial(self.may_complete, event)
                    self.call("host wait", SYNC_EVENT, WORKER, job, event=event, group=end)
                    self.counts["host_reuse_waits"] += 1
                    found = end
            if self.pinned[buffer]:
                self.host(WORKER, (("buffer", buffer), True, "host write"))
                self.accesses += 1
            self.release(WORKER, f"ready[{buffer}]")
            job += 1
            self.ready = job

    # --- the issuer -----------------------------------------------------------------------------------------------

    def issuer(self) -> _Actor:
        while True:
            yield self.has_entry
            self.acquire(ISSUER, "listed")
            begin = self.issued
            group = self.entries[begin:self.entries[begin].end]
            end = group[-1].number + 1
            kind = "direct" if group[0].job < 0 else "staged"
            yield partial(self.window_is_open, end)
            self.acquire(ISSUER, "consumed")
            slots = [entry.number % self.c.gpu_ring for entry in group]
            used = [self.last_use[slot] for slot in slots if slot in self.last_use]
            if used and self.c.share and max(used)[0] <= self.waited_use:
                self.counts[f"{kind}_reuse_waits_shared"] += 1
            elif used:
                self.waited_use = max(used)[0]
                self.call("reuse wait", WAIT, ISSUER, begin, end - 1, event=max(used)[1], stream=COPY, group=end,
                          guards=tuple((("slot", slot), False, "D2H read") for slot in slots))
                self.counts[f"{kind}_reuse_waits"] += 1
            for entry, slot in zip(group, slots, strict=True):
                target = (("slot", slot), True, "H2D write")
                if entry.job < 0:
                    for _ in range(entry.segments):
                        self.submit(ISSUER, COPY, (("source", entry.number), False, "H2D read"), target)
                    self.counts["direct_copy_calls"] += entry.segments
                    continue
                yield partial(self.is_ready, entry.job)
                buffer = entry.job % self.c.host_ring
                self.acquire(ISSUER, f"ready[{buffer}]")
                source = ((("buffer", buffer), False, "H2D read"),) if self.pinned[buffer] else ()
                self.submit(ISSUER, COPY, *source, target)
                self.counts["staged_copy_calls"] += 1
                self.dma_submitted(ISSUER, entry, COPY)
            terminal = (end - 1) % self.c.gpu_ring
            self.call("copied record", RECORD, ISSUER, begin, end - 1, event=f"copied[{terminal}]", stream=COPY,
                      group=end)
            self.counts[f"{kind}_copied_records"] += 1
            self.release(ISSUER, "issued")
            self.issued = end

    def dma_submitted(self, thread: str, entry: _Entry, stream: str) -> None:
        """After a job's copy: the record that its ownership group's end asks for."""
        self.submitted = entry.job + 1
        if self.submitted != entry.owner_end:
            return
        ring = self.c.host_ring
        first = next(j.job for j in self.jobs if j.owner_end == entry.owner_end)
        self.call("dma_done record", RECORD, thread, first, entry.job, event=f"dma_done[{entry.job % ring}]",
                  stream=stream, group=entry.owner_end)
        self.counts["dma_done_records"] += 1
        self.release(thread, "dma published")
        self.dma_published = entry.owner_end

    def finish_host_ring(self, thread: str, stream: str) -> None:
        """No job is claimed any more; a fence where the last group is not at its end; the workers; the last DMA."""
        last = self.submitted - 1
        event = ""
        if last >= 0:
            end = self.jobs[last].owner_end
            event = f"dma_done[{(end - 1) % self.c.host_ring}]"
            if self.dma_published < end:
                self.call("fence record", RECORD, thread, last, event=event, stream=stream, group=end)
                self.counts["fences"] += 1
        if self.jobs:
            self.release(WORKER, "idle")
            self.acquire(thread, "idle")
        if event:
            # A stager alone asks again and again, so that its engine stays in charge.
            function = QUERY_EVENT if self.c.is_stager else SYNC_EVENT
            self.call("last host wait", function, thread, last, event=event)

    # --- the engine with a streamer -------------------------------------------------------------------------------

    def engine(self) -> _Actor:
        self.tell("open")
        for number, here in enumerate(self.c.passes):
            if number:
                self.begin_request()
            self.rewrite_sources()
            stream = f"compute {here.stream}"
            if self.c.lent:
                self.tell("use_slots", here.stream)
                for slot in range(self.c.gpu_ring):
                    self.submit(ENGINE, stream, (("slot", slot), False, "D2H read"))
                    self.accesses += 1  # of the image that it goes to
            self.begin(stream)
            if not self.c.ahead:
                self.hold()
            yield from self.take_everything(stream)
            yield from self.end(stream)
            self.final.append(dict(self.counts))
        self.rewrite_sources(behind=1)  # the engine's own again: strata reads no source after the end
        self.close()
        yield lambda: True

    def rewrite_sources(self, behind: int = 0) -> None:
        self.tell("rewrite", self.request + behind)
        rows = max(len(p.entries) for p in self.c.passes)
        self.host(ENGINE, *((("source", row), True, "host write") for row in range(rows)))
        self.accesses += 1  # the pool is written as one

    def begin(self, stream: str) -> None:
        self.tell("begin", self.request)
        fenced = [self.last_stream] if self.last_stream not in (None, stream) else []
        if self.c.lent:
            fenced.append(stream)
            self.last_use.clear()
        for other in fenced:
            assert other is not None
            if other != self.last_stream or other in (HOME, stream):  # else it was recorded when that request ended
                self.call("begin record", RECORD, ENGINE, 0, event="begin fence", stream=other)
            self.call("begin wait", WAIT, ENGINE, 0, event="begin fence", stream=COPY)
            self.counts["begin_waits"] += 1
            if other != stream:
                self.waited_use = self.uses
        self.last_stream = stream
        self.start(self.worker())
        self.start(self.issuer())

    def hold(self) -> None:
        self.tell("hold")
        self.length += 1
        self.holds.append(self.length)

    def settle(self) -> None:
        """The real engine waits until strata's threads have done all that they have done here."""
        counts = {name: self.counts[name] for name in ("direct_copy_calls", "staged_copy_calls", "dma_done_records",
                                                       "host_reuse_waits", "direct_reuse_waits",
                                                       "staged_reuse_waits", "direct_copied_records",
                                                       "staged_copied_records") if self.counts[name]}
        self.tell("settle", self.issued, tuple(counts.items()), self.accesses)

    def extend(self, index: int) -> None:
        self.tell("extend", self.request, index)
        self.list_entries(self.here.lists[index])
        self.release(ENGINE, "listed")
        self.release(ENGINE, "available")

    def take_everything(self, stream: str) -> _Actor:
        """Acquire, read and release in order, as soon as entries are published and no sooner."""
        here = self.here
        pending: list[tuple[int, int, bool]] = []  # acquired or skipped, not yet given back: begin, end, skipped
        taken = listed = 0
        moved = True
        stop = len(here.entries) if here.stop_at is None else here.stop_at
        self.pending = pending
        while True:
            yield lambda: True  # strata's threads have gone as far as they can
            if taken >= stop:
                if here.stop_at is None:
                    while pending:
                        self.give_back(pending, stream)
                        yield lambda: True
                return
            end = self.reach(taken)
            if end is None:
                self.tell("flush")
                self.record_released(stream)
            elif taken < end <= self.issued:
                self.tell("published", self.issued)
                self.acquire(ENGINE, "issued")
                skipped = taken in here.skips
                if not skipped:
                    self.take(taken, end, stream)
                else:
                    self.tell("skip")
                pending.append((taken, end, skipped))
                taken = end
                moved = True
                while pending and (pending[0][-1] or sum(not p[-1] for p in pending) > here.held):
                    self.give_back(pending, stream)
            elif taken == len(self.entries) and listed < len(here.lists):
                self.extend(listed)
                listed += 1
            elif self.holds and moved:
                # What was submitted so far completes; what comes is held again.
                self.settle()
                self.hold()
                self.unhold()
                moved = False
            elif pending:
                self.give_back(pending, stream)
                while pending and pending[0][-1]:
                    self.give_back(pending, stream)
            else:
                raise RuntimeError(f"{self.c.name}: entry {taken} of request {self.request} is never published")

    def reach(self, begin: int) -> int | None:
        """The end of what can be taken at once; None where what was given back has to be recorded first."""
        if begin == len(self.entries):
            return begin
        ring = self.c.gpu_ring
        end = min(begin + self.here.span, (begin // ring + 1) * ring, next(e for e in self.list_ends if e > begin))
        # Entries, and so the first of a span, are waited for where they are; a span is no longer than what fits.
        if self.unrecorded and not self.window_is_open(self.entries[end - 1].end) and (
                self.here.span > 1 or end > self.issued):
            return None
        while end > begin + 1 and not self.window_is_open(self.entries[end - 1].end):
            end -= 1
        return end

    def unhold(self) -> None:
        self.tell("unhold")
        del self.holds[0]

    def take(self, begin: int, end: int, stream: str) -> None:
        last = self.entries[end - 1]
        terminal = (last.end - 1) % self.c.gpu_ring
        if self.here.span > 1:
            self.tell("acquire_span", self.here.span, begin, end)
        else:
            self.tell("acquire", begin)
        if self.c.share and last.number < self.waited:
            self.counts["copied_waits_shared"] += 1
        else:
            self.call("copied wait", WAIT, ENGINE, begin, last.number, event=f"copied[{terminal}]", stream=stream,
                      group=last.end)
            self.counts["copied_waits"] += 1
            self.waited = last.end
        for number in range(begin, end):
            self.tell("read", number)
            self.submit(ENGINE, stream, (("slot", number % self.c.gpu_ring), False, "D2H read"))
            self.accesses += 1  # of the image that it goes to

    def give_back(self, pending: list[tuple[int, int, bool]], stream: str) -> None:
        begin, self.released, skipped = pending.pop(0)
        if not skipped:
            self.tell("release", begin)
        self.unrecorded.append(skipped)
        if not self.c.share or self.released >= self.entries[self.consumed].end:
            self.record_released(stream)

    def record_released(self, stream: str) -> None:
        self.record_used(self.consumed, self.released, stream, len(self.unrecorded), all(self.unrecorded))
        self.unrecorded.clear()
        self.release(ENGINE, "consumed")
        self.consumed = self.released

    def record_used(self, begin: int, end: int, stream: str, released: int, skipped: bool = False) -> None:
        """One record for what was given back so often; it covers the slots of all of it."""
        event = f"used[{(end - 1) % self.c.gpu_ring}]"
        self.call("used record", RECORD, ENGINE, begin, end - 1, event=event, stream=stream, skipped=skipped)
        self.counts["used_records"] += 1
        self.counts["used_records_shared"] += released - 1
        self.uses += 1
        for number in range(begin, end):
            self.last_use[number % self.c.gpu_ring] = (self.uses, event)

    def end(self, stream: str) -> _Actor:
        here = self.here
        if here.stop_at is None:
            while self.holds:
                self.unhold()
                yield lambda: True
            if here.drains:
                self.tell("drain", here.stream)
                self.steps.append(Step(Kind.SYNC_STREAM, ENGINE, stream))
            self.tell("finish")
            self.call("end query", QUERY, ENGINE, 0, stream=COPY, optional=not here.drains, does=here.drains)
        else:
            self.settle()
            self.tell("abort")
        self.stopped = True
        thread = ENGINE if here.drains else ISSUER
        self.acquire(ISSUER, "listed")
        self.finish_host_ring(thread, COPY)
        if not here.drains:
            self.call("end wait", SYNC_STREAM, ISSUER, 0, stream=COPY)
        self.release(ISSUER, "done")
        self.acquire(ENGINE, "done")
        read = [(begin, end) for begin, end, skipped in self.pending if not skipped]
        if not self.c.share:
            for begin, end in read:
                self.record_used(begin, end, stream, 1)
        elif self.unrecorded or read:
            end = self.pending[-1][1] if self.pending else self.released
            self.record_used(self.consumed, end, stream, len(self.unrecorded) + len(read))
        if stream != HOME:  # lent to this request alone: it is not touched after the request's end
            self.call("end record", RECORD, ENGINE, 0, event="begin fence", stream=stream)

    def close(self) -> None:
        self.tell("close")
        for slot in sorted(self.last_use):
            if self.last_use[slot] == self.last_use.get(slot - 1):
                continue
            self.call("closing wait", SYNC_EVENT, ISSUER, slot, event=self.last_use[slot][1])
        self.release(ISSUER, "done")
        self.acquire(ENGINE, "done")
        self.free(slots=not self.c.lent)

    def free(self, slots: bool) -> None:
        self.steps.append(Step(Kind.SYNC_DEVICE, ENGINE))
        freed: list[Place] = [("buffer", b) for b in range(self.c.host_ring) if self.pinned[b]]
        if slots:
            freed += [("slot", s) for s in range(self.c.gpu_ring)]
        self.host(ENGINE, *((place, True, "free") for place in freed))

    # --- the engine with a stager alone ---------------------------------------------------------------------------

    def stager_engine(self) -> _Actor:
        self.tell("open")
        for number, here in enumerate(self.c.passes):
            if number:
                self.begin_request()
            self.rewrite_sources()
            self.tell("start", number)
            self.list_entries(here.entries)
            self.release(ENGINE, "available")
            self.start(self.worker())
            stop = len(self.jobs) if here.stop_at is None else here.stop_at
            for entry in self.jobs[:stop]:
                yield partial(self.is_ready, entry.job)
                self.tell("stage", entry.number, entry.job)
                buffer = entry.job % self.c.host_ring
                self.acquire(ENGINE, f"ready[{buffer}]")
                source = ((("buffer", buffer), False, "H2D read"),) if self.pinned[buffer] else ()
                self.submit(ENGINE, COPY, *source, (("row", entry.number), True, "H2D write"))
                self.submit(ENGINE, COPY, (("row", entry.number), False, "D2H read"))
                self.accesses += 1  # of the image that it goes to
                self.dma_submitted(ENGINE, entry, COPY)
            yield lambda: True
            self.tell("settle_stager", self.counts["host_reuse_waits"], self.accesses)
            self.tell("finish")
            self.stopped = True
            self.finish_host_ring(ENGINE, COPY)
            self.final.append(dict(self.counts))
        self.tell("close")
        self.free(slots=False)
        yield lambda: True
