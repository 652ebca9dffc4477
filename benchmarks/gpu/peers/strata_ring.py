"""strata, as a Python engine on torch embeds it: torch's streams and one torch tensor of slots are lent."""

from __future__ import annotations

import itertools
import statistics
import time

import torch

import strata
from benchmarks.gpu.cases import Case
from benchmarks.gpu.consumers import Consumer
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.peers import Bench
from benchmarks.native import load

__all__ = ["available", "run"]

_HOST_REPEATS = 40


def available() -> str | None:
    """Always: what strata needs, the race needs."""
    return None


def run(case: Case, bench: Bench) -> Result:
    """Measure a case, with ``settings``, ``submission``, ``workers`` and ``engine`` as its options say."""
    options = case.options
    slots = bench.slots(case.slots)
    copy_stream, compute_stream = torch.cuda.Stream(bench.device), torch.cuda.Stream(bench.device)
    with strata.ExpertStreamer(
        case.size,
        slots=[slot.data_ptr() for slot in slots],
        copy_stream=copy_stream.cuda_stream,
        compute_stream=compute_stream.cuda_stream,
        host_ring=options.get("host_ring", 16),
        workers=options["workers"],
        settings=strata.BatchSettings(*options["settings"]),
        submission=options["submission"],
        timing=False,
    ) as streamer:
        if streamer.submission != options["submission"]:
            raise RuntimeError(f"submission is {streamer.submission}: the runtime has no batched copy")
        copies = bench.sources.copies(case.memory, case.entries)
        if case.consumer == "host":
            return _host(case, streamer, copies)
        consumer = bench.consumer(case)
        result = _throughput(case, bench, streamer, copies, slots, compute_stream, consumer)
        counters = streamer.counters
        if counters.pageable_buffers:
            result.notes.append(f"{counters.pageable_buffers} host buffers could not be pinned")
        bench.synchronize()
        return result


def _throughput(case: Case, bench: Bench, streamer: strata.ExpertStreamer, copies: strata.ExpertCopies,
                slots: torch.Tensor, compute_stream: torch.cuda.Stream, consumer: Consumer) -> Result:
    consume = consumer.consume
    views = [consumer.typed(slot) for slot in slots]

    def from_python() -> None:
        with streamer.begin(copies) as request:
            for _ in request:
                pass

    def with_kernels() -> None:
        assert consume is not None
        with torch.cuda.stream(compute_stream), streamer.begin(copies) as request:
            for _, view in zip(request, itertools.cycle(views), strict=False):
                consume(view)

    def compiled() -> None:
        with streamer.begin(copies) as request:
            loops.consume(request)

    if consume is not None:
        return bench.measure(case, with_kernels, consumer)
    if case.options["engine"] == "compiled":
        loops = load()
        return bench.measure(case, compiled)
    return bench.measure(case, from_python)


def _host(case: Case, streamer: strata.ExpertStreamer, copies: strata.ExpertCopies) -> Result:
    """Issuing until all is published, then acquire and release of what is published already."""
    loops = load()
    n = case.entries
    issuing: list[float] = []
    python: list[float] = []
    compiled: list[float] = []
    for repeat in range(2 * _HOST_REPEATS):
        began = time.perf_counter_ns()
        with streamer.begin(copies) as request:
            loops.until_issued(request, n)
            issued = time.perf_counter_ns()
            if repeat % 2:
                loops.consume(request)
            else:
                for _ in range(n):
                    request.acquire().release()
            ended = time.perf_counter_ns()
        issuing.append((issued - began) / n / 1000)
        (compiled if repeat % 2 else python).append((ended - issued) / n / 1000)
    # The first requests find memory that nobody touched.
    result = Result(case, host_us=statistics.median(python[3:]), issue_us=statistics.median(issuing[6:]))
    result.notes.append(f"host: acquire and release of published entries from Python; from a compiled engine "
                        f"{statistics.median(compiled[3:]):.2f} us. issuing: from begin until all is published, by "
                        "strata's own thread")
    return result
