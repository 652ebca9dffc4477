"""What the fixtures expect, worked out from the rules alone: groups, publication, records and waits.

Nothing here is shared with the planner, and nothing is clever: a group takes one entry after the other for as
long as no rule speaks against the next one, and counts are made by walking over the groups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Consumption", "Group", "Oracle", "ends_ownership", "fences", "ownership_groups", "records_before"]


@dataclass(frozen=True)
class Group:
    """The entries ``begin`` to ``end`` (exclusive), which share one ``copied`` record and one reuse wait."""

    begin: int
    end: int
    staged: bool


# --- ownership groups: jobs that share one dma_done record -------------------------------------------------


def ownership_groups(jobs: int, host_ring: int, batch: int, parts: Sequence[int] = ()) -> list[list[int]]:
    """Partition jobs 0 … `jobs` - 1.

    Parameters
    ----------
    jobs : int
    host_ring : int
        Buffers of the host ring.
    batch : int
        Most jobs that share a record, 1 … `host_ring`.
    parts : sequence of int, optional
        Jobs of each extension of the list; their sum is `jobs`. Default: one extension.

    Returns
    -------
    list of list of int
        The jobs of each group, in order.

    Notes
    -----
    A turn of the ring is cut at each multiple of the batch, counted from the turn's first buffer, whatever
    the list looks like; an extension's end is a cut of its own.
    """
    starts_of_parts = set()
    first = 0
    for size in parts:
        starts_of_parts.add(first)
        first += size
    groups: list[list[int]] = []
    for job in range(jobs):
        buffer = job % host_ring
        new = job == 0 or buffer == 0 or buffer % batch == 0 or job in starts_of_parts
        if new:
            groups.append([])
        groups[-1].append(job)
    return groups


def ends_ownership(job: int, groups: Iterable[Sequence[int]]) -> bool:
    """Whether the job is the last of its ownership group."""
    return any(group[-1] == job for group in groups)


def fences(submitted: int, groups: Iterable[Sequence[int]]) -> int:
    """Return how many fences the end of a request takes after `submitted` jobs: 0 or 1."""
    if submitted == 0:
        return 0
    return 0 if ends_ownership(submitted - 1, groups) else 1


def records_before(submitted: int, groups: Iterable[Sequence[int]]) -> int:
    """Return how many ownership groups were submitted to their end, one ``dma_done`` record each."""
    return sum(1 for group in groups if group[-1] < submitted)


# --- copy groups ---------------------------------------------------------------------------------------------


@dataclass
class Oracle:
    """The expected course of requests on one streamer, which remembers the slots that were used.

    Parameters
    ----------
    gpu_ring, host_ring : int
    copy_batch, stage_batch, stage_copy_batch : int
        Within their limits already.
    pageable : frozenset of int
        Buffers of the host ring that are not pinned.
    """

    gpu_ring: int
    host_ring: int
    copy_batch: int
    stage_batch: int
    stage_copy_batch: int
    pageable: frozenset[int] = frozenset()
    used: set[int] = field(default_factory=set)

    def groups(self, parts: Sequence[Sequence[bool]]) -> list[Group]:
        """Return the copy groups of a list.

        Parameters
        ----------
        parts : sequence of sequence of bool
            For each extension whether each of its entries is staged.
        """
        found: list[Group] = []
        entry = job = 0
        for part in parts:
            members: list[int] = []
            jobs: list[int] = []
            staged = False
            for kind in part:
                if members and not self._admits(members, jobs, staged, entry, kind, job):
                    found.append(Group(members[0], members[-1] + 1, staged))
                    members, jobs = [], []
                staged = kind
                members.append(entry)
                if kind:
                    jobs.append(job)
                    job += 1
                entry += 1
            if members:
                found.append(Group(members[0], members[-1] + 1, staged))
        return found

    def _admits(
        self, members: list[int], jobs: list[int], staged: bool, entry: int, kind: bool, job: int
    ) -> bool:
        """Whether a group (its entries, its jobs) may take one more entry, whose job would be `job`."""
        if kind is not staged:
            return False  # direct and staged entries do not mix
        if entry % self.gpu_ring == 0:
            return False  # the ring of slots begins anew
        if not staged:
            return len(members) < self.copy_batch
        if len(members) >= self.stage_copy_batch:
            return False
        if job % self.host_ring == 0:
            return False  # the ring of buffers begins anew
        # A pageable buffer's copy stands alone.
        return job % self.host_ring not in self.pageable and jobs[-1] % self.host_ring not in self.pageable

    def published(self, groups: Sequence[Group], consumed: int) -> int:
        """Return how many entries are published, in the end, while `consumed` entries were released."""
        count = 0
        for group in groups:
            if group.end > consumed + self.gpu_ring:
                break
            count = group.end
        return count

    def counts(self, parts: Sequence[Sequence[bool]], skipped: int = 0) -> dict[str, int]:
        """Return the records and waits of the next request, and take note of the slots that it uses.

        Parameters
        ----------
        parts : as for `groups`
        skipped : int
            Entries that the engine skips.

        Returns
        -------
        dict of str to int
            Names of `strata.Counters`.
        """
        groups = self.groups(parts)
        entries = sum(len(part) for part in parts)
        jobs_of_parts = [sum(part) for part in parts]
        jobs = sum(jobs_of_parts)
        owned = ownership_groups(jobs, self.host_ring, self.stage_batch, jobs_of_parts)
        waits = {True: 0, False: 0}
        records = {True: 0, False: 0}
        for group in groups:
            slots = {entry % self.gpu_ring for entry in range(group.begin, group.end)}
            if slots & self.used:
                waits[group.staged] += 1
            records[group.staged] += 1
            # The group is submitted only once every earlier use of its slots was recorded, so what it uses
            # counts for all groups behind it that come back to these slots.
            self.used |= slots
        return {
            "direct_copies": entries - jobs,
            "staged_copies": jobs,
            "direct_copied_records": records[False],
            "staged_copied_records": records[True],
            "direct_reuse_waits": waits[False],
            "staged_reuse_waits": waits[True],
            "dma_done_records": len(owned),
            "host_reuse_waits": max(0, jobs - self.host_ring),
            "fences": 0,
            "fence_errors": 0,
            "pageable_buffers": len(self.pageable) if jobs else 0,
            "copied_waits": entries - skipped,
            "used_records": entries,
            "skipped": skipped,
        }


# --- the engine's side -----------------------------------------------------------------------------------------


class Consumption:
    """How far `released` and `consumed` must be, and how far a span may go.

    Parameters
    ----------
    groups : sequence of Group
    gpu_ring : int
    share : bool
        Whether one record is made for what is given back of a copy group.
    """

    def __init__(self, groups: Sequence[Group], gpu_ring: int, share: bool) -> None:
        self._begins = [group.begin for group in groups]
        self._groups = groups
        self._gpu_ring = gpu_ring
        self._share = share
        self._pending = False
        self.released = self.consumed = self.records = 0

    def group_end(self, entry: int) -> int:
        """The end of the entry's copy group."""
        return self._groups[bisect_right(self._begins, entry) - 1].end

    def give_back(self, end: int, *, read: bool = True) -> None:
        """What was taken next has been given back, up to `end`; `read` where it takes a record."""
        within = end < self.group_end(self.consumed)
        self.released = end
        self._pending |= read
        if not self._pending:
            self.consumed = end
        elif not (self._share and within):
            self._record()

    def give_back_to(self, end: int) -> None:
        """Entry by entry, up to `end`."""
        while self.released < end:
            self.give_back(self.released + 1)

    def _record(self) -> None:
        self.records += self._pending
        self._pending = False
        self.consumed = self.released

    def asked(self, entry: int) -> None:
        """The engine asks for an entry: where its group does not fit, what is pending is recorded."""
        if self.group_end(entry) > self.consumed + self._gpu_ring:
            self._record()

    def may_hold(self, entry: int) -> bool:
        """Whether an entry can be published with what is held now."""
        return self.group_end(entry) <= self.released + self._gpu_ring

    def span_end(self, begin: int, end: int) -> int:
        """Where a span ends that could go on to `end` if its groups all fitted."""
        self.asked(end - 1)
        while end > begin + 1 and self.group_end(end - 1) > self.consumed + self._gpu_ring:
            end -= 1
        return end
