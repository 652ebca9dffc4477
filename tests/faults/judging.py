"""What a failed request has to look like: its counters against the log of HIP calls, its error against the fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import strata
from strata.runtime.software.control import LoggedCall
from tests.faults.scenario import Configuration
from tests.faults.threads import ENGINE, ISSUER, WORKER
from tests.planner.oracle import oracle_ends
from tests.support.sources import Material

#: HIP's own names for the statuses that the tests use.
NAMES = {2: "hipErrorOutOfMemory", 3: "hipErrorNotInitialized", 719: "hipErrorLaunchFailure"}

#: They give the thread's last error, not a status of their own: failing them means nothing.
NO_STATUS = ("hipGetLastError", "hipPeekAtLastError")


@dataclass
class Evidence:
    """All that is known of one request."""

    configuration: Configuration
    material: Material
    ends_of_lists: Sequence[int]
    log: list[LoggedCall]
    events: dict[int, str]

    def made(self, role: str, function: str, of: str = "") -> list[LoggedCall]:
        """Calls that were made and did not fail; `of`: only those on events whose name begins so."""
        return [
            call
            for call in self.log
            if call.thread == role and call.function == function and not call.intercepted
            and self.events.get(call.event, "").startswith(of)
        ]

    @property
    def struck(self) -> LoggedCall | None:
        """The call that failed."""
        return next((call for call in self.log if call.intercepted), None)

    @property
    def mended(self) -> bool:
        """Whether the thread made the same call again at once, with success: giving a device back is tried twice."""
        struck = self.struck
        if struck is None or struck.function != "hipSetDevice" or struck.thread != ENGINE:
            return False
        later = [
            call for call in self.log
            if call.thread == ENGINE and call.number > struck.number and call.function not in NO_STATUS
        ]
        return bool(later) and later[0].function == "hipSetDevice"

    @property
    def pinned(self) -> list[bool]:
        """Which buffers of the host ring could be pinned; one that was refused leaves its bytes to a later one."""
        tried = [call for call in self.log if call.function == "hipHostMalloc"]
        room = self.configuration.host_ring - self.configuration.pageable
        found = []
        for buffer in range(self.configuration.host_ring):
            refused = buffer < len(tried) and tried[buffer].intercepted
            found.append(not refused and room > 0)
            room -= found[-1]
        return found

    @property
    def group_ends(self) -> list[int]:
        """Exclusive ends of the groups, in order."""
        own, limits = self.configuration, self.configuration.batches
        jobs = [int(job) for job in self.material.copies.jobs()]
        return sorted(set(oracle_ends(jobs, own.gpu_ring, own.host_ring, *limits, self.pinned, self.ends_of_lists)))


def events_of(streamer: strata.ExpertStreamer) -> dict[int, str]:
    """Names of a streamer's events, by handle."""
    return {handle: name for name, handle in streamer._core.handles().items()}


def counters_are_true(counters: strata.Counters, issued: int, evidence: Evidence) -> None:
    """Everything that is counted was done, and everything that was done is counted: by the log of calls."""
    made, material = evidence.made, evidence.material
    records = made(ISSUER, "hipEventRecord", "copied")
    assert counters.direct_copied_records + counters.staged_copied_records == len(records)
    # Published is what was recorded, and nothing else.
    assert issued == ([0, *evidence.group_ends])[len(records)]
    assert counters.direct_reuse_waits + counters.staged_reuse_waits == len(made(ISSUER, "hipStreamWaitEvent", "used"))
    owned = [call for role in (ISSUER, ENGINE) for call in made(role, "hipEventRecord", "dma_done")]
    assert counters.dma_done_records + counters.fences == len(owned)
    assert counters.host_reuse_waits == len(made(WORKER, "hipEventSynchronize", "dma_done"))
    assert counters.used_records == len(made(ENGINE, "hipEventRecord", "used"))
    assert counters.copied_waits == len(made(ENGINE, "hipStreamWaitEvent", "copied"))
    assert counters.begin_waits == len(made(ENGINE, "hipStreamWaitEvent", "begin fence"))
    # The copies: how far the issuer came in the list, entry by entry.
    passed = counters.direct_copies + counters.staged_copies
    jobs = material.copies.jobs()
    assert counters.direct_copies == sum(job == -1 for job in jobs[:passed])
    for kind in ("direct", "staged"):
        entries = [entry for entry in range(passed) if (jobs[entry] == -1) == (kind == "direct")]
        assert getattr(counters, f"{kind}_bytes") == sum(material.payload(entry) for entry in entries)
    assert issued <= passed
    calls = made(ISSUER, "hipMemcpyAsync")
    assert counters.batch_calls == len(made(ISSUER, "hipMemcpyBatchAsync"))
    if evidence.configuration.submission == "single":
        assert counters.direct_copy_calls + counters.staged_copy_calls == len(calls)
        for entry in range(len(material)):
            wanted = len(material.segments[entry]) if jobs[entry] == -1 else 1
            seen = sum(call.entry == entry for call in calls)
            assert seen == wanted if entry < passed else seen < wanted or wanted == 0, f"entry {entry}"
    else:
        # Each copy of a batch counts; only what goes from a pageable buffer is a call of its own.
        direct = [len(material.segments[entry]) for entry in range(passed) if jobs[entry] == -1]
        assert counters.direct_copy_calls == sum(direct)
        assert len(calls) <= counters.staged_copy_calls <= counters.staged_copies


def nothing_came_after(evidence: Evidence) -> None:
    """The issuer submits no further copy and publishes nothing once one of its own calls has failed."""
    struck = evidence.struck
    assert struck is not None
    if struck.thread == ISSUER:
        later = [call for call in evidence.log if call.number > struck.number and call.thread == ISSUER]
        assert not [call for call in later if call.function.startswith("hipMemcpy")]
        assert not [call for call in later if evidence.events.get(call.event, "").startswith("copied")]


def is_the_cause(
    error: strata.HipError, status: int, counters: strata.Counters | None, issued: int, evidence: Evidence
) -> None:
    """The error names the call that failed, the status, the entry and its slot."""
    struck = evidence.struck
    assert struck is not None
    assert (error.call, error.status, error.name) == (struck.function, status, NAMES[status])
    assert error.slot == (None if error.entry is None else error.entry % evidence.configuration.gpu_ring)
    assert isinstance(error.__context__, strata.HipError) is False, "one cause alone"
    if counters is None:
        return
    event = evidence.events.get(struck.event, "")
    staged = [entry for entry, job in enumerate(evidence.material.copies.jobs()) if job != -1]
    if struck.thread == WORKER:
        if struck.function == "hipEventSynchronize":
            # One worker of several may be held up with its job while others go on.
            first = evidence.configuration.host_ring
            nth = counters.host_reuse_waits + first
            near = staged[nth : nth + 1] if evidence.configuration.workers == 1 else staged[first : nth + 2]
            assert error.entry in near
        else:
            assert error.entry is None
    elif struck.thread == ISSUER:
        if error.entry is not None:
            assert "in the issuer's thread" in str(error)
        if event.startswith("dma_done") and struck.function == "hipEventRecord":
            assert error.entry == staged[counters.staged_copies - 1]
        elif struck.function in ("hipMemcpyAsync", "hipMemcpyBatchAsync", "hipStreamWaitEvent", "hipEventRecord"):
            assert error.entry == struck.entry
            assert issued <= error.entry
        else:
            assert error.entry is None
    elif event.startswith(("copied", "used")):
        assert error.entry is not None
        if struck.function != "hipEventQuery":
            assert error.entry == struck.entry
