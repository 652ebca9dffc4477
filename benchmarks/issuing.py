"""Issuing: strata's own time an entry, over HIP calls that do nothing and a ring longer than the list."""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial

import numpy as np

import strata
from benchmarks.measuring import Row, command, median_ns, null_runtime, show
from benchmarks.native import load
from strata import _hip

N = 100_000
NBYTES = 64
ARMS = (strata.BatchSettings(1, 1, 1), strata.BatchSettings(8, 16, 16))


def main() -> None:
    """Measure and print."""
    null_runtime()
    loops = load()
    weights = strata.pinned_empty((N, NBYTES), np.uint8)
    copies = strata.ExpertCopies(np.uint64(weights.ctypes.data) + np.arange(N, dtype=np.uint64) * NBYTES,
                                 np.full(N, NBYTES, np.int64), True)
    events = np.array([_hip.create_event() for _ in range(2 * N)], np.uint64)
    rows: list[Row] = []
    for settings in ARMS:
        name = f"{settings.copy_batch}/{settings.stage_batch}/{settings.stage_copy_batch}"
        with strata.ExpertStreamer(NBYTES, gpu_ring=N + 1, settings=settings, timing=False) as streamer:
            samples = []
            for _ in range(8):
                began = time.perf_counter_ns()
                with streamer.begin(copies) as request:
                    loops.until_issued(request, N)
                    samples.append((time.perf_counter_ns() - began) / N)
                    loops.consume(request)
            # The first requests find slots that nobody used, and memory that nobody touched.
            whole = statistics.median(samples[3:])
            slots = np.array(streamer.slots[:N], np.uint64)
            bare = median_ns(partial(loops.issue_bare, copies.addresses, slots, events[:N], events[N:], NBYTES,
                                     settings.copy_batch, streamer.copy_stream)) / N
        rows.append((f"{name}: from begin until all are published", f"{whole:.0f} ns", "", None))
        rows.append((f"{name}: the same HIP calls alone", f"{bare:.0f} ns", "", None))
        rows.append((f"{name}: strata's own", f"{whole - bare:.0f} ns", "150 ns", whole - bare <= 150))
    for event in events.tolist():
        _hip.destroy_event(event)
    show(f"issuing {N:,} direct entries, null schedule, per entry", rows)


if __name__ == "__main__":
    sys.exit(command("benchmarks.issuing", __doc__, main, "Cython", "setuptools"))
