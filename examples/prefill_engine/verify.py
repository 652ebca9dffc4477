"""Do two arms compute the same? One dependency an entry against grouped ones, compared bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import strata
from examples.prefill_engine.checkpoint import Checkpoint
from examples.prefill_engine.config import ModelConfig, RunConfig
from examples.prefill_engine.engine import Engine, Tap, prompt
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.host_experts import HostExperts
from examples.prefill_engine.result import PrefillResult
from strata.tools.report import Report
from strata.tools.tables import Table

__all__ = ["ArmRun", "Line", "VerifyReport", "check_models", "compare", "dependencies", "run_arm"]

#: Identical requests an arm and walk.
REQUESTS = 2

#: What was moved, and what the engine did with it; the records and waits around it are what the arms differ in.
#: How many of the dropped entries were copied all the same, because they were on their way, is a matter of time.
TRANSFERS = ("direct_copies", "direct_copy_calls", "direct_bytes", "staged_copies", "staged_copy_calls",
             "staged_bytes", "skipped")
#: Of these, what every streamer must agree in: one that stages nothing copies segments, and records less.
_MOVED = ("direct_copies", "direct_copy_calls", "direct_bytes", "staged_copies", "staged_bytes", "skipped")
_DEPENDENCIES = ("direct_copied_records", "direct_reuse_waits", "staged_copied_records", "staged_reuse_waits",
                 "dma_done_records")


@dataclass(frozen=True)
class CacheCheck:
    """One reading of the whole cache: slots that differ from the checkpoint."""

    when: str
    wrong_retained: list[int]
    wrong_lent: list[int]


@dataclass(frozen=True)
class ArmRun:
    """What one arm did: `outcomes` by walk, `REQUESTS` of each, and a look at the cache before and after each."""

    model: ModelConfig
    run: RunConfig
    streamer: str
    settings: strata.BatchSettings
    outcomes: dict[str, list[PrefillResult]]
    cache: list[CacheCheck]


@dataclass(frozen=True)
class Line:
    """One line of the report."""

    walk: str
    name: str
    equal: bool
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def run_arm(checkpoint: Checkpoint, run: RunConfig, settings: strata.BatchSettings, walks: Iterable[str], *,
            streamer: str = "strata", sources: HostExperts | None = None, tap: Tap | None = None) -> ArmRun:
    """Run `REQUESTS` identical requests of each walk on an engine of its own.

    Parameters
    ----------
    checkpoint, run, settings, streamer, sources, tap
        As `Engine`.
    walks : iterable of str

    Raises
    ------
    InputError, HipError, StrataError
        As `Engine` and `Engine.prefill`.
    """
    outcomes: dict[str, list[PrefillResult]] = {}
    with Engine(checkpoint, run, settings, streamer=streamer, sources=sources, tap=tap) as engine:
        ids = prompt(engine.model, run.tokens)
        checks = [CacheCheck("before the first request", *engine.cache.wrong_slots())]
        for walk in walks:
            outcomes[walk] = []
            for number in range(REQUESTS):
                outcomes[walk].append(engine.prefill(ids, walk))
                checks.append(CacheCheck(f"after request {number} of walk {walk}", *engine.cache.wrong_slots()))
        return ArmRun(engine.model, run, streamer, engine.settings, outcomes, checks)


def compare(control: ArmRun, optimized: ArmRun) -> list[Line]:
    """Compare two arms.

    Returns
    -------
    list of Line
        The arms compute the same if all are equal.

    Raises
    ------
    InputError
        If the arms differ in model, seed, prompt or walks: there is nothing to compare then.
    """
    check_models(control.model, optimized.model)
    _check_runs(control, optimized)
    same_streamer = control.streamer == optimized.streamer
    lines: list[Line] = []
    for walk in control.outcomes:
        a, b = control.outcomes[walk], optimized.outcomes[walk]
        lines += [Line(walk, *found) for found in (
            *_residuals(a, b), *_positions(a, b), _routing(a, b), *_gdn(a, b), _first_tokens(a, b),
            _transfers(a, b, same_streamer), _fences(a, b), _repeats(a, b))]
    lines += [Line("", *_cache(control, optimized, which)) for which in ("retained", "lent")]
    if len(control.outcomes) > 1:
        lines.append(Line("", *_walks(control, optimized)))
    return lines


class VerifyReport(Report):
    """Lines that are equal or not, and how many dependency calls each arm made.

    Parameters
    ----------
    head : str
        What was compared.
    lines : sequence of Line
    saved : dict of str to dict of str to int, optional
        Dependency calls by arm, *control* and *optimized*, and walk.
    data : dict, optional
        What else goes into the JSON.
    """

    def __init__(self, head: str, lines: Sequence[Line], saved: Mapping[str, Mapping[str, int]] | None = None,
                 data: Mapping[str, Any] | None = None) -> None:
        self.head = head
        self.lines = lines
        self.saved = saved or {"control": {}, "optimized": {}}
        self.data = data or {}

    @property
    def ok(self) -> bool:
        """Whether every line is equal."""
        return all(line.equal for line in self.lines)

    def parts(self) -> list[str | Table]:
        """Return the lines, and the calls that were saved."""
        rows = [[line.walk or "both", line.name, "equal" if line.equal else "DIFFERENT", line.detail]
                for line in self.lines]
        different = sum(not line.equal for line in self.lines)
        return [
            self.head, "", Table(["walk", "compared", "", ""], rows, left=4), "",
            f"{len(rows)} lines equal" if not different else f"{different} of {len(rows)} lines DIFFERENT",
            *(f"dependency calls, walk {walk}: {count:,} -> {self.saved['optimized'][walk]:,}"
              for walk, count in self.saved["control"].items()),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return verdict, lines, calls and what else was given."""
        return {"equal": self.ok, "lines": [line.as_dict() for line in self.lines], "dependency_calls": self.saved,
                **self.data}


