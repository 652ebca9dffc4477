"""What a benchmark found."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.ab.machine import Machine
from strata.tools.report import Report
from strata.tools.tables import Table, signed

if TYPE_CHECKING:
    from benchmarks.ab.protocol import ArmRuns, Protocol

__all__ = ["BenchReport", "Spread"]

_GIB = 2**30

#: Figure of a sample, label.
_FIGURES = (
    ("pp_tok_s", "PP, tok/s"),
    ("run_wall_ms", "run wall, ms"),
    ("done_prefill_ms", "DONE prefill, ms"),
    ("ttft_ms", "TTFT, ms"),
    ("copy_wait_ms", "copy wait, ms"),
)


@dataclass(frozen=True)
class Spread:
    """Median, least and most of an arm's samples."""

    median: float
    least: float
    most: float

    @property
    def percent(self) -> float | None:
        """Most less least, in percent of the median; None where that is 0."""
        return None if self.median == 0 else (self.most - self.least) / self.median * 100


@dataclass
class BenchReport(Report):
    """All arms, the first of which the others are compared with."""

    protocol: Protocol
    machine: Machine
    arms: list[ArmRuns]

    @property
    def workload(self) -> str | None:
        """Command line of the arms that have settings; None where there are peers alone."""
        return next((runs.arm.template for runs in self.arms if runs.arm.settings is not None), None)

    def figure(self, arm: ArmRuns, name: str) -> Spread | None:
        """Return a figure over all samples of an arm; None where the workload has none."""
        return _spread([sample.figures[name] for sample in arm.samples])

    def stall(self, arm: ArmRuns, name: str) -> Spread | None:
        """Return a category of the stall split, in seconds, over all samples of an arm."""
        return _spread([sample.stall.get(name) for sample in arm.samples])

    def stalls(self) -> list[str]:
        """Name the categories that any arm has."""
        return list(dict.fromkeys(name for arm in self.arms for sample in arm.samples for name in sample.stall))

    def counters(self) -> list[str]:
        """Name the counters that any arm has."""
        return list(dict.fromkeys(name for arm in self.arms for sample in arm.samples for name in sample.counters))

    def counter(self, arm: ArmRuns, name: str) -> list[int]:
        """Return a counter of an arm: its values, each once. More than one where it is not the same every time."""
        return sorted({sample.counters[name] for sample in arm.samples if name in sample.counters})

    def min_available(self, arm: ArmRuns) -> int:
        """Least bytes that were available while a process of the arm ran."""
        return min(run.memory.min_available or 0 for run in arm.runs)

    def max_working_set(self, arm: ArmRuns) -> int:
        """Most bytes that a process of the arm held with its children."""
        return max(run.memory.max_working_set for run in arm.runs)

    def change(self, arm: ArmRuns, name: str) -> float | None:
        """Percent by which an arm's median of a figure differs from the first arm's."""
        one, base = self.figure(arm, name), self.figure(self.arms[0], name)
        if one is None or base is None or base.median == 0:
            return None
        return (one.median / base.median - 1) * 100

    def overlapping(self, arm: ArmRuns) -> list[str]:
        """Name the figures whose samples overlap those of the first arm: their change may be chance."""
        names = []
        for name, _ in _FIGURES:
            one, base = self.figure(arm, name), self.figure(self.arms[0], name)
            if one is not None and base is not None and one.least <= base.most and base.least <= one.most:
                names.append(name)
        return names

    # --- as JSON ---

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON wants it."""
        first = self.arms[0].runs[0].outcome
        return {
            "workload": self.workload,
            "protocol": asdict(self.protocol),
            "machine": self.machine.as_dict(),
            "commit": self.machine.commit,
            "runtime": first.runtime,
            "model": first.model,
            "seed": first.seed,
            "input": first.workload,
            "fingerprint": first.fingerprint,
            "arms": [self._arm(arm) for arm in self.arms],
        }

    def _arm(self, arm: ArmRuns) -> dict[str, Any]:
        figures = {name: self.figure(arm, name) for name, _ in _FIGURES}
        stalls = {name: self.stall(arm, name) for name in self.stalls()}
        return {
            "name": arm.name,
            "command": arm.arm.template,
            "settings": None if arm.arm.settings is None else list(asdict(arm.arm.settings).values()),
            "settings_used": None if arm.used is None else list(arm.used),
            "median": {name: None if spread is None else spread.median for name, spread in figures.items()},
            "spread": {name: _spread_dict(spread) for name, spread in figures.items()},
            "stall_s": {name: None if spread is None else spread.median for name, spread in stalls.items()},
            "stall_spread": {name: _spread_dict(spread) for name, spread in stalls.items()},
            "change_percent": {name: self.change(arm, name) for name, _ in _FIGURES},
            "overlaps_first_arm": [] if arm is self.arms[0] else self.overlapping(arm),
            "min_available_bytes": self.min_available(arm),
            "max_working_set_bytes": self.max_working_set(arm),
            "counters": {name: _only(self.counter(arm, name)) for name in self.counters()},
            "processes": [
                {
                    "median": {name: None if spread is None else spread.median for name, _ in _FIGURES
                               for spread in [_spread([sample.figures[name] for sample in run.outcome.samples])]},
                    "seconds": run.seconds,
                    "min_available_bytes": run.memory.min_available,
                    "max_working_set_bytes": run.memory.max_working_set,
                    "memory_samples": run.memory.samples,
                    "samples": [
                        {**sample.figures, "stall": sample.stall, "counters": sample.counters}
                        for sample in run.outcome.samples
                    ],
                }
                for run in arm.runs
            ],
        }

    # --- to read ---

    def parts(self) -> list[str | Table]:
        """Return what was measured and where, medians, medians by process, stalls and counters."""
        names = [arm.name for arm in self.arms]
        parts: list[str | Table] = [
            *self._facts(), "", Table(["what all processes did", ""], self._input_rows(), left=2)]
        parts += ["", Table(["median", *self._columns()], self._figure_rows())]
        for arm in self.arms[1:]:
            labels = [label for name, label in _FIGURES if name in self.overlapping(arm)]
            if labels:
                parts += ["", f"Samples of {arm.name} and {self.arms[0].name} overlap, so the change may be chance: "
                          f"{'; '.join(labels)}."]
        parts += ["", "Medians by process:", "", Table(["median", *self._process_columns()], self._process_rows())]
        if self.stalls():
            parts += ["", "Seconds by where they went (threads overlap, so they do not add up):", "",
                      Table(["median", *names], self._stall_rows())]
        if self.counters():
            parts += ["", "Counters of one request:", "", Table(["counter", *names], self._counter_rows())]
        return parts

    def _facts(self) -> list[str]:
        protocol = self.protocol
        first = self.arms[0].runs[0].outcome
        about = ", ".join(f"{name} {value}" for name, value in first.runtime.items() if name != "library")
        measured = protocol.processes * protocol.samples
        return [
            *([] if self.workload is None else [f"workload: {self.workload}"]),
            *(f"arm {arm.name}: {arm.arm.template}" for arm in self.arms if arm.arm.settings is None),
            f"protocol: {protocol.processes} processes an arm in turn, each {protocol.warmups} warm-ups and "
            f"{protocol.samples} samples; medians of {measured}",
            *(["one sample an arm: there is no spread, and every change may be chance"] if measured == 1 else []),
            f"machine: {self.machine}",
            f"strata {self.machine.strata}, commit {self.machine.commit}",
            *([f"ran on: {about}"] if about else []),
            f"outputs of all processes are equal: {first.fingerprint}",
            *(f"arm {arm.name} was clamped to {used}" for arm in self.arms
              if arm.used is not None and (used := "/".join(map(str, arm.used))) != arm.name),
        ]

    def _input_rows(self) -> list[list[object]]:
        first = self.arms[0].runs[0].outcome
        return [[name, value] for what, given in (("model", first.model), ("seed", first.seed), ("", first.workload))
                for name, value in _flat(what, given)]

    def _process_columns(self) -> list[str]:
        return [f"{arm.name}, process {number}" for number in range(1, self.protocol.processes + 1)
                for arm in self.arms]

    def _process_rows(self) -> list[list[str]]:
        runs = [arm.runs[number] for number in range(self.protocol.processes) for arm in self.arms]
        rows = []
        for name, label in _FIGURES:
            spreads = [_spread([sample.figures[name] for sample in run.outcome.samples]) for run in runs]
            if any(spreads):
                rows.append([label, *("-" if spread is None else f"{spread.median:,.1f}" for spread in spreads)])
        return rows

    def _columns(self) -> list[str]:
        first, *others = self.arms
        names = [first.name, "spread"]
        for arm in others:
            names += [arm.name, "spread", "change"]
        return names

    def _figure_rows(self) -> list[list[str]]:
        rows = []
        for name, label in _FIGURES:
            if all(self.figure(arm, name) is None for arm in self.arms):
                continue  # a replay has no tokens
            row = [label]
            for arm in self.arms:
                spread = self.figure(arm, name)
                row += ["-" if spread is None else f"{spread.median:,.1f}",
                        "-" if spread is None or spread.percent is None else f"{spread.percent:.1f} %"]
                if arm is not self.arms[0]:
                    row.append("no change" if name in self.overlapping(arm) else signed(self.change(arm, name)))
            rows.append(row)
        for label, measure in (("minimum available RAM, GiB", self.min_available),
                               ("maximum working set, GiB", self.max_working_set)):
            row = [label]
            for arm in self.arms:
                row += [f"{measure(arm) / _GIB:.2f}", ""] + ([] if arm is self.arms[0] else [""])
            rows.append(row)
        return rows

    def _stall_rows(self) -> list[list[str]]:
        rows = []
        for name in self.stalls():
            spreads = [self.stall(arm, name) for arm in self.arms]
            rows.append([name, *("-" if spread is None else f"{spread.median:.4f}" for spread in spreads)])
        return rows

    def _counter_rows(self) -> list[list[str]]:
        return [[name, *(_range(self.counter(arm, name)) for arm in self.arms)] for name in self.counters()]


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    return Spread(statistics.median(known), min(known), max(known))


def _spread_dict(spread: Spread | None) -> dict[str, float | None] | None:
    return None if spread is None else {"min": spread.least, "max": spread.most, "percent": spread.percent}


def _only(values: list[int]) -> int | list[int] | None:
    return None if not values else values[0] if len(values) == 1 else values


def _range(values: list[int]) -> str:
    """A counter that is not the same in every sample is shown as what it was, never as a mean."""
    return "-" if not values else f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"



def _flat(name: str, value: object) -> list[tuple[str, object]]:
    """Name what an object holds, one row each: ``model.layers``."""
    if not isinstance(value, dict):
        return [(name, "none" if value is None else str(value))]
    return [row for key, inner in value.items() for row in _flat(f"{name}.{key}" if name else str(key), inner)]
