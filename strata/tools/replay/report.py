"""What a replay found."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from strata.counters import Counters
from strata.settings import BatchSettings, Submission
from strata.tools.replay.case import Case
from strata.tools.report import Report, environment
from strata.tools.tables import Table

__all__ = ["Arm", "ReplayReport"]

#: Seconds of a request with timing on: key in the JSON's ``stall`` and attribute of `Counters`, label.
_STALLS = (
    ("wait_publication_s", "engine: copy wait"),
    ("wait_window_s", "issuer: window"),
    ("wait_source_s", "issuer: staged source"),
    ("submission_s", "issuer: submission"),
    ("dependency_calls_s", "all: dependency calls"),
    ("wait_host_reuse_s", "workers: host-buffer reuse"),
    ("host_memcpy_s", "workers: host memcpy"),
    ("wall_s", "wall"),
)


@dataclass
class Arm:
    """One arm of a replay: its settings, what it had to count, and what its passes found.

    Attributes
    ----------
    asked : BatchSettings
        As given.
    settings : BatchSettings
        Clamped to the rings.
    nbytes : int
        Bytes of one pass.
    expected : dict of str to int
        Counters that the arm must meet.
    recorded : bool
        Whether `expected` is the case's own record, or was computed from the plan.
    totals : dict of str to int
        Further counters that follow from the list alone.
    counters : Counters
        Of the check pass.
    mismatches : dict of str to (actual, expected)
        Of any pass: the first one of each counter.
    samples : list of float
        Seconds of the timed passes.
    stalls : list of Counters
        Of passes with timing on.
    """

    asked: BatchSettings
    settings: BatchSettings
    nbytes: int
    expected: dict[str, int]
    recorded: bool
    totals: dict[str, int]
    submission: Submission = "single"
    counters: Counters = field(default_factory=Counters)
    mismatches: dict[str, tuple[int | float, int | float]] = field(default_factory=dict)
    bytes_checked: int = 0
    bytes_wrong: int = 0
    first_wrong: tuple[int, int] | None = None
    samples: list[float] = field(default_factory=list)
    stalls: list[Counters] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The settings as they are written: ``8/16/16``."""
        return "/".join(map(str, _triple(self.settings)))

    @property
    def ok(self) -> bool:
        """Whether every byte was checked, none was wrong, and every counter of every pass matched."""
        return not self.mismatches and self.bytes_wrong == 0 and self.bytes_checked == self.nbytes

    @property
    def seconds(self) -> float:
        """Median of the timed passes."""
        return statistics.median(self.samples)

    @property
    def gb_per_s(self) -> float:
        """Decimal gigabytes a second, at the median."""
        return self.nbytes / self.seconds / 1e9

    @property
    def stall(self) -> dict[str, float]:
        """Median seconds of each timed category."""
        return {
            name: round(statistics.median(float(getattr(c, name)) for c in self.stalls), 9)
            for name, _ in _STALLS
        }

    def note_counters(self, counters: Counters) -> None:
        """Compare a pass's counters with what is expected."""
        for name, pair in counters.matches({**self.totals, **self.expected}).items():
            self.mismatches.setdefault(name, pair)

    def as_dict(self) -> dict[str, Any]:
        """Return the arm as JSON wants it."""
        return {
            "settings": _triple(self.settings),
            "settings_asked": _triple(self.asked),
            "counters": {k: v for k, v in self.counters.as_dict().items() if not k.endswith("_s")},
            "expected": self.expected,
            "expected_from": "case" if self.recorded else "plan",
            "expected_totals": self.totals,
            "counters_match": not self.mismatches,
            "mismatches": {name: list(pair) for name, pair in self.mismatches.items()},
            "bytes_checked": self.bytes_checked,
            "bytes_wrong": self.bytes_wrong,
            "first_wrong": None if self.first_wrong is None else list(self.first_wrong),
            "seconds": self.seconds,
            "samples": self.samples,
            "gb_per_s": self.gb_per_s,
            "stall": self.stall,
            "submission": self.submission,
        }


