"""The race as JSON and as Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.measuring import Result
from benchmarks.gpu.targets import evaluate, gb_s

__all__ = ["as_json", "as_markdown", "write"]

_CONSUMERS = {
    "null": "nothing is done with an expert",
    "kernel": "one torch kernel an expert adds it to an accumulator",
    "matvec": "one torch kernel an expert multiplies it, as a bf16 matrix, by a vector",
    "host": "host time alone: nothing makes the host wait",
}


def _cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_cells(head), _cells(["---"] * len(head)), *(_cells(row) for row in rows), ""]


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


def _section(size: int, results: Sequence[Result]) -> list[str]:
    lines = [f"## Experts of {size:,} bytes", ""]
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
                lines += [f"### {memory} sources; {what}", "", *_table(head, rows)]
    return lines


def as_json(head: dict[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """The whole race as plain data: head, targets, results with every sample."""
    targets = [{"name": t.name, "least": t.least, "measured": t.measured, "verdict": t.verdict, "detail": t.detail}
               for t in evaluate(results)]
    return {**head, "targets": targets,
            "results": [{**r.as_dict(), "gb_s": gb_s(r)} for r in results]}


def as_markdown(head: dict[str, Any], results: Sequence[Result]) -> str:
    """The whole race as tables.

    Parameters
    ----------
    head : dict
        ``machine`` as `benchmarks.gpu.machine.describe` gives it, ``commit``, ``command``.
    results : sequence of Result

    Returns
    -------
    str
    """
    machine = head["machine"]
    device = ", ".join(f"{key} {value}" for key, value in machine["device"].items())
    versions = ", ".join(f"{package} {number}" for package, number in machine["versions"].items())
    lines = [
        "# Race", "",
        f"- Device: {device}",
        f"- Host: {machine['processor']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}",
        f"- Versions: {versions}",
        f"- Commit: {head['commit']}",
        f"- Command: `{head['command']}`", "",
        "GB/s are 10^9 bytes to the device a second, median of the passes after warm-up, until the device was done. "
        "Thread us an entry is processor time of the engine's own thread in those passes. Ratios are within this "
        "run, on the same sources. Nothing here was measured on AMD hardware.", "",
        "## Targets", "",
    ]
    rows = [[t.name, f"{t.least:g}", "" if t.measured is None else f"{t.measured:.4f}", t.verdict, t.detail]
            for t in evaluate(results)]
    lines += _table(["ratio", "at least", "measured", "", "cases"], rows)
    for size in dict.fromkeys(r.case.size for r in results):
        lines += _section(size, [r for r in results if r.case.size == size])
    failed = [r for r in results if r.reason]
    if failed:
        lines += ["## Not measured", "", *_table(["case", "reason"], [[r.case.key, " ".join(r.reason.split())]
                                                                     for r in failed])]
    notes = dict.fromkeys(f"- {r.case.peer}: {note}" for r in results if r.case.consumer != "host" for note in r.notes)
    if notes:
        lines += ["## Notes", "", *notes, ""]
    return "\n".join(lines)


def write(folder: Path, head: dict[str, Any], results: Sequence[Result]) -> None:
    """Write ``race.json`` and ``race.md``, each whole or not at all."""
    for name, text in (("race.json", json.dumps(as_json(head, results), indent=1)),
                       ("race.md", as_markdown(head, results))):
        new = folder / f"{name}.new"
        new.write_text(text + "\n")
        new.replace(folder / name)
