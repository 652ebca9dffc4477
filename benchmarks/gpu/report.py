"""The race as JSON and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.measuring import Result
from benchmarks.gpu.targets import evaluate, gb_s
from strata.tools.files import write_json, write_whole
from strata.tools.report import Report
from strata.tools.tables import Table

__all__ = ["RaceReport"]

_CONSUMERS = {
    "null": "nothing is done with an expert",
    "kernel": "one torch kernel an expert adds it to an accumulator",
    "matvec": "one torch kernel an expert multiplies it, as a bf16 matrix, by a vector",
    "host": "host time alone: nothing makes the host wait",
}


def _over(rate: float, others: Sequence[float]) -> str:
    return f"{rate / others[0]:.3f}" if others else ""


def _rate(results: Sequence[Result], peer: str, size: int, memory: str, consumer: str, **options: str) -> list[float]:
    """The rate of the first such result, in a list; empty where there is none."""
    for result in results:
        case = result.case
        if ((case.peer, case.size, case.memory, case.consumer) == (peer, size, memory, consumer)
                and all(case.options.get(key) == value for key, value in options.items())):
            rate = gb_s(result)
            if rate is not None:
                return [rate]
    return []


def _throughput_rows(results: Sequence[Result], everything: Sequence[Result]) -> list[list[str]]:
    rows = []
    for result in results:
        case = result.case
        rate = gb_s(result)
        if rate is None:
            continue
        bare = _rate(everything, "bare", case.size, "pinned", "null", how="loop")
        ring = _rate(everything, "torch_ring", case.size, case.memory, case.consumer)
        low, high = (result.nbytes / bound(result.seconds) / 1e9 for bound in (max, min))
        verified = {True: "sum of all bytes", False: "WRONG", None: ""}[result.verified]
        thread = statistics.median(result.thread_seconds) / case.entries * 1e6
        rows.append([case.peer, case.variant, str(case.slots or ""), f"{rate:.2f}", f"{low:.2f} to {high:.2f}",
                     str(len(result.seconds)), _over(rate, bare), _over(rate, ring), f"{thread:.2f}", verified])
    return rows


def _host_rows(results: Sequence[Result]) -> list[list[str]]:
    return [[r.case.peer, r.case.variant, f"{r.host_us:.2f}", f"{r.issue_us:.2f}", "; ".join(r.notes)]
            for r in results if r.host_us is not None and r.issue_us is not None]


def _section(size: int, results: Sequence[Result]) -> list[str | Table]:
    parts: list[str | Table] = [f"## Experts of {size:,} bytes"]
    for memory in ("pinned", "pageable", "mixed"):
        for consumer, what in _CONSUMERS.items():
            here = [r for r in results if r.case.memory == memory and r.case.consumer == consumer]
            if consumer == "host":
                rows = _host_rows(here)
                head = ["peer", "variant", "host us an entry", "issuing us an entry", "what was timed"]
            else:
                rows = _throughput_rows(here, results)
                head = ["peer", "variant", "slots", "GB/s", "slowest to fastest", "passes", "/ bare loop",
                        "/ torch ring", "thread us an entry", "verified"]
            if rows:
                parts += [f"### {memory} sources; {what}", Table(head, rows, left=2)]
    return parts


class RaceReport(Report):
    """The whole race.

    Parameters
    ----------
    head : dict
        ``machine`` as `benchmarks.gpu.machine.describe` gives it, ``commit``, ``command``.
    results : sequence of Result
    """

    def __init__(self, head: dict[str, Any], results: Sequence[Result]) -> None:
        self.head = head
        self.results = results

    @property
    def ok(self) -> bool:
        """Whether every case was measured."""
        return not any(result.reason for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Return head, targets, results with every sample."""
        targets = [{"name": t.name, "least": t.least, "measured": t.measured, "verdict": t.verdict, "detail": t.detail}
                   for t in evaluate(self.results)]
        return {**self.head, "targets": targets,
                "results": [{**r.as_dict(), "gb_s": gb_s(r)} for r in self.results]}

    def parts(self) -> list[str | Table]:
        """Return targets, then a section for each size."""
        head, results = self.head, self.results
        machine = head["machine"]
        device = ", ".join(f"{key} {value}" for key, value in machine["device"].items())
        versions = ", ".join(f"{package} {number}" for package, number in machine["versions"].items())
        targets = [[t.name, f"{t.least:g}", "" if t.measured is None else f"{t.measured:.4f}", t.verdict, t.detail]
                   for t in evaluate(results)]
        parts: list[str | Table] = [
            "# Race",
            f"- Device: {device}",
            f"- Host: {machine['processor']}, {machine['cores']} cores, {machine['system']}, "
            f"Python {machine['python']}",
            f"- Versions: {versions}",
            f"- Commit: {head['commit']}",
            f"- Command: `{head['command']}`",
            "GB/s are 10^9 bytes to the device a second, median of the passes after warm-up, until the device was "
            "done. Thread us an entry is processor time of the engine's own thread in those passes. Ratios are within "
            "this run, on the same sources. Nothing here was measured on AMD hardware.",
            "## Targets",
            Table(["ratio", "at least", "measured", "", "cases"], targets),
        ]
        for size in dict.fromkeys(r.case.size for r in results):
            parts += _section(size, [r for r in results if r.case.size == size])
        failed = [[r.case.key, " ".join(r.reason.split())] for r in results if r.reason]
        if failed:
            parts += ["## Not measured", Table(["case", "reason"], failed, left=2)]
        notes = dict.fromkeys(f"- {r.case.peer}: {note}" for r in results if r.case.consumer != "host"
                              for note in r.notes)
        return [*parts, "## Notes", *notes] if notes else parts

    def write_into(self, folder: Path) -> None:
        """Write ``race.json`` and ``race.md``, each whole or not at all."""
        write_json(folder / "race.json", self.as_dict())
        write_whole(folder / "race.md", self.markdown())
