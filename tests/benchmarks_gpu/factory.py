"""Results without a GPU."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.cases import SLOTS, Case
from benchmarks.gpu.measuring import Result

SIZE = 1_000_000


def result(peer: str, rate: float, *, memory: str = "pinned", consumer: str = "null", slots: int = SLOTS,
           size: int = SIZE, variant: str = "v", **options: Any) -> Result:
    """A case of 1,000 entries that moved `rate` GB/s in the median of three passes."""
    seconds = 1000 * size / 1e9 / rate
    return Result(Case(peer, variant, size, memory, consumer, 1000, slots, options), nbytes=1000 * size,
                  seconds=[seconds * 2, seconds, seconds / 2], thread_seconds=[0.002, 0.001, 0.003])


def strata(rate: float, *, settings: tuple[int, int, int] = (8, 16, 16), submission: str = "single",
           engine: str = "Python", workers: int = 8, **where: Any) -> Result:
    """A case of strata's."""
    return result("strata_ring", rate, settings=list(settings), submission=submission, engine=engine,
                  workers=workers, **where)
