"""Two layers of slots in torch: one is copied into while the other is computed with; two events a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.peers import Bench

__all__ = ["available", "run"]


def available() -> str | None:
    """Always: what torch needs, the race needs."""
    return None


def run(case: Case, bench: Bench) -> Result:
    """Measure a case; with ``whole`` one copy brings a layer, which must lie together in host memory.

    Raises
    ------
    ValueError
        If the entries are no whole number of layers, or lie in no single pool.
    """
    experts = case.slots // 2
    pool = bench.sources.pinned if case.memory == "pinned" else bench.sources.pageable
    if case.entries % experts or case.entries > len(pool):
        raise ValueError(f"{case.entries} entries are no whole layers of {experts} in a pool of {len(pool)}")
    layers = pool[:case.entries].view(-1, experts, case.size)
    slots = bench.slots(case.slots).view(2, experts, case.size)
    consumer = bench.consumer(case)
    views = [[consumer.typed(slot) for slot in layer] for layer in slots]
    targets = [[layer] if case.options["whole"] else list(layer) for layer in slots]
    sources = [[layer] if case.options["whole"] else list(layer) for layer in layers]
    copy_stream, compute_stream = torch.cuda.Stream(bench.device), torch.cuda.Stream(bench.device)
    one_pass = _pass(targets, sources, views, consumer.consume, copy_stream, compute_stream)
    return bench.measure(case, one_pass, consumer)


def _pass(targets: list[list[torch.Tensor]], sources: list[list[torch.Tensor]], views: list[list[torch.Tensor]],
          consume: Callable[[torch.Tensor], object] | None, copy_stream: torch.cuda.Stream,
          compute_stream: torch.cuda.Stream) -> Callable[[], None]:
    copied = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]

    def prefetch(layer: int) -> None:
        half = layer % 2
        copy_stream.wait_event(used[half])
        with torch.cuda.stream(copy_stream):
            for target, source in zip(targets[half], sources[layer], strict=True):
                target.copy_(source, non_blocking=True)
        copied[half].record(copy_stream)

    def one_pass() -> None:
        with torch.cuda.stream(compute_stream):
            prefetch(0)
            for layer in range(len(sources)):
                if layer + 1 < len(sources):
                    prefetch(layer + 1)
                half = layer % 2
                compute_stream.wait_event(copied[half])
                if consume is not None:
                    for view in views[half]:
                        consume(view)
                used[half].record(compute_stream)

    return one_pass
