"""The contract on the streams in plain Python: what a streamer counts, and in what order its issuer makes its calls.

It shares no code with the core; its groups are the self-test's oracle's. It holds no threads and no time: for a request it knows the one sequence of calls
that the issuer makes, how far the engine lets it come, and what each call is counted as. What threads decide, the
point at which an issuer was stopped, is found again among the points at which it may stop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
    """What a streamer remembers of its slots between requests: whether anybody has used them."""

    gpu_ring: int
    used: list[bool] = field(default_factory=list)
    lent: bool = False
    stream: int | None = None

    def __post_init__(self) -> None:
        self.used = [False] * self.gpu_ring

    def begin_waits(self, lent: bool, stream: int) -> list[int]:
        """Compute streams that the copy stream waits for before the request."""
        others = [] if self.stream is None or self.stream == stream else [self.stream]
        return others + ([stream] if lent else [])

    def begin(self, lent: bool, stream: int) -> None:
        """Slots that are lent, or were in the last request, are fresh behind the fence."""
        if lent or self.lent:
            self.used = [False] * self.gpu_ring
        self.lent, self.stream = lent, stream


class Request:
    """A request's list, its groups, and how far engine and issuer are."""

    def __init__(
        self, slots: Slots, host_ring: int, batches: Batches, pinned: Sequence[bool], begin_waits: int, grouped: bool
    ) -> None:
        self.slots = slots
        self.ring = slots.gpu_ring
        self.host_ring = host_ring
        self.batches = batches
        self.pinned = pinned
        self.grouped = grouped
        self.used_before = list(slots.used)
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
        self.acquired = 0
        self.consumed = 0
        #: Entries between the two: True where the engine holds the slot, False where it was skipped.
        self.between: dict[int, bool] = {}
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

    def steps(self, upto: int) -> Iterator[Step]:
        """Everything that the issuer does until it has published `upto` entries, in order."""
        for begin, end in self.groups:
            if begin >= upto:
                return
            kind = self.items[begin].kind
            slots = [entry % self.ring for entry in range(begin, end)]
            if begin >= self.ring or any(self.used_before[slot] for slot in slots):
                yield Step("hipStreamWaitEvent", begin, ((f"{kind}_reuse_waits", 1),), may_stop=True)
            if self.grouped and (kind == "direct" or self.pinned[self.jobs[begin] % self.host_ring]):
                yield from self._one_call(begin, end)
            else:
                for entry in range(begin, end):
                    yield from self._copies(entry)
            yield Step("hipEventRecord", end - 1, ((f"{kind}_copied_records", 1),), issued=end)

    def _copies(self, entry: int) -> Iterator[Step]:
        item = self.items[entry]
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
        items = self.items[begin:end]
        kind = items[0].kind
        calls = sum(item.calls for item in items)
        counted = (
            (f"{kind}_copy_calls", calls), (f"{kind}_copies", len(items)),
            (f"{kind}_bytes", sum(sum(item.sizes) for item in items)),
        )
        yield Step("hipMemcpyBatchAsync" if calls else "", begin, counted, may_stop=True)
        for entry in range(begin, end):
            yield from self._owned(entry)

    # --- what is counted ------------------------------------------------------------------------------------------

    def submitted(self, counted: Counter[str]) -> int:
        """Jobs whose copies are submitted."""
        return counted["staged_copies"]

    def published_jobs(self, counted: Counter[str]) -> int:
        """Jobs below this lie in ownership groups whose `dma_done` is recorded."""
        ends = sorted(set(self.owner_ends))
        return ([0, *ends])[counted["dma_done_records"]]

    def host_waits(self, counted: Counter[str]) -> tuple[int, int]:
        """Least and most waits of workers for a buffer, where the issuer has come as far as is counted."""
        least = max(0, self.submitted(counted) - self.host_ring)
        published = self.published_jobs(counted)
        most = sum(
            self.owner_ends[job - self.host_ring] <= published for job in range(self.host_ring, len(self.job_entries))
        )
        return least, most

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

    def can_take(self) -> bool:
        """Whether the next entry is or will be published without a further release."""
        return self.group_end(self.acquired) <= self.consumed + self.ring

    def acquire(self) -> int:
        """Take the next entry; returns its number."""
        self.engine["copied_waits"] += 1
        self.between[self.acquired] = True
        self.acquired += 1
        return self.acquired - 1

    def skip(self) -> None:
        """Pass the next entry; behind held ones its turn comes with theirs."""
        self.engine["skipped"] += 1
        self.between[self.acquired] = False
        self.acquired += 1
        if self.acquired - 1 == self.consumed:
            self.consume()

    def release(self) -> None:
        """The oldest held slot, and with it what was skipped behind it."""
        self.consume()
        while self.between.get(self.consumed) is False:
            self.consume()

    def releases(self) -> int:
        """Records that the next release makes."""
        count = 1
        while self.between.get(self.consumed + count) is False:
            count += 1
        return count

    def consume(self) -> None:
        """The oldest entry that was taken has its record."""
        del self.between[self.consumed]
        self._record(self.consumed)
        self.consumed += 1

    def _record(self, entry: int) -> None:
        self.engine["used_records"] += 1
        self.slots.used[entry % self.ring] = True

    @property
    def held(self) -> list[int]:
        """Entries whose slots the engine holds, oldest first."""
        return [entry for entry, taken in sorted(self.between.items()) if taken]

    def abort(self) -> None:
        """Kernels may read what was acquired and not released."""
        for entry in self.held:
            self._record(entry)
