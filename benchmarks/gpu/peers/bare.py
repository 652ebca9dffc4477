"""Ceilings: one large copy, and a loop of async copies on one stream with no dependency between them."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.peers import Bench
from benchmarks.native import load
from strata import _hip

__all__ = ["available", "run"]

_LARGE_BYTES = 2**32


def available() -> str | None:
    """Always."""
    return None


def run(case: Case, bench: Bench) -> Result:
    """Measure a case; ``how`` is *large*, *loop* (compiled) or *torch*."""
    stream = torch.cuda.Stream(bench.device)
    if case.options["how"] == "large":
        return _large(case, bench, stream)
    slots = bench.slots(case.slots)
    if case.options["how"] == "torch":
        return _torch(case, bench, stream, slots)
    return _loop(case, bench, stream, slots)


def _large(case: Case, bench: Bench, stream: torch.cuda.Stream) -> Result:
    pool = bench.sources.pinned.view(-1)
    nbytes = min(pool.numel(), _LARGE_BYTES)
    target = torch.empty(nbytes, dtype=torch.uint8, device=bench.device)

    def one_pass() -> None:
        _hip.memcpy_h2d_async(target.data_ptr(), pool.data_ptr(), nbytes, stream.cuda_stream)

    result = bench.measure(case, one_pass)
    result.nbytes = nbytes
    result.notes.append(f"one copy of {nbytes:,} bytes")
    return result


def _loop(case: Case, bench: Bench, stream: torch.cuda.Stream, slots: torch.Tensor) -> Result:
    loops = load()
    sources = bench.sources.addresses(case.memory, case.entries)
    rows = [slot.data_ptr() for slot in slots]
    places = np.array([rows[i % case.slots] for i in range(case.entries)], np.uint64)
    # One group as long as the list: a wait for an event that was never recorded, the copies, one record.
    before, after = _hip.create_event(), _hip.create_event()
    used, copied = np.zeros(case.entries, np.uint64), np.zeros(case.entries, np.uint64)
    used[-1], copied[-1] = before, after
    try:
        return bench.measure(case, lambda: loops.issue_bare(sources, places, copied, used, case.size, case.entries,
                                                            stream.cuda_stream))
    finally:
        bench.synchronize()
        _hip.destroy_event(before)
        _hip.destroy_event(after)


def _torch(case: Case, bench: Bench, stream: torch.cuda.Stream, slots: torch.Tensor) -> Result:
    targets = list(slots)
    pairs = [(targets[i % case.slots], source)
             for i, source in enumerate(bench.sources.tensors(case.memory, case.entries))]

    def one_pass() -> None:
        with torch.cuda.stream(stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    return bench.measure(case, one_pass)
