"""The engine's side: acquire and release of published entries, one by one and by spans, from Python and Cython."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import strata
from benchmarks.measuring import Row, command, null_runtime, show
from benchmarks.native import load

N = 96_000  # whole spans
SPAN = 32
RING = 4096
NBYTES = 64


def from_python(request: strata.Request) -> None:
    """Acquire and release by name."""
    for _ in range(len(request)):
        request.acquire().release()


def by_spans(request: strata.Request) -> None:
    """Acquire and release runs of 32 neighbouring slots."""
    for _ in range(len(request) // SPAN):
        request.acquire_span(SPAN).release()


def by_iteration(request: strata.Request) -> None:
    """Iterate."""
    for _ in request:
        pass


def measure(consume: Callable[[strata.Request], object], streamer: strata.ExpertStreamer,
            copies: strata.ExpertCopies, until_issued: Callable[[strata.Request, int], None]) -> float:
    """Nanoseconds an entry: the median of five requests, after one that is not counted."""
    samples = []
    for _ in range(6):
        with streamer.begin(copies) as request:
            until_issued(request, N)
            began = time.perf_counter_ns()
            consume(request)
            samples.append((time.perf_counter_ns() - began) / N)
    return statistics.median(samples[1:])


def compare(one: Callable[[strata.Request], object], spans: Callable[[strata.Request], object],
            until_issued: Callable[[strata.Request, int], None]) -> float:
    """What a span costs, in entries: medians of requests that take turns, over a ring that the caches hold."""
    weights = strata.pinned_empty((RING, NBYTES), np.uint8)
    copies = strata.ExpertCopies.from_buffers(list(weights), pinned=True)
    samples: dict[Callable[[strata.Request], object], list[int]] = {one: [], spans: []}
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING + 1, settings=strata.BatchSettings(), timing=False) as streamer:
        for _ in range(50):
            for consume, took in samples.items():
                with streamer.begin(copies) as request:
                    until_issued(request, RING)
                    began = time.perf_counter_ns()
                    consume(request)
                    took.append(time.perf_counter_ns() - began)
    return SPAN * statistics.median(samples[spans]) / statistics.median(samples[one])


def main() -> None:
    """Measure and print."""
    null_runtime()
    loops = load()
    weights = strata.pinned_empty((N, NBYTES), np.uint8)
    copies = strata.ExpertCopies.from_buffers(list(weights), pinned=True)
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    rows: list[Row] = []
    with strata.ExpertStreamer(NBYTES, gpu_ring=N + 1, settings=strata.BatchSettings(), timing=False) as streamer:
        for name, consume, most in (
            ("from Cython", loops.consume, 100),
            ("from Python, acquire and release", from_python, 1000),
            ("from Python, iteration", by_iteration, 1000),
        ):
            took = measure(consume, streamer, copies, loops.until_issued)
            rows.append((name, f"{took:.0f} ns", f"{most} ns", took <= most))
        for name, one, spans in (
            ("a span of 32 from Cython", loops.consume, loops.consume_spans),
            ("a span of 32 from Python", from_python, by_spans),
        ):
            ratio = compare(one, spans, loops.until_issued)
            rows.append((name, f"{ratio:.2f} x", "2 x an entry", ratio <= 2))
        busy = threading.Thread(target=compute)
        busy.start()
        try:
            took = measure(from_python, streamer, copies, loops.until_issued)
        finally:
            stop.set()
            busy.join()
        rows.append(("from Python, beside a thread that computes", f"{took:.0f} ns", "3000 ns", took <= 3000))
    show(f"engine's side of {N:,} published entries, null schedule, per entry", rows)


if __name__ == "__main__":
    sys.exit(command("benchmarks.engine_side", __doc__, main, "Cython", "setuptools"))
