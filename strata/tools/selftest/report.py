"""What a self-test found: as a page to read, as a block for a bug report, and as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import strata
from strata.tools.files import write_json
from strata.tools.selftest.outcome import Outcome

__all__ = ["Report"]

_TEXTS_ON_PAGE = 8
_HEAD = ("fixture", "schedule", "cases", "requests", "failures", "fence errors", "races", "MB checked", "seconds")


@dataclass
class Report:
    """The outcomes of all fixtures, and what they ran on.

    Attributes
    ----------
    about : dict
        `strata.runtime.describe`.
    outcomes : list of Outcome
    seed : int
    quick : bool
    command : str
        What repeats the run.
    seconds : float
        Of the whole run.
    """

    about: dict[str, Any]
    outcomes: list[Outcome]
    seed: int
    quick: bool
    command: str
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=lambda: _versions())

    @property
    def ok(self) -> bool:
        """Whether cases were run, and nothing failed."""
        return any(outcome.cases for outcome in self.outcomes) and all(outcome.ok for outcome in self.outcomes)

    @property
    def fence_errors(self) -> int:
        """The sum over all requests."""
        return sum(outcome.fence_errors for outcome in self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON wants it."""
        return {
            "ok": self.ok,
            "runtime": self.about.get("runtime"),
            "device": self.about.get("device"),
            "library": self.about.get("library"),
            "versions": {
                **self.versions,
                "runtime": self.about.get("runtime_version"),
                "driver": self.about.get("driver_version"),
            },
            "host": {"system": platform.platform(), "processors": os.cpu_count()},
            "seed": self.seed,
            "quick": self.quick,
            "command": self.command,
            "seconds": self.seconds,
            "cases": sum(outcome.cases for outcome in self.outcomes),
            "generations": sum(outcome.generations for outcome in self.outcomes),
            "failures": sum(outcome.failures for outcome in self.outcomes),
            "fence_errors": self.fence_errors,
            "totals": self._totals(),
            "left_out": self._left_out(),
            "outcomes": [outcome.as_dict() for outcome in self.outcomes],
        }

    def write(self, path: str | Path) -> None:
        """Write the JSON in one step: a reader sees the old file or the whole new one.

        Raises
        ------
        OSError
            The file cannot be written; the old one, if any, is as it was.
        """
        write_json(path, self.as_dict())

    def __str__(self) -> str:
        """The page."""
        lines = [
            f"strata {self.versions['strata']} self-test" + (" (quick)" if self.quick else ""),
            *self._facts(),
            f"seed      {self.seed}",
            "",
            *_table(_HEAD, [_row(outcome) for outcome in self.outcomes]),
            "",
        ]
        lines += [f"{fixture}: {cases:,} cases, {requests:,} requests under each of {count} schedules"
                  if count > 1 else f"{fixture}: {cases:,} cases, {requests:,} requests"
                  for fixture, (cases, requests, count) in self._per_schedule().items()]
        lines.append(f"fence errors: {self.fence_errors}")
        lines.append("adversarial schedules, latches and the happens-before checker: "
                     + ("run" if self.about.get("runtime") == "software" else "left out"))
        lines += [f"left out: {text}" for text in self._left_out()]
        lines += [f"FAILED {text}" for text in self._failures()]
        lines += ["", *self._block(), "", "ok" if self.ok else "FAILED"]
        return "\n".join(lines)

    def _facts(self) -> list[str]:
        def told(what: str) -> object:
            return self.about.get(what, "unknown")

        return [
            f"runtime   {told('runtime')} (version {told('runtime_version')}, driver {told('driver_version')})",
            f"device    {told('device')}",
            f"library   {told('library')}",
            f"host      {platform.platform()}, {os.cpu_count()} processors",
            "versions  " + ", ".join(f"{name} {number}" for name, number in self.versions.items()),
        ]

    def _totals(self) -> dict[str, dict[str, int]]:
        totals: dict[str, dict[str, int]] = {}
        for outcome in self.outcomes:
            sums = totals.setdefault(outcome.fixture, {"cases": 0, "generations": 0, "failures": 0})
            sums["cases"] += outcome.cases
            sums["generations"] += outcome.generations
            sums["failures"] += outcome.failures
        return totals

    def _per_schedule(self) -> dict[str, tuple[int, int, int]]:
        """Of each fixture: cases and requests of one schedule (the fewest), and the number of schedules."""
        found: dict[str, tuple[int, int, int]] = {}
        for o in self.outcomes:
            if o.cases:
                cases, requests, count = found.get(o.fixture, (o.cases, o.generations, 0))
                found[o.fixture] = min(cases, o.cases), min(requests, o.generations), count + 1
        return found

    def _left_out(self) -> list[str]:
        return list(dict.fromkeys(text for outcome in self.outcomes for text in outcome.left_out))

    def _failures(self) -> list[str]:
        texts = [f"{o.fixture}, {o.schedule}: {text}" for o in self.outcomes for text in o.texts]
        count = sum(outcome.failures for outcome in self.outcomes)
        shown = texts[:_TEXTS_ON_PAGE]
        if count > len(shown):
            shown.append(f"... and {count - len(shown)} more; --json FILE keeps 20 of each fixture and schedule")
        return shown

    def _block(self) -> list[str]:
        """What to paste in a bug report."""
        counts = "; ".join(f"{fixture} {sums['cases']} cases {sums['generations']} requests {sums['failures']} failures"
                           for fixture, sums in self._totals().items())
        schedules = dict.fromkeys(o.schedule for o in self.outcomes)
        return [
            "----- for a bug report, paste from here -----",
            f"strata selftest: {'ok' if self.ok else 'FAILED'}",
            *self._facts(),
            f"command   {self.command}",
            f"schedules {', '.join(schedules)}",
            f"fixtures  {counts}; {self.fence_errors} fence errors",
            *(f"left out  {text}" for text in self._left_out()),
            *(f"failure   {text}" for text in self._failures()),
            "----- to here -----",
        ]


def _row(outcome: Outcome) -> list[str]:
    return [
        outcome.fixture, outcome.schedule, f"{outcome.cases:,}", f"{outcome.generations:,}",
        f"{outcome.failures:,}" + ("" if outcome.ok else " !"), f"{outcome.fence_errors:,}",
        "-" if outcome.findings is None else f"{outcome.findings:,}", f"{outcome.bytes_checked / 1e6:,.0f}",
        f"{outcome.seconds:.2f}",
    ]


def _table(head: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Lay out columns: the first two to the left, numbers to the right."""
    listed = [list(head), *rows]
    widths = [max(len(row[column]) for row in listed) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in listed
    ]


def _versions() -> dict[str, str]:
    found = {"strata": strata.__version__}
    for name in ("hip-python", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return {**found, "python": platform.python_version()}
