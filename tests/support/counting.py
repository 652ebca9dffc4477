"""What a request's counters must be: groups by the planner's oracle, reuse by looking at each slot."""

from __future__ import annotations

from collections.abc import Sequence

import strata
from tests.planner.oracle import oracle_ends, oracle_ownership_ends
from tests.support.sources import Material


class SlotHistory:
    """Which slots of a ring were ever used: a group of fresh slots needs no reuse wait."""

    def __init__(self, gpu_ring: int) -> None:
        self.gpu_ring = gpu_ring
        self.used: set[int] = set()

    def forget(self) -> None:
        """Behind a begin fence every slot is fresh."""
        self.used.clear()

    def expected(
        self,
        material: Material,
        settings: strata.BatchSettings,
        host_ring: int,
        *,
        lengths: Sequence[int] | None = None,
        host_pinned: Sequence[bool] | None = None,
        skipped: int = 0,
        begin_waits: int = 0,
        long_prefill: bool = True,
    ) -> dict[str, int]:
        """Counters of one complete request, given in extensions of the given lengths."""
        n = len(material)
        lengths = [n] if lengths is None else lengths
        assert sum(lengths) == n
        ends_of_lists = [sum(lengths[: k + 1]) for k in range(len(lengths))]
        jobs = [int(j) for j in material.copies.jobs()]
        batches = settings if long_prefill else strata.BatchSettings()
        ends = oracle_ends(
            jobs, self.gpu_ring, host_ring, batches.copy_batch, batches.stage_batch, batches.stage_copy_batch,
            host_pinned, ends_of_lists,
        )
        ownership = oracle_ownership_ends(jobs, host_ring, batches.stage_batch, ends_of_lists)
        counts = dict.fromkeys((f"{kind}_{what}" for kind in ("direct", "staged") for what in (
            "copies", "copy_calls", "bytes", "copied_records", "reuse_waits")), 0)
        begin = 0
        for end in sorted(set(ends)):
            kind = "direct" if jobs[begin] == -1 else "staged"
            slots = {entry % self.gpu_ring for entry in range(begin, end)}
            counts[f"{kind}_copied_records"] += 1
            counts[f"{kind}_reuse_waits"] += bool(slots & self.used)
            self.used |= slots
            for entry in range(begin, end):
                counts[f"{kind}_copies"] += 1
                counts[f"{kind}_bytes"] += material.payload(entry)
                full = len(material.segments[entry])
                counts[f"{kind}_copy_calls"] += full if kind == "direct" else min(full, 1)
            begin = end
        staged = [job for job in jobs if job != -1]
        return counts | {
            "dma_done_records": len(set(ownership)),
            "host_reuse_waits": sum(job >= host_ring for job in staged),
            "fences": 0,
            "fence_errors": 0,
            "pageable_buffers": 0 if host_pinned is None or not staged else list(host_pinned).count(False),
            "copied_waits": n - skipped,
            "used_records": n,
            "skipped": skipped,
            "begin_waits": begin_waits,
        }