def dependencies(arm: ArmRun) -> dict[str, int]:
    """Records and waits around an arm's copies, by walk: what grouping saves."""
    return {walk: sum(int(getattr(o.counters, name)) for o in outcomes for name in _DEPENDENCIES)
            for walk, outcomes in arm.outcomes.items()}


def check_models(control: ModelConfig, optimized: ModelConfig) -> None:
    """Raise `InputError` if two arms differ in their model or its seed."""
    model = _differing(control.as_dict(), optimized.as_dict())
    if model:
        raise InputError(f"the arms differ in their model or seed: {model}")


def _differing(x: dict[str, Any], y: dict[str, Any]) -> str:
    return ", ".join(f"{name} {x[name]} and {y[name]}" for name in x if x[name] != y[name])


def _check_runs(a: ArmRun, b: ArmRun) -> None:
    run = _differing(a.run.as_dict(), b.run.as_dict())
    if run:
        raise InputError(f"the arms differ in how the model is run: {run}")
    if list(a.outcomes) != list(b.outcomes):
        raise InputError(f"the arms differ in their walks: {list(a.outcomes)} and {list(b.outcomes)}")


_Found = tuple[str, bool, str]
_Float32 = npt.NDArray[np.float32]


def _residuals(a: list[PrefillResult], b: list[PrefillResult]) -> list[_Found]:
    x, y = (np.concatenate([o.residual.ravel() for o in arm]) for arm in (a, b))
    same = _same_bits(x, y)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.abs(x.astype(np.float64) - y).max())
    odd = int((~np.isfinite(x)).sum() + (~np.isfinite(y)).sum())
    return [("residual floats, bitwise", same == x.size, f"{same:,} of {x.size:,}"),
            ("max absolute difference", largest == 0.0, f"{largest:g}"),
            ("NaN or Inf", odd == 0, f"{odd:,} of {x.size + y.size:,}")]


def _positions(a: list[PrefillResult], b: list[PrefillResult]) -> list[_Found]:
    x, y = ([record for o in arm for record in o.position_records()] for arm in (a, b))
    p, q = (hashlib.sha256(b"".join(records)).hexdigest() for records in (x, y))
    return [_count("position records (tokens x requests)", x, y),
            ("SHA256 of position records", p == q, p if p == q else f"{p} and {q}")]


def _routing(a: list[PrefillResult], b: list[PrefillResult]) -> _Found:
    x, y = ([f for o in arm for f in o.routing_fingerprints()] for arm in (a, b))
    return _count("routing hashes (layers x requests)", x, y)


