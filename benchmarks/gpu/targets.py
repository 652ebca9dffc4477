"""What the race has to reach: ratios within one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.gpu.cases import SLOTS, TWO_LAYERS
from benchmarks.gpu.measuring import Result

__all__ = ["Target", "evaluate", "gb_s"]

_PEERS_AT_EQUAL_MEMORY = ("torch_ring", "double_buffer", "freetoken_cache", "diffusers_offload", "accelerate_offload")


@dataclass
class Target:
    """A ratio that has to be reached.

    Parameters
    ----------
    name : str
        What is compared with what, at which size.
    least : float
    measured : float, optional
        None where something that it needs was not measured.
    detail : str
        Which cases were compared.
    """

    name: str
    least: float
    measured: float | None
    detail: str

    @property
    def verdict(self) -> str:
        """``met``, ``MISSED`` or ``not measured``. Never rounded: 0.9899 misses 0.99."""
        if self.measured is None:
            return "not measured"
        return "met" if self.measured >= self.least else "MISSED"


def gb_s(result: Result) -> float | None:
    """Median GB/s (10**9 bytes) of a result; None where nothing was measured."""
    return result.nbytes / statistics.median(result.seconds) / 1e9 if result.seconds else None


def _pick(results: Iterable[Result], where: Callable[[Result], bool]) -> list[tuple[float, Result]]:
    found = [(gb_s(result), result) for result in results if where(result)]
    return [(rate, result) for rate, result in found if rate is not None]


def _label(result: Result) -> str:
    case = result.case
    return f"{case.peer} {case.variant}" + (f" ({case.slots} slots)" if case.slots not in (SLOTS, 0) else "")


def _ratio(name: str, least: float, ours: list[tuple[float, Result]], theirs: list[tuple[float, Result]],
           choose: Callable[..., tuple[float, Result]] = max) -> Target:
    """`choose` of ours over the best of theirs."""
    if not ours or not theirs:
        return Target(name, least, None, "")
    rate, result = choose(ours, key=lambda pair: pair[0])
    other, rival = max(theirs, key=lambda pair: pair[0])
    return Target(name, least, rate / other, f"{_label(result)}: {rate:.2f} GB/s; {_label(rival)}: {other:.2f} GB/s")


def _of(results: Sequence[Result], peer: str, size: int, memory: str, consumer: str, **options: object
        ) -> list[tuple[float, Result]]:
    return _pick(results, lambda r: (r.case.peer, r.case.size, r.case.memory, r.case.consumer)
                 == (peer, size, memory, consumer)
                 and all(r.case.options.get(key) == value for key, value in options.items()))


def _transfer(results: Sequence[Result], size: int) -> list[Target]:
    targets = []
    at = f"{size:,} bytes"
    large = _of(results, "bare", size, "pinned", "null", how="large")
    loop = _of(results, "bare", size, "pinned", "null", how="loop")
    for engine in ("Python", "compiled"):
        single = _of(results, "strata_ring", size, "pinned", "null", submission="single", engine=engine)
        group = _of(results, "strata_ring", size, "pinned", "null", submission="group", engine=engine)
        targets += [
            _ratio(f"direct, slowest setting / bare loop, {engine} engine, {at}", 0.99, single, loop, min),
            _ratio(f"direct, grouped submission / one large copy, {engine} engine, {at}", 0.97, group, large, min),
        ]
    staged = _of(results, "strata_ring", size, "pageable", "null", workers=8, submission="single")
    targets += [
        _ratio(f"staged, 8 workers, best setting / bare loop, {at}", 0.97, staged, loop),
        _ratio(f"staged, 8 workers, best setting / torch ring from pageable memory, {at}", 5.0, staged,
               _of(results, "torch_ring", size, "pageable", "null")),
    ]
    return targets


def _host(results: Sequence[Result], size: int) -> list[Target]:
    ours = [r for r in results if r.case.peer == "strata_ring" and r.case.consumer == "host" and r.case.size == size]
    theirs = [r for r in results if r.case.peer == "torch_ring" and r.case.consumer == "host" and r.case.size == size]
    if not ours and not theirs:
        return []
    targets = []
    for name, least, attribute in (
        ("torch ring's host time / strata's acquire and release", 8.0, "host_us"),
        ("torch ring's issuing / strata's", 5.0, "issue_us"),
    ):
        a = [(value, r) for r in ours if (value := getattr(r, attribute)) is not None]
        b = [value for r in theirs if (value := getattr(r, attribute)) is not None]
        name = f"{name}, slowest setting, {size:,} bytes"
        if not a or not b:
            targets.append(Target(name, least, None, ""))
            continue
        slowest, result = max(a, key=lambda pair: pair[0])
        targets.append(Target(name, least, b[0] / slowest,
                              f"torch {b[0]:.2f} us, strata {result.case.variant} {slowest:.2f} us an entry"))
    return targets


def _engine(results: Sequence[Result], size: int) -> list[Target]:
    targets = []
    for consumer in ("kernel", "matvec"):
        for memory in ("pinned", "mixed"):
            strata = _of(results, "strata_ring", size, memory, consumer)
            at = f"{memory}, {consumer} consumer, {size:,} bytes"
            ring = _of(results, "torch_ring", size, memory, consumer)
            if not strata and not ring:
                continue
            targets.append(_ratio(f"strata / torch ring, {at}", 1.9, strata, ring))
            equal = _pick(results, lambda r, m=memory, c=consumer: (  # type: ignore[misc]
                r.case.peer in _PEERS_AT_EQUAL_MEMORY and r.case.slots <= SLOTS
                and (r.case.size, r.case.memory, r.case.consumer) == (size, m, c)))
            targets.append(_ratio(f"strata / best peer at equal memory, {at}", 1.0, strata, equal))
        strata = _of(results, "strata_ring", size, "pinned", consumer)
        double = [(rate, r) for rate, r in _of(results, "double_buffer", size, "pinned", consumer)
                  if r.case.slots == TWO_LAYERS]
        if strata or double:
            targets.append(_ratio(f"strata / double buffer over {TWO_LAYERS} slots, pinned, {consumer} consumer, "
                                  f"{size:,} bytes", 1.0, strata, double))
    return targets


def evaluate(results: Sequence[Result]) -> list[Target]:
    """Compare what was measured with what has to be reached, size by size.

    Parameters
    ----------
    results : sequence of Result

    Returns
    -------
    list of Target
        Those of the sizes that occur; in the order of their first result.
    """
    targets = []
    for size in dict.fromkeys(result.case.size for result in results):
        targets += [*_transfer(results, size), *_host(results, size), *_engine(results, size)]
    return targets
