"""What an imitation found: as tables to read, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.imitation.platform import Costs, Imitated
from strata.settings import BatchSettings
from strata.tools.replay.case import Case
from strata.tools.report import Report, environment
from strata.tools.tables import Table, signed

__all__ = ["ImitationReport"]

#: Attribute of `Imitated` and of `Recorded`, label, unit's digits.
_FIGURES = (("pp_tok_s", "PP tok/s", 1), ("run_wall_ms", "run wall, ms", 1), ("copy_wait_ms", "copy wait, ms", 1))

_ASSUMPTIONS = (
    "Every record of an event and every wait of a stream for one takes the same time in its stream; it is the "
    "measured saving of copy wait over the number of operations saved, so it comes from both arms: that the copy "
    "wait shrinks about as measured is therefore no finding. PP and wall are.",
    "Everything else is derived from the control arm alone. Its copy stream is taken to be busy from begin to end: "
    "what its dependency calls leave is the copies', by the byte.",
    "The compute stream needs the same time for each entry, its wait and its record included: the control arm's "
    "wall without its copy wait. It is the same in every arm.",
    "What a prefill takes outside the request's wall is the control arm's, in every arm.",
    "Calls take no time on the host, and a staged entry's memcpy none: workers keep up. What threads really need to "
    "wake each other is in the figures, and large on a busy machine; *no idle* is without the time in which the copy "
    "stream had nothing to do for that reason.",
    "Copy wait is the time in which the compute stream had nothing to do but wait for copies. Calls return at once "
    "here, so the engine's own thread does not feel it.",
)


class ImitationReport(Report):
    """What an imitation found, over all of its arms.

    Parameters
    ----------
    imitates : str
        The platform's name.
    case : Case
    costs : Costs
    arms : sequence of Imitated
        The control arm first.
    """

    def __init__(self, imitates: str, case: Case, costs: Costs, arms: Sequence[Imitated]) -> None:
        self.imitates = imitates
        self.case = case
        self.costs = costs
        self.arms = list(arms)

    @property
    def ok(self) -> bool:
        """Whether every counter of every arm is what it has to be. That figures agree is not asked."""
        return not any(one.arm.mismatches for one in self.arms)

    def changes(self, one: Imitated) -> dict[str, dict[str, float | None]]:
        """Percent by which an arm differs from the control arm: imitated, without idle copy streams, as measured."""
        base = self.arms[0]
        both = one.recorded is not None and base.recorded is not None
        full, base_full = self.without_idle(one), self.without_idle(base)
        return {
            name: {
                "imitated": _percent(getattr(one, name), getattr(base, name)),
                "without_idle": _percent(full[name], base_full[name]),
                "measured": _percent(getattr(one.recorded, name), getattr(base.recorded, name)) if both else None,
            }
            for name, _, _ in _FIGURES
        }

    def without_idle(self, one: Imitated) -> dict[str, float]:
        """Return the figures as they would be if no thread were ever late and the copy stream never idle."""
        wall = one.run_wall_ms - one.copy_idle_ms
        return {
            "pp_tok_s": self.costs.pp_tok_s(wall),
            "run_wall_ms": wall,
            "copy_wait_ms": one.copy_wait_ms - one.copy_idle_ms,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON wants it."""
        costs = self.costs
        return {
            "case": self.case.name,
            "imitates": self.imitates,
            "runtime": "software",
            "schedule": "timed",
            "ok": self.ok,
            "costs": {
                "dependency_us": costs.dependency_ns / 1e3,
                "copy_us": costs.copy_ns / 1e3,
                "copy_ns_per_byte": costs.copy_ns / self.case.expert_bytes,
                "compute_us": costs.compute_ns / 1e3,
                "outside_ms": costs.outside_ms,
            },
            "assumptions": list(_ASSUMPTIONS),
            "arms": [self._arm(one) for one in self.arms],
            **environment(),
        }

    def _arm(self, one: Imitated) -> dict[str, Any]:
        arm = one.arm
        counters = arm.counters.as_dict()
        figures = [name for name, _, _ in _FIGURES]
        return {
            "settings": _triple(arm.settings),
            "counters": {name: counters[name] for name in {**arm.expected, **arm.totals} if not name.endswith("bytes")},
            "expected": arm.expected,
            "expected_from": "case" if arm.recorded else "plan",
            "counters_match": not arm.mismatches,
            "mismatches": {name: list(pair) for name, pair in arm.mismatches.items()},
            "imitated": {**{name: getattr(one, name) for name in figures}, "copy_stream_idle_ms": one.copy_idle_ms},
            "without_idle": self.without_idle(one),
            "measured": None if one.recorded is None else {name: getattr(one.recorded, name) for name in figures},
            "change_percent": self.changes(one),
            "run_walls_ms": one.walls_ms,
            "seconds": one.waited_s,
        }

    def parts(self) -> list[str | Table]:
        """Return the figures, as imitated and as measured, and what was taken for granted."""
        case, costs = self.case, self.costs
        names = ["/".join(map(str, _triple(one.arm.settings))) for one in self.arms]
        parts: list[str | Table] = [
            f"case {case.name}: {case.direct:,} direct and {case.staged:,} staged entries of {case.expert_bytes:,} "
            f"bytes, gpu_ring {case.gpu_ring}, host_ring {case.host_ring}",
            f"imitated: {self.imitates}, by waiting, over the software runtime: a dependency call takes "
            f"{costs.dependency_ns / 1e3:.1f} us in its stream, a copy {costs.copy_ns / 1e3:.1f} us "
            f"({case.expert_bytes / costs.copy_ns:.2f} GB/s), an entry's compute {costs.compute_ns / 1e3:.1f} us",
            "",
        ]
        rows = [[label, *(f"{getattr(one, name):.{digits}f}" for one in self.arms)] for name, label, digits in _FIGURES]
        rows.append(["copy stream idle, ms", *(f"{one.copy_idle_ms:.1f}" for one in self.arms)])
        parts.append(Table(["imitated", *names], rows))
        parts.append("")
        full = [self.without_idle(one) for one in self.arms]
        parts.append(Table(["imitated, no idle", *names], [
            [label, *(f"{figures[name]:.{digits}f}" for figures in full)] for name, label, digits in _FIGURES]))
        parts.append("")
        measured = [one.recorded for one in self.arms]
        parts.append(Table(["measured there", *names], [
            [label, *("-" if figures is None else f"{getattr(figures, name):.{digits}f}" for figures in measured)]
            for name, label, digits in _FIGURES
        ]))
        columns = ("imitated", "without_idle", "measured")
        for one, name in zip(self.arms[1:], names[1:], strict=True):
            changes = self.changes(one)
            parts.append("")
            parts.append(Table([f"{name} against {names[0]}", "imitated", "no idle", "measured there"], [
                [label, *(signed(changes[figure][column]) for column in columns)] for figure, label, _ in _FIGURES]))
        parts.append("")
        counted = dict.fromkeys(name for one in self.arms for name in one.arm.expected)
        parts.append(Table(["counter", *(text for name in names for text in (name, "expected"))], [
            [name, *(text for one in self.arms
                     for text in (f"{getattr(one.arm.counters, name):,}", f"{one.arm.expected.get(name, 0):,}"))]
            for name in counted
        ]))
        parts += ["", "taken for granted:", *(f"- {text}" for text in _ASSUMPTIONS), ""]
        for one, name in zip(self.arms, names, strict=True):
            for counter, (actual, expected) in one.arm.mismatches.items():
                parts.append(f"{name}: {counter} is {actual:,}, expected {expected:,}")
        parts.append("ok: every counter matches" if self.ok else "FAILED")
        return parts


def _triple(settings: BatchSettings) -> list[int]:
    return [settings.copy_batch, settings.stage_batch, settings.stage_copy_batch]


def _percent(value: float, base: float) -> float | None:
    return None if base == 0 else (value / base - 1) * 100
