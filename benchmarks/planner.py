"""The planner: nanoseconds an entry, with fresh and with reused outputs, and against the tests' oracle."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

import strata
from benchmarks.measuring import Row, command, median_ns, show
from benchmarks.native import load
from tests.planner.oracle import oracle_ends

GPU_RING, HOST_RING = 96, 16
SETTINGS = strata.BatchSettings(8, 16, 16)
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def mixed_jobs(n: int) -> npt.NDArray[np.int64]:
    """Runs of direct and of staged entries in the reference request's proportion, of random lengths."""
    generator = np.random.default_rng(1)
    lengths = generator.integers(1, 200, n // 50 + 2)
    staged = np.repeat(generator.random(len(lengths)) < 0.29, lengths)[:n]
    return np.where(staged, np.cumsum(staged) - 1, -1).astype(np.int64)


def main() -> None:
    """Measure and print."""
    plan = load().plan
    limits = (GPU_RING, HOST_RING, SETTINGS.copy_batch, SETTINGS.stage_batch, SETTINGS.stage_copy_batch)
    rows: list[Row] = []
    reused: list[float] = []
    for n in SIZES:
        jobs = mixed_jobs(n)
        ends = np.empty_like(jobs)
        calls = max(1, 1_000_000 // n)  # enough of them for the clock

        def again(jobs=jobs, ends=ends, calls=calls) -> None:  # type: ignore[no-untyped-def]
            for _ in range(calls):
                plan(jobs, ends, *limits)

        def fresh(jobs=jobs, calls=calls) -> None:  # type: ignore[no-untyped-def]
            for _ in range(calls):
                plan(jobs, np.empty_like(jobs), *limits)

        def whole(jobs=jobs, calls=calls) -> None:  # type: ignore[no-untyped-def]
            for _ in range(calls):
                strata.CopyPlan(jobs, gpu_ring=GPU_RING, host_ring=HOST_RING, settings=SETTINGS)

        reused.append(median_ns(again) / n / calls)
        rows.append((f"groups of {n:,}, output reused", f"{reused[-1]:.2f} ns", "4 ns", reused[-1] <= 4))
        took = median_ns(fresh) / n / calls
        largest = n == SIZES[-1]
        rows.append((f"groups of {n:,}, output's first touch", f"{took:.2f} ns", "8 ns" if largest else "",
                     took <= 8 if largest else None))
        took = median_ns(whole, 3) / n / calls
        rows.append((f"CopyPlan of {n:,}: checks, groups, ownership", f"{took:.2f} ns", "", None))
    flat = max(reused) / min(reused)
    rows.append(("slowest size / fastest, output reused", f"{flat:.2f}", "1.5", flat <= 1.5))
    jobs = mixed_jobs(100_000).tolist()
    batches = (SETTINGS.copy_batch, SETTINGS.stage_batch, SETTINGS.stage_copy_batch)
    slow = median_ns(lambda: oracle_ends(jobs, GPU_RING, HOST_RING, *batches), 3) / len(jobs)
    rows.append(("pure-Python oracle, 100,000", f"{slow:.0f} ns", "", None))
    ratio = slow / reused[1]
    rows.append(("oracle / planner, 100,000", f"{ratio:.0f}", "100", ratio >= 100))
    show("planner, per entry", rows)


if __name__ == "__main__":
    sys.exit(command("benchmarks.planner", __doc__, main, "Cython", "setuptools"))
