"""The contract on the streams in plain Python: what a streamer counts, and in what order its issuer makes its calls.

It shares no code with the core; its groups are the self-test's oracle's. It holds no threads and no time: for a request it knows the one sequence of calls
that the issuer makes, how far the engine lets it come, and what each call is counted as. What threads decide, the
point at which an issuer was stopped, is found again among the points at which it may stop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from strata.tools.selftest.oracle import Oracle, ownership_groups

#: Direct groups are never longer, whatever is asked for.
MOST_DIRECT = 32

KINDS = ("direct", "staged")


@dataclass(frozen=True)
class Item:
    """One entry: the sizes of its segments that are not empty, and whether a worker has to gather it."""

    sizes: tuple[int, ...]
    staged: bool

    @property
    def kind(self) -> str:
        """``direct`` or ``staged``."""
        return KINDS[self.staged]

    @property
    def calls(self) -> int:
        """Copies that it takes: a staged entry's segments come from one buffer."""
        return min(len(self.sizes), 1) if self.staged else len(self.sizes)


@dataclass(frozen=True)
class Batches:
    """How many entries share a dependency, clamped to the rings."""

    copy: int
    stage: int
    stage_copy: int

    @classmethod
    def clamped(cls, copy: int, stage: int, stage_copy: int, gpu_ring: int, host_ring: int) -> Batches:
        return cls(
            max(1, min(copy, gpu_ring, MOST_DIRECT)),
            max(1, min(stage, host_ring)),
            max(1, min(stage_copy, gpu_ring, host_ring)),
        )


@dataclass(frozen=True)
class Step:
    """One thing that the issuer does: a HIP call, or none, about an entry; and what it is counted as.

    ``may_stop``: an issuer that is told to stop does so before this step.
    """

    function: str
    entry: int
    counted: tuple[tuple[str, int], ...] = ()
    issued: int = 0
    may_stop: bool = False


@dataclass
class Slots:
    """What a streamer remembers of its slots between requests: which record covers each one's last use.

    Records are numbered from 1 in the order in which they are made; 0: nobody has used the slot.
    """

    gpu_ring: int
    share: bool = False
    order: list[int] = field(default_factory=list)
    records: int = 0
    #: The latest one that the copy stream has waited for.
    waited: int = 0
    lent: bool = False
    stream: int | None = None
    #: A begin that failed later has waited for the last request's end on its own stream: that is waited for once.
    passed: bool = False

    def __post_init__(self) -> None:
        self.order = [0] * self.gpu_ring

    def begin_waits(self, lent: bool, stream: int) -> list[int]:
        """Compute streams that the copy stream waits for before the request."""
        others = [] if self.passed or self.stream is None or self.stream == stream else [self.stream]
        return others + ([stream] if lent else [])

    def begin(self, lent: bool, stream: int) -> None:
        """Slots that are lent, or were in the last request, are fresh behind the fence."""
        if self.stream not in (None, stream):
            self.waited = self.records
        if lent or self.lent:
            self.order = [0] * self.gpu_ring
        self.lent, self.stream, self.passed = lent, stream, False

    def record(self, entries: Iterable[int]) -> int:
        """One record that covers the uses of some entries; its number."""
        self.records += 1
        for entry in entries:
            self.order[entry % self.gpu_ring] = self.records
        return self.records


@dataclass(frozen=True)
class Taken:
    """What the engine has in hand, or has passed behind that: entries ``[begin, end)``.

    ``how``: ``entry``, ``span``, ``holes`` (a span of dropped entries alone), ``skipped`` or ``dropped``.
    """

    begin: int
    end: int
    how: str

    @property
    def held(self) -> bool:
        """Whether the engine gives it back; what it has passed comes with that."""
        return self.how in ("entry", "span", "holes")

    @property
    def is_read(self) -> bool:
        """Whether it makes a record, or shares one."""
        return self.how in ("entry", "span", "skipped")


