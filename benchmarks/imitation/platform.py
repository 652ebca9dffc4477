"""An expensive platform, imitated: the same request, with calls that take the time that they took there.

Over the software runtime's *timed* schedule copies move no bytes: each operation only takes its time in its
stream, and the streams keep absolute clocks. What an operation costs is derived from a recorded control arm
(one dependency an entry) and from what one dependency call was found to take; `derive` has the formulas. Then the
request is streamed at other settings, by the same planner, issuer and host ring as ever, and the clocks say what
grouping is worth on such a platform.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from strata import _hip
from strata.copies import ExpertCopies
from strata.counters import Counters
from strata.errors import StrataError
from strata.runtime.software import control
from strata.settings import BatchSettings
from strata.streamer import ExpertStreamer
from strata.tools.replay.case import Case, InputError
from strata.tools.replay.passes import warm_up
from strata.tools.replay.pools import Sources
from strata.tools.replay.report import Arm
from strata.tools.replay.run import make_arm

__all__ = ["PLATFORMS", "Costs", "Imitated", "Recorded", "derive", "imitate", "load_recorded"]

PLATFORMS = ("hip-windows",)

#: Counters that are operations on the copy stream. `host_reuse_waits` are not: a worker makes them on the host.
_ON_COPY_STREAM = ("direct_copied_records", "direct_reuse_waits", "staged_copied_records", "staged_reuse_waits",
                   "dma_done_records")
_CONTROL = "control"
_CARRIED_BYTES = 1024  # of an entry; the time that it takes is that of all of its bytes
_POOL_BYTES = 2**28


@dataclass(frozen=True)
class Recorded:
    """What an arm was measured to do where the request was recorded; milliseconds, tokens a second."""

    pp_tok_s: float
    run_wall_ms: float
    done_prefill_ms: float
    copy_wait_ms: float


@dataclass(frozen=True)
class Costs:
    """What operations take, in nanoseconds of stream time, and what else the control arm says.

    Attributes
    ----------
    dependency_ns : int
        Each record of an event and each wait of a stream for one.
    copy_ns : float
        Each copy of a whole entry, its bytes included.
    compute_ns : int
        Each entry's compute on the compute stream, its two dependency calls included.
    outside_ms : float
        Of a prefill, outside the request's wall.
    tokens : int
        Processed by the prefill.
    """

    dependency_ns: int
    copy_ns: float
    compute_ns: int
    outside_ms: float
    tokens: int

    def pp_tok_s(self, run_wall_ms: float) -> float:
        """Prompt tokens a second of a prefill whose request takes `run_wall_ms`."""
        return self.tokens / (run_wall_ms + self.outside_ms) * 1e3


@dataclass
class Imitated:
    """One arm of the imitation.

    Attributes
    ----------
    arm : Arm
        Settings, counters, and what they had to be.
    run_wall_ms : float
        From the request's begin until the last stream was done, by the streams' clocks.
    copy_wait_ms : float
        Of it, how long the compute stream had nothing to do but wait for copies.
    copy_idle_ms : float
        Of it, how long the copy stream had nothing to do.
    pp_tok_s : float
    waited_s : float
        Seconds that the imitation of this pass itself took.
    walls_ms : list of float
        Walls of all passes, in order.
    recorded : Recorded or None
        What was measured at these settings.
    """

    arm: Arm
    run_wall_ms: float
    copy_wait_ms: float
    copy_idle_ms: float
    pp_tok_s: float
    waited_s: float
    walls_ms: list[float]
    recorded: Recorded | None


def load_recorded(case: Case, path: str | Path | None = None) -> tuple[dict[str, Recorded], float, int]:
    """Read what was measured where a case was recorded.

    Parameters
    ----------
    case : Case
        Loaded from the same file.
    path : str or Path, optional
        A JSON file. Default: the reference request.

    Returns
    -------
    recorded : dict of str to Recorded
        By the arm's name; ``control`` is among them.
    dependency_us : float
        Microseconds of a dependency call.
    tokens : int

    Raises
    ------
    InputError
        A field is missing or wrong; it is named.
    """
    where = files("strata") / "data" / "reference_request.json" if path is None else Path(path)
    try:
        data: Any = json.loads(where.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"case {case.name!r} cannot be read: {problem}") from None
    performance = _object(data, "performance")
    if _CONTROL not in performance or _CONTROL not in case.arms:
        raise InputError(f"performance and arms need {_CONTROL!r}: the costs are derived from it")
    recorded = {}
    for name in performance:
        arm = _object(performance, name, "performance.")
        fields = ("pp_tok_s", "run_wall_ms", "done_prefill_ms", "copy_wait_ms")
        recorded[name] = Recorded(*(_positive(arm, field, f"performance.{name}.") for field in fields))
    figure = "microseconds_per_removed_operation_by_copy_wait"
    dependency_us = _positive(_object(data, "derived"), figure, "derived.")
    return recorded, dependency_us, int(_positive(data, "processed_tokens"))


def derive(case: Case, recorded: Mapping[str, Recorded], dependency_us: float, tokens: int) -> Costs:
    """Derive the costs from the control arm and the time of a dependency call; no other arm is looked at.

    With ``n`` entries, ``D`` the control arm's operations on the copy stream other than copies, ``d`` the time
    of one of them, ``W`` its wall and ``Q`` its copy wait::

        copy    = (W - D d) / n       the copy stream is taken to be busy all the time
        compute = (W - Q) / n         the compute stream works whenever it does not wait for copies

    All copies are of one size, so what of a copy's time is due to its bytes, and what to the call, cannot be told
    from this arm, and makes no difference to it or to any other.

    Raises
    ------
    InputError
        The figures contradict each other: nothing would be left for a copy, or for the compute.
    """
    n = len(case)
    measured = recorded[_CONTROL]
    settings = case.arms[_CONTROL].clamped(case.gpu_ring, case.host_ring)
    counters = case.expected(settings) or {}
    missing = [name for name in _ON_COPY_STREAM if name not in counters]
    if missing or n == 0:
        raise InputError(f"counters[{_CONTROL!r}] lacks {missing[0]}" if missing else "the case has no entries")
    dependencies = sum(counters[name] for name in _ON_COPY_STREAM)
    copy_ns = (measured.run_wall_ms * 1e6 - dependencies * dependency_us * 1e3) / n
    compute_ns = (measured.run_wall_ms - measured.copy_wait_ms) * 1e6 / n
    if copy_ns <= 0:
        raise InputError(f"{dependencies} dependency calls of {dependency_us} us take longer than "
                         f"performance.{_CONTROL}.run_wall_ms ({measured.run_wall_ms}): nothing is left for copies")
    if compute_ns < 2 * dependency_us * 1e3:
        raise InputError(f"performance.{_CONTROL} leaves {compute_ns / 1e3:.1f} us an entry for the compute stream; "
                         f"its two dependency calls take {2 * dependency_us} us")
    outside_ms = measured.done_prefill_ms - measured.run_wall_ms
    if outside_ms < 0:
        raise InputError(f"performance.{_CONTROL}.done_prefill_ms is {measured.done_prefill_ms}; run_wall_ms, a part "
                         f"of it, is {measured.run_wall_ms}")
    return Costs(round(dependency_us * 1e3), copy_ns, round(compute_ns), outside_ms, tokens)


def imitate(
    case: Case,
    costs: Costs,
    recorded: Mapping[str, Recorded],
    settings: Sequence[BatchSettings] = (),
    *,
    repeat: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> list[Imitated]:
    """Stream a case with these costs at each of some settings. The software runtime must be this process's.

    Parameters
    ----------
    case : Case
    costs : Costs
    recorded : mapping of str to Recorded
        For comparison alone.
    settings : sequence of BatchSettings, optional
        Further arms, after the case's own, the control arm first.
    repeat : int, optional
        Passes of each arm, 1 or more; the one of the median wall counts.
    say : callable, optional
        Called with a line of progress.

    Returns
    -------
    list of Imitated
        The control arm first; settings that clamp to the same are one arm.

    Raises
    ------
    InputError, StrataError
    """
    carried = min(case.expert_bytes, _CARRIED_BYTES)
    small = replace(case, expert_bytes=carried)
    names = [_CONTROL, *(name for name in case.arms if name != _CONTROL)]
    wanted = {batch.clamped(case.gpu_ring, case.host_ring): batch
              for batch in reversed([*(case.arms[name] for name in names), *settings])}
    found = []
    before = control.configuration()
    control.configure(schedule="timed")
    try:
        sources = Sources(small, max(carried, _POOL_BYTES))
        for asked in reversed(wanted.values()):
            arm = make_arm(small, asked, sources.copies)
            say(f"imitating {arm.name}")
            measured = _recorded_at(case, recorded, arm.settings)
            found.append(_imitate_arm(arm, sources, small, costs, measured, repeat))
    finally:
        control.clear_costs()
        control.configure(**before)  # type: ignore[arg-type]
    return found


def _recorded_at(case: Case, recorded: Mapping[str, Recorded], settings: BatchSettings) -> Recorded | None:
    for name, batch in case.arms.items():
        if name in recorded and batch.clamped(case.gpu_ring, case.host_ring) == settings:
            return recorded[name]
    return None


def _imitate_arm(
    arm: Arm, sources: Sources, case: Case, costs: Costs, recorded: Recorded | None, repeat: int
) -> Imitated:
    copies = sources.copies
    with ExpertStreamer(case.expert_bytes, gpu_ring=case.gpu_ring, host_ring=case.host_ring,
                        settings=arm.settings, submission="single") as streamer:
        warm_up(streamer, copies)
        passes = [_imitate_pass(streamer, copies, arm, costs) for _ in range(repeat)]
    wall_ns, copy_busy_ns, compute_busy_ns, waited_s = sorted(passes)[(repeat - 1) // 2]
    return Imitated(
        arm=arm,
        run_wall_ms=wall_ns / 1e6,
        copy_wait_ms=(wall_ns - compute_busy_ns) / 1e6,
        copy_idle_ms=(wall_ns - copy_busy_ns) / 1e6,
        pp_tok_s=costs.pp_tok_s(wall_ns / 1e6),
        waited_s=waited_s,
        walls_ms=[wall / 1e6 for wall, *_ in passes],
        recorded=recorded,
    )


def _imitate_pass(
    streamer: ExpertStreamer, copies: ExpertCopies, arm: Arm, costs: Costs
) -> tuple[int, int, int, float]:
    """Stream the request once: its wall, the two streams' busy times (ns), and what it took (s)."""
    copy, compute = streamer.copy_stream, streamer.compute_stream
    rest_ns = costs.compute_ns - 2 * costs.dependency_ns
    _hip.synchronize_stream(compute)
    control.clear_costs()
    control.cost("record", stream_ns=costs.dependency_ns)
    control.cost("wait", stream_ns=costs.dependency_ns)
    control.cost("copy", per_byte_ns=costs.copy_ns / streamer.slot_bytes)
    try:
        began = time.monotonic_ns()  # the streams' clocks run on the same one
        with streamer.begin(copies) as request:
            for _ in request:
                control.delay(compute, rest_ns)
        _hip.synchronize_stream(compute)
        waited_s = (time.monotonic_ns() - began) / 1e9
        spent = {kind: control.spent(kind) for kind in ("copy", "record", "wait", "delay")}
        wall_ns = max(control.stream_clock(stream) for stream in (copy, compute)) - began
    finally:
        control.clear_costs()  # after Ctrl-C, what is queued takes no time any more
    counters = arm.counters = request.counters
    arm.note_counters(counters)
    _compare_accounts(counters, {kind: cost.operations for kind, cost in spent.items()})
    on_copy = sum(getattr(counters, name) for name in _ON_COPY_STREAM) + counters.fences + counters.begin_waits
    on_compute = counters.copied_waits + counters.used_records
    return (
        wall_ns,
        spent["copy"].stream_ns + on_copy * costs.dependency_ns,
        spent["delay"].stream_ns + on_compute * costs.dependency_ns,
        waited_s,
    )


def _compare_accounts(counters: Counters, charged: Mapping[str, int]) -> None:
    """Refuse a result where the runtime charged other operations than strata counted."""
    counted = {
        "copy": counters.direct_copy_calls + counters.staged_copy_calls,
        "record": counters.direct_copied_records + counters.staged_copied_records + counters.dma_done_records
        + counters.fences + counters.used_records,
        "wait": counters.direct_reuse_waits + counters.staged_reuse_waits + counters.copied_waits
        + counters.begin_waits,
        "delay": counters.copied_waits,
    }
    for kind, count in counted.items():
        if charged[kind] != count:
            raise StrataError(f"the runtime charged {charged[kind]} operations of kind {kind!r}; strata counted "
                              f"{count}")


def _object(data: Any, field: str, prefix: str = "") -> dict[str, Any]:
    value = data.get(field) if isinstance(data, dict) else None
    if not isinstance(value, dict):
        raise InputError(f"{prefix}{field} is {value!r:.60}; an imitation wants the JSON object of what was measured")
    return value


def _positive(data: Mapping[str, Any], field: str, prefix: str = "") -> float:
    value = data.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise InputError(f"{prefix}{field} is {value!r:.60}; a number above 0 (and below 1e12) is wanted")
    return float(value)
