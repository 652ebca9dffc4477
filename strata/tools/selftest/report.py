"""What a self-test found: as a page to read, with a block for a bug report, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata.tools.report import Report, environment
from strata.tools.selftest.outcome import Outcome
from strata.tools.tables import Table

__all__ = ["SelftestReport"]

_TEXTS_ON_PAGE = 8
_HEAD = ("fixture", "schedule", "cases", "requests", "failures", "fence errors", "races", "MB checked", "seconds")


@dataclass
class SelftestReport(Report):
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

    @property
    def where(self) -> dict[str, Any]:
        """Programs and machine."""
        return environment(self.about)

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
            **self.where,
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

    def parts(self) -> list[str | Table]:
        """Return the page."""
        parts: list[str | Table] = [
            f"strata {self.where['versions']['strata']} self-test" + (" (quick)" if self.quick else ""),
            *self._facts(),
            f"seed      {self.seed}",
            "",
            Table(_HEAD, [_row(outcome) for outcome in self.outcomes], left=2),
            "",
        ]
        parts += [f"{fixture}: {cases:,} cases, {requests:,} requests under each of {count} schedules"
                  if count > 1 else f"{fixture}: {cases:,} cases, {requests:,} requests"
                  for fixture, (cases, requests, count) in self._per_schedule().items()]
        parts.append(f"fence errors: {self.fence_errors}")
        parts.append("adversarial schedules, latches and the happens-before checker: "
                     + ("run" if self.about.get("runtime") == "software" else "left out"))
        parts += [f"left out: {text}" for text in self._left_out()]
        parts += [f"FAILED {text}" for text in self._failures()]
        parts += ["", *self._block(), "", "ok" if self.ok else "FAILED"]
        return parts

    def _facts(self) -> list[str]:
        def told(what: str) -> object:
            return self.about.get(what, "unknown")

        return [
            f"runtime   {told('runtime')} (version {told('runtime_version')}, driver {told('driver_version')})",
            f"device    {told('device')}",
            f"library   {told('library')}",
            f"host      {self.where['host']['system']}, {self.where['host']['processors']} processors",
            "versions  " + ", ".join(f"{name} {number}" for name, number in self.where["versions"].items()
                                     if name not in ("runtime", "driver")),
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