@dataclass
class ReplayReport(Report):
    """What a replay found, over all of its arms."""

    case: Case
    about: dict[str, object]
    arms: list[Arm]
    pool_bytes: dict[str, int]
    distinct_sources: int
    repeat: int
    separate_timing: bool

    @property
    def ok(self) -> bool:
        """Whether every arm is."""
        return all(arm.ok for arm in self.arms)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON wants it."""
        case = self.case
        return {
            "case": case.name,
            **environment(self.about),
            "ok": self.ok,
            "arms": [arm.as_dict() for arm in self.arms],
            "entries": {"direct": case.direct, "staged": case.staged, "expert_bytes": case.expert_bytes},
            "rings": {"gpu": case.gpu_ring, "host": case.host_ring},
            "pool_bytes": self.pool_bytes,
            "distinct_sources": self.distinct_sources,
            "repeat": self.repeat,
            "stall_from": "a pass of its own" if self.separate_timing else "the timed passes",
        }

    def parts(self) -> list[str | Table]:
        """Return what was streamed, counters, results, and where the time went."""
        case, about = self.case, self.about
        pools = ", ".join(f"{size:,} bytes {kind}" for kind, size in self.pool_bytes.items() if size)
        parts: list[str | Table] = [
            f"case {case.name}: {case.direct:,} direct and {case.staged:,} staged entries of "
            f"{case.expert_bytes:,} bytes, {case.nbytes / 1e9:.3f} GB, gpu_ring {case.gpu_ring}, host_ring "
            f"{case.host_ring}",
            f"runtime {about['runtime']} on {about['device']} ({about['library']})",
            f"sources: {pools or 'none'}, {self.distinct_sources:,} distinct addresses",
            "",
        ]
        names = [arm.name for arm in self.arms]
        head = ["counter", *(text for name in names for text in (name, "expected"))]
        parts.append(Table(head, self._counter_rows()))
        for arm in self.arms:
            if arm.asked != arm.settings:
                asked = "/".join(map(str, _triple(arm.asked)))
                parts.append(f"{arm.name}: {asked}, clamped to the rings")
            if not arm.recorded:
                parts.append(f"{arm.name}: the case has no counters for it; expected ones are the plan's")
        parts.append("")
        parts.append(Table(["", *names], self._result_rows()))
        where = "one more pass" if self.separate_timing else "the timed passes (medians)"
        parts += ["", f"seconds by where they went, from {where} (threads overlap, so they do not add up)"]
        stalls = [arm.stall for arm in self.arms]
        parts.append(Table(["", *names],
                           [[label, *(f"{stall[name]:.3f}" for stall in stalls)] for name, label in _STALLS]))
        parts.append("")
        for arm in self.arms:
            for name, (actual, expected) in arm.mismatches.items():
                parts.append(f"{arm.name}: {name} is {actual:,}, expected {expected:,}")
            if arm.first_wrong is not None:
                entry, offset = arm.first_wrong
                parts.append(f"{arm.name}: {arm.bytes_wrong:,} bytes are wrong, the first at entry {entry}, "
                             f"offset {offset}")
        parts.append("ok: every counter matches, no byte is wrong" if self.ok else "FAILED")
        return parts

    def _counter_rows(self) -> list[list[str]]:
        names = dict.fromkeys(name for arm in self.arms for name in (*arm.expected, *arm.totals))
        rows = []
        for name in names:
            row = [name]
            for arm in self.arms:
                wanted = {**arm.totals, **arm.expected}.get(name)
                actual = arm.mismatches[name][0] if name in arm.mismatches else getattr(arm.counters, name)
                mark = "  !" if name in arm.mismatches else ""
                row += [f"{actual:,}", ("-" if wanted is None else f"{wanted:,}") + mark]
            rows.append(row)
        return rows

    def _result_rows(self) -> list[list[str]]:
        arms = self.arms
        return [
            ["bytes checked", *(f"{arm.bytes_checked:,}" for arm in arms)],
            ["bytes wrong", *(f"{arm.bytes_wrong:,}" for arm in arms)],
            [f"seconds (median of {self.repeat})", *(f"{arm.seconds:.3f}" for arm in arms)],
            ["GB/s", *(f"{arm.gb_per_s:.2f}" for arm in arms)],
        ]


def _triple(settings: BatchSettings) -> list[int]:
    return [settings.copy_batch, settings.stage_batch, settings.stage_copy_batch]
