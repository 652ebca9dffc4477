"""Bookkeeping: resident bytes that an entry of one segment takes, in its list and in a running request."""

from __future__ import annotations

import gc
import sys

import numpy as np

import strata
from benchmarks.measuring import Row, command, null_runtime, show

N = 4_000_000
NBYTES = 16


def resident() -> int:
    """Bytes of this process in memory."""
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def measure(streamer: strata.ExpertStreamer, address: int, pinned: bool) -> tuple[float, float]:
    """Bytes an entry of the list, and of the request that runs it."""
    addresses = np.full(N, address, np.uint64)
    nbytes = np.full(N, NBYTES, np.int64)
    before = resident()
    copies = strata.ExpertCopies(addresses, nbytes, pinned)
    listed = resident()
    request = streamer.begin(copies)
    running = resident()
    request.abort()
    return (listed - before) / N, (running - listed) / N


def main() -> None:
    """Measure and print."""
    null_runtime()
    weights = strata.pinned_empty(NBYTES, np.uint8)
    rows: list[Row] = []
    with strata.ExpertStreamer(NBYTES, gpu_ring=96, host_ring=16, timing=False) as streamer:
        for name, pinned in (("direct", True), ("staged", False)):
            measure(streamer, weights.ctypes.data, pinned)  # the host ring, and what the heap keeps
            listed, running = measure(streamer, weights.ctypes.data, pinned)
            total = listed + running
            rows.append((f"{name}: in the list", f"{listed:.1f} B", "", None))
            rows.append((f"{name}: in the request", f"{running:.1f} B", "", None))
            rows.append((f"{name}: together", f"{total:.1f} B", "64 B", total <= 64))
    show(f"bookkeeping of {N:,} entries of one segment, per entry", rows)


if __name__ == "__main__":
    sys.exit(command("benchmarks.memory", __doc__, main, "psutil"))