class Request:
    """A request's list, its groups, and how far engine and issuer are."""

    def __init__(
        self, slots: Slots, host_ring: int, batches: Batches, pinned: Sequence[bool], begin_waits: int, grouped: bool
    ) -> None:
        self.slots = slots
        self.share = slots.share
        self.ring = slots.gpu_ring
        self.host_ring = host_ring
        self.batches = batches
        self.pinned = pinned
        self.grouped = grouped
        self.order_before = list(slots.order)
        self.waited_before = slots.waited
        #: Of each entry that is consumed: which record covers its slot's last use.
        self.cover: list[int] = []
        self.items: list[Item] = []
        self.jobs: list[int] = []
        #: Of each extension, which entries are staged.
        self.parts: list[list[bool]] = []
        pageable = frozenset(buffer for buffer, is_pinned in enumerate(pinned) if not is_pinned)
        self.oracle = Oracle(self.ring, host_ring, batches.copy, batches.stage, batches.stage_copy, pageable)
        self.groups: list[tuple[int, int]] = []
        #: Exclusive end, in jobs, of each job's ownership group; and which entry a job is.
        self.owner_ends: list[int] = []
        self.job_entries: list[int] = []
        #: Entries that the engine does not want, and those of them that nobody had taken by then.
        self.unwanted: set[int] = set()
        self.dropped: set[int] = set()
        self.acquired = 0
        self.released = 0
        self.consumed = 0
        #: Releases without a record of their own so far.
        self.pending = 0
        #: Entries below this lie in groups that the compute stream has waited for.
        self.waited = 0
        self.taken: list[Taken] = []
        self.engine = Counter(begin_waits=begin_waits)

    # --- the list ---------------------------------------------------------------------------------------------

    def extend(self, items: Sequence[Item]) -> None:
        """Append entries; neither kind of group crosses the end of what was there."""
        for entry, item in enumerate(items, len(self.items)):
            self.items.append(item)
            self.jobs.append(len(self.job_entries) if item.staged else -1)
            if item.staged:
                if not self.job_entries:
                    self.engine["pageable_buffers"] += list(self.pinned).count(False)
                self.job_entries.append(entry)
        self.parts.append([item.staged for item in items])
        self.groups = [(group.begin, group.end) for group in self.oracle.groups(self.parts)]
        owned = ownership_groups(len(self.job_entries), self.host_ring, self.batches.stage, list(map(sum, self.parts)))
        self.owner_ends = [group[-1] + 1 for group in owned for _ in group]

    def group_end(self, entry: int) -> int:
        """Exclusive end of an entry's group."""
        return next(end for begin, end in self.groups if begin <= entry < end)

    @property
    def limit(self) -> int:
        """How many entries the issuer comes to publish while the engine does nothing more."""
        return max((end for _, end in self.groups if end <= self.consumed + self.ring), default=0)

    # --- what the issuer does -----------------------------------------------------------------------------------

    def uses(self, upto: int) -> Iterator[tuple[int, int, int, bool]]:
        """Each group, the latest use of its slots, and whether the copy stream has to wait for that."""
        waited = self.waited_before
        for begin, end in self.groups:
            if begin >= upto:
                return
            latest = max(
                self.cover[entry - self.ring] if entry >= self.ring else self.order_before[entry]
                for entry in range(begin, end)
            )
            waits = latest > (waited if self.share else 0)
            waited = max(waited, latest)
            yield begin, end, latest, waits

    def steps(self, upto: int) -> Iterator[Step]:
        """Everything that the issuer does until it has published `upto` entries, in order."""
        for begin, end, latest, waits in self.uses(upto):
            kind = self.items[begin].kind
            if waits:
                yield Step("hipStreamWaitEvent", begin, ((f"{kind}_reuse_waits", 1),), may_stop=True)
            elif latest:
                yield Step("", begin, ((f"{kind}_reuse_waits_shared", 1),), may_stop=True)
            if self.grouped and (kind == "direct" or self.pinned[self.jobs[begin] % self.host_ring]):
                yield from self._one_call(begin, end)
            else:
                for entry in range(begin, end):
                    yield from self._copies(entry)
            yield Step("hipEventRecord", end - 1, ((f"{kind}_copied_records", 1),), issued=end)

    def _copies(self, entry: int) -> Iterator[Step]:
        item = self.items[entry]
        if entry in self.dropped:
            counted = (("dropped", 1), ("dropped_bytes", sum(item.sizes)), ("jobs passed", int(item.staged)))
            yield Step("", entry, counted, may_stop=True)
        else:
            for call in range(item.calls):
                yield Step("hipMemcpyAsync", entry, ((f"{item.kind}_copy_calls", 1),), may_stop=call == 0)
            whole = ((f"{item.kind}_copies", 1), (f"{item.kind}_bytes", sum(item.sizes)))
            yield Step("", entry, whole, may_stop=item.calls == 0)
        yield from self._owned(entry)

    def _owned(self, entry: int) -> Iterator[Step]:
        """What the last job of an ownership group brings, once its copy is submitted."""
        job = self.jobs[entry]
        if job >= 0 and self.owner_ends[job] == job + 1:
            yield Step("hipEventRecord", entry, (("dma_done_records", 1),))

    def _one_call(self, begin: int, end: int) -> Iterator[Step]:
        kind = self.items[begin].kind
        copied = [entry for entry in range(begin, end) if entry not in self.dropped]
        passed = [self.items[entry] for entry in range(begin, end) if entry in self.dropped]
        if passed:
            counted: tuple[tuple[str, int], ...] = (
                ("dropped", len(passed)), ("dropped_bytes", sum(sum(item.sizes) for item in passed)),
                ("jobs passed", sum(item.staged for item in passed)),
            )
            yield Step("", begin, counted, may_stop=True)
        calls = [(entry, self.items[entry].calls) for entry in copied if self.items[entry].calls]
        counted = (
            (f"{kind}_copy_calls", sum(each for _, each in calls)), (f"{kind}_copies", len(copied)),
            (f"{kind}_bytes", sum(sum(self.items[entry].sizes) for entry in copied)),
        )
        if calls:
            yield Step("hipMemcpyBatchAsync", calls[0][0], (*counted, ("batch_calls", 1)), may_stop=not passed)
        else:
            yield Step("", begin, counted, may_stop=not passed)
        for entry in range(begin, end):
            yield from self._owned(entry)

    # --- what is counted ------------------------------------------------------------------------------------------

    def submitted(self, counted: Counter[str]) -> int:
        """Jobs whose copies are submitted, or that were dropped and passed."""
        return counted["staged_copies"] + counted["jobs passed"]

    def published_jobs(self, counted: Counter[str]) -> int:
        """Jobs below this lie in ownership groups whose `dma_done` is recorded."""
        ends = sorted(set(self.owner_ends))
        return ([0, *ends])[counted["dma_done_records"]]

    def host_waits(self, counted: Counter[str]) -> tuple[list[int], list[int]]:
        """The ownership groups, one for each job, that workers have waited for at least and at most so far."""
        published = self.published_jobs(counted)
        groups = [self.owner_ends[job - self.host_ring] for job in range(self.host_ring, len(self.job_entries))]
        return groups[: max(0, self.submitted(counted) - self.host_ring)], [end for end in groups if end <= published]

    def own_host_waits(self, groups: Sequence[int]) -> int:
        """Those that are waited for by a call: with sharing one each."""
        return len(set(groups)) if self.share else len(groups)

    def fence(self, counted: Counter[str]) -> int:
        """1 where the last submitted job did not end its ownership group, and the request is at its end."""
        last = self.submitted(counted)
        return int(last > 0 and self.published_jobs(counted) < last)

    def states(self, upto: int) -> list[tuple[Counter[str], int, bool]]:
        """Where the issuer may be on its way: what is counted by then, what is issued, whether it may stop there."""
        counted: Counter[str] = Counter()
        issued = 0
        found = []
        for step in self.steps(upto):
            found.append((counted.copy(), issued, step.may_stop))
            counted.update(dict(step.counted))
            issued = step.issued or issued
        found.append((counted, issued, True))
        return found

    # --- what the engine does ---------------------------------------------------------------------------------------

    def must_flush(self, last: int) -> bool:
        """Whether what is pending is recorded before an entry may be waited for."""
        return self.released > self.consumed and self.group_end(last) > self.consumed + self.ring

    def can_take(self) -> bool:
        """Whether the next entry is or will be published without a further release."""
        return self.group_end(self.acquired) <= self.consumed + self.ring

    def needs_wait(self, last: int) -> bool:
        """Whether the compute stream has to wait for an entry's group."""
        return not (self.share and last < self.waited)

    def _take(self, end: int, how: str) -> int:
        begin, self.acquired = self.acquired, end
        if how in ("entry", "span"):
            if self.needs_wait(end - 1):
                self.engine["copied_waits"] += 1
                self.waited = self.group_end(end - 1)
            else:
                self.engine["copied_waits_shared"] += 1
        self.taken.append(Taken(begin, end, how))
        return begin

    def acquire(self) -> int:
        """Take the next entry; returns its number."""
        return self._take(self.acquired + 1, "entry")

    def longest_span(self, limit: int, addresses: Sequence[int], slot_bytes: int) -> int:
        """The end of the longest run of next entries that lie at one distance in one turn and one extension."""
        begin, end = self.acquired, self.acquired + 1
        cuts = {sum(map(len, self.parts[: part + 1])) for part in range(len(self.parts))}
        while end - begin < limit and end not in cuts and end % self.ring:
            slots = [addresses[entry % self.ring] for entry in range(begin, end + 1)]
            strides = {after - before for before, after in pairwise(slots)}
            if len(strides) > 1 or min(strides) < slot_bytes:
                break
            end += 1
        return end

    def within_window(self, end: int) -> int:
        """Where a run is cut, so that its last group needs no release; one entry is left of it in any case."""
        while end > self.acquired + 1 and self.group_end(end - 1) > self.consumed + self.ring:
            end -= 1
        return end

    def is_read(self, begin: int, end: int) -> bool:
        """Whether any of some entries is wanted."""
        return not self.unwanted.issuperset(range(begin, end))

    def acquire_span(self, end: int) -> None:
        """Take all entries up to an end."""
        self._take(end, "span" if self.is_read(self.acquired, end) else "holes")

    def skip(self) -> None:
        """Pass the next entry; behind held ones its turn comes with theirs."""
        unwanted = self.acquired in self.unwanted
        self.engine["skipped"] += not unwanted
        self._take(self.acquired + 1, "dropped" if unwanted else "skipped")
        if len(self.taken) == 1:
            self._give_back(self.taken.pop())

    def drop(self, entries: Iterable[int], *, in_time: bool) -> None:
        """Mark entries that the threads certainly have, or certainly have not reached."""
        new = set(entries) - self.unwanted
        self.unwanted |= new
        if in_time:
            self.dropped |= new
        else:
            self.engine["dropped_late"] += len(new)

    def certain(self) -> tuple[list[int], list[int]]:
        """Coming entries that nobody can have taken, and such as are copied, once the threads have settled."""
        counted, issued, _ = self.states(self.limit)[-1]
        reach = self.published_jobs(counted) + self.host_ring
        coming = range(self.acquired, len(self.items))
        return (
            [entry for entry in coming if (entry >= issued and self.jobs[entry] < 0) or self.jobs[entry] >= reach],
            [entry for entry in coming if entry < issued],
        )

    def records_of_release(self) -> list[int]:
        """The last entry of each record that the next release makes."""
        made, consumed, pending = [], self.consumed, self.pending
        for number, each in enumerate(self.taken):
            if number and each.held:
                break
            if not each.is_read and not pending:
                consumed = each.end
                continue
            pending += each.is_read
            if not self.share or each.end >= self.group_end(consumed):
                made.append(each.end - 1)
                pending, consumed = 0, each.end
        return made

    def records_of_skip(self) -> bool:
        """Whether passing the next entry, with nothing held, makes a record."""
        how = "dropped" if self.acquired in self.unwanted else "skipped"
        return self._records(Taken(self.acquired, self.acquired + 1, how))

    def release(self, records: int | None = None) -> None:
        """The oldest of what is held, and with it what was passed behind it; or only until so many records are made."""
        made = self.engine["used_records"]
        first = True
        while self.taken and (first or not self.taken[0].held):
            if records is not None and self.engine["used_records"] - made == records and self._records(self.taken[0]):
                return
            self._give_back(self.taken.pop(0))
            first = False

    def _records(self, each: Taken) -> bool:
        if not each.is_read and not self.pending:
            return False
        return not self.share or each.end >= self.group_end(self.consumed)

    def _give_back(self, each: Taken) -> None:
        records = self._records(each)
        self.pending += each.is_read
        self.released = each.end
        if records:
            self.flush()
        elif not self.pending:
            self._consume(each.end)

    def flush(self) -> None:
        """Record what is pending, if anything is."""
        if self.released > self.consumed:
            self.slots.record(range(self.consumed, self.released))
            self.engine["used_records"] += 1
            self.engine["used_records_shared"] += self.pending - 1
            self.pending = 0
            self._consume(self.released)

    def _consume(self, end: int) -> None:
        self.cover += [self.slots.order[entry % self.ring] for entry in range(self.consumed, end)]
        self.consumed = end

    @property
    def only_dropped_left(self) -> bool:
        """Whether nothing is held, and nobody wants what is left."""
        return not self.taken and not self.is_read(self.acquired, len(self.items))

    def finish(self) -> None:
        """Pass what is left, and record what is pending."""
        while self.acquired < len(self.items):
            if self.must_flush(self.acquired):
                self.flush()
            self.skip()
        self.flush()

    def abort(self) -> None:
        """Kernels may read what was acquired and has no record yet."""
        held = [each for each in self.taken if each.how in ("entry", "span")]
        if self.share:
            reads = self.pending + len(held)
            if reads:
                self.slots.record(range(self.consumed, self.acquired))
                self.engine["used_records"] += 1
                self.engine["used_records_shared"] += reads - 1
        else:
            for each in held:
                self.slots.record(range(each.begin, each.end))
                self.engine["used_records"] += 1

    def over(self, waits: int) -> None:
        """The issuer has made so many reuse waits: the last one is what the copy stream has waited for."""
        made = [latest for _, _, latest, needed in self.uses(self.limit) if needed][:waits]
        self.slots.waited = max([self.slots.waited, *made])
