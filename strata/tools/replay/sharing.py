"""What a request counts with shared dependencies, from its plan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strata._planner import CopyPlan

__all__ = ["shared_counts"]


def shared_counts(plan: CopyPlan, jobs: npt.NDArray[np.int64]) -> dict[str, int]:
    """Count the dependencies of a request that follows a like one, entry by entry, on the same streams.

    Parameters
    ----------
    plan : CopyPlan
        Of the whole list, at its settings.
    jobs : (entries,) int64
        -1 for a direct entry, else its job.

    Returns
    -------
    dict of str to int
        Every dependency counter, and those of what is shared.

    Notes
    -----
    A group makes one ``copied`` record and one wait for it, and the last release of a group one ``used`` record. So a
    slot's latest use is known by the group that it was in, and a reuse wait is needed where that group comes after all
    those that were waited for.
    """
    counts = dict(plan.counts())
    ends = plan.ends
    firsts = np.flatnonzero(np.diff(ends, prepend=-1)).tolist()
    latest = np.full(plan.gpu_ring, -1, np.int64)  # by slot: which group used it last
    waited = -1
    waits = {"direct": 0, "staged": 0}
    for number, first in enumerate(firsts + firsts):
        begin = first % plan.gpu_ring
        slots = slice(begin, begin + int(ends[first]) - first)
        use = int(latest[slots].max())
        if use > waited:
            waited = use
            waits["direct" if jobs[first] < 0 else "staged"] += number >= len(firsts)
        latest[slots] = number
    staged = int(np.count_nonzero(jobs >= 0))
    host_waits = len(np.unique(plan.ownership_ends[: max(0, staged - plan.host_ring)]))
    return counts | {
        "direct_reuse_waits": waits["direct"],
        "direct_reuse_waits_shared": counts["direct_reuse_waits"] - waits["direct"],
        "staged_reuse_waits": waits["staged"],
        "staged_reuse_waits_shared": counts["staged_reuse_waits"] - waits["staged"],
        "host_reuse_waits": host_waits,
        "host_reuse_waits_shared": counts["host_reuse_waits"] - host_waits,
        "copied_waits": len(firsts),
        "copied_waits_shared": len(plan) - len(firsts),
        "used_records": len(firsts),
        "used_records_shared": len(plan) - len(firsts),
    }