def _gdn(a: list[PrefillResult], b: list[PrefillResult]) -> list[_Found]:
    x, y = ([f for o in arm for f in o.gdn_fingerprints()] for arm in (a, b))
    states = [[array.ravel() for o in arm for state in o.gdn.values() for array in state.values()] for arm in (a, b)]
    p, q = (np.concatenate([np.zeros(0, np.float32), *arm]) for arm in states)
    odd = int((~np.isfinite(p)).sum() + (~np.isfinite(q)).sum())
    same = _same_bits(p, q)
    return [("GDN states finite", odd == 0, f"{odd:,} values of {p.size + q.size:,} are not"),
            _count("GDN fingerprints (layers x requests)", x, y),
            ("GDN state values, bitwise", same == p.size, f"{same:,} of {p.size:,}")]


def _first_tokens(a: list[PrefillResult], b: list[PrefillResult]) -> _Found:
    return _count("first tokens", [o.first_token for o in a], [o.first_token for o in b])


def _transfers(a: list[PrefillResult], b: list[PrefillResult], same_streamer: bool) -> _Found:
    if any(o.counters.dropped or o.counters.dropped_late for o in (*a, *b)):
        return _reached(a, b)
    names = TRANSFERS if same_streamer else _MOVED

    def moved(outcome: PrefillResult) -> list[dict[str, Any]]:
        return [{name: getattr(c, name) for name in names} for c in (outcome.counters, outcome.refill_counters)]

    differ: dict[str, tuple[Any, Any]] = {}
    for one, other in zip(a, b, strict=True):
        for x, y in zip(moved(one), moved(other), strict=True):
            differ.update({name: (x[name], y[name]) for name in names if x[name] != y[name]})
    c = a[0].counters
    detail = "; ".join(f"{name} {x:,} and {y:,}" for name, (x, y) in differ.items())
    return ("transfer counts and bytes", not differ, detail or (
        f"a request: {c.direct_copies:,} direct and {c.staged_copies:,} staged copies, "
        f"{c.direct_bytes + c.staged_bytes:,} bytes, {c.skipped:,} skipped"))


def _reached(a: list[PrefillResult], b: list[PrefillResult]) -> _Found:
    """Where entries were dropped: what was copied and what was dropped, together."""
    x, y = ([(c.direct_copies + c.staged_copies + c.dropped, c.direct_bytes + c.staged_bytes + c.dropped_bytes,
              c.skipped) for o in arm for c in (o.counters, o.refill_counters)] for arm in (a, b))
    entries, nbytes, skipped = x[0]
    return ("transfer counts and bytes", x == y, (
        f"a request: {entries:,} entries copied or dropped, {nbytes:,} bytes, {skipped:,} skipped") if x == y else
        f"{x} and {y}")


def _fences(a: list[PrefillResult], b: list[PrefillResult]) -> _Found:
    errors = sum(o.counters.fence_errors + o.refill_counters.fence_errors for o in (*a, *b))
    return ("fence errors", errors == 0, f"{errors}")


def _repeats(a: list[PrefillResult], b: list[PrefillResult]) -> _Found:
    distinct = [len({o.fingerprint() for o in arm}) for arm in (a, b)]
    return ("requests of an arm", distinct == [1, 1],
            f"{distinct[0]} and {distinct[1]} distinct results of {len(a)} identical requests")


def _cache(a: ArmRun, b: ArmRun, which: str) -> _Found:
    lent = a.run.gpu_ring
    slots = lent if which == "lent" else a.run.cache_slots - lent
    get: Callable[[CacheCheck], list[int]] = (
        (lambda c: c.wrong_lent) if which == "lent" else (lambda c: c.wrong_retained))
    wrong = [f"{name} arm {check.when}: slots {get(check)}"
             for name, arm in (("control", a), ("optimized", b)) for check in arm.cache if get(check)]
    return (f"{'borrowed' if which == 'lent' else which} cache, before and after", not wrong, "; ".join(wrong) or (
        f"{slots:,} slots, {slots * a.model.expert_bytes:,} bytes, read back {len(a.cache) + len(b.cache)} times"))


def _walks(a: ArmRun, b: ArmRun) -> _Found:
    prints = {o.fingerprint() for arm in (a, b) for outcomes in arm.outcomes.values() for o in outcomes}
    return ("walks against each other", len(prints) == 1, f"{len(prints)} distinct results")


def _same_bits(x: _Float32, y: _Float32) -> int:
    return int((x.view(np.uint32) == y.view(np.uint32)).sum())


def _count(name: str, x: list[Any], y: list[Any]) -> _Found:
    same = sum(p == q for p, q in zip(x, y, strict=True))
    return (name, same == len(x), f"{same:,} of {len(x):,}")
