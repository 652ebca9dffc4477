"""The ring that an engine writes with torch alone: two streams, two events a slot, ``copy_`` for each expert.

Everything that can be made before the loop is: lists of tensors, streams, events. The host never waits; the copy
of an expert waits on the device for the kernel that last read its slot.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.peers import Bench

__all__ = ["available", "run"]

_HOST_REPEATS = 40


def available() -> str | None:
    """Always: what torch needs, the race needs."""
    return None


def run(case: Case, bench: Bench) -> Result:
    """Measure a case."""
    slots = list(bench.slots(case.slots))
    sources = bench.sources.tensors(case.memory, case.entries)
    copy_stream, compute_stream = torch.cuda.Stream(bench.device), torch.cuda.Stream(bench.device)
    copied = [torch.cuda.Event() for _ in slots]
    used = [torch.cuda.Event() for _ in slots]
    if case.consumer == "host":
        return _host(case, bench, slots, sources, copy_stream, compute_stream, copied, used)
    consumer = bench.consumer(case)
    consume = consumer.consume
    views = [consumer.typed(slot) for slot in slots]
    rows = [i % case.slots for i in range(case.entries)]

    def transfer_only() -> None:
        with torch.cuda.stream(copy_stream):
            for row, source in zip(rows, sources, strict=True):
                copy_stream.wait_event(used[row])
                slots[row].copy_(source, non_blocking=True)
                copied[row].record(copy_stream)
                compute_stream.wait_event(copied[row])
                used[row].record(compute_stream)

    def with_kernels() -> None:
        assert consume is not None
        with torch.cuda.stream(compute_stream):
            for row, source in zip(rows, sources, strict=True):
                copy_stream.wait_event(used[row])
                with torch.cuda.stream(copy_stream):
                    slots[row].copy_(source, non_blocking=True)
                copied[row].record(copy_stream)
                compute_stream.wait_event(copied[row])
                consume(views[row])
                used[row].record(compute_stream)

    return bench.measure(case, transfer_only if consume is None else with_kernels, consumer)


def _host(case: Case, bench: Bench, slots: list[torch.Tensor], sources: list[torch.Tensor],
          copy_stream: torch.cuda.Stream, compute_stream: torch.cuda.Stream, copied: list[torch.cuda.Event],
          used: list[torch.cuda.Event]) -> Result:
    """The loop's two halves apart, on a list that fits the device's queue, so that no call has to wait."""
    issuing, consuming = [], []
    n = case.entries
    with torch.cuda.stream(copy_stream):
        for _ in range(_HOST_REPEATS):
            began = time.perf_counter_ns()
            for slot, source, used_event, copied_event in zip(slots, sources, used, copied, strict=False):
                copy_stream.wait_event(used_event)
                slot.copy_(source, non_blocking=True)
                copied_event.record(copy_stream)
            issued = time.perf_counter_ns()
            for _, used_event, copied_event in zip(sources, used, copied, strict=False):
                compute_stream.wait_event(copied_event)
                used_event.record(compute_stream)
            ended = time.perf_counter_ns()
            bench.synchronize()
            issuing.append((issued - began) / n / 1000)
            consuming.append((ended - issued) / n / 1000)
    issue_us, consume_us = statistics.median(issuing[3:]), statistics.median(consuming[3:])
    result = Result(case, host_us=issue_us + consume_us, issue_us=issue_us)
    result.notes.append("host: the whole loop, which is all on the engine's thread; its consumer's half "
                        f"{consume_us:.2f} us. issuing: wait, copy_, record")
    return result
