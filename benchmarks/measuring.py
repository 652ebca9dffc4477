"""Repetition and tables, for all benchmarks."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import strata
from strata.runtime.software import control

__all__ = ["Row", "median_ns", "null_runtime", "show", "takes_nothing"]

#: What was measured, the number with its unit, the target ("" where there is none), whether it was met.
Row = tuple[str, str, str, bool | None]


def median_ns(function: Callable[[], object], repeat: int = 5) -> float:
    """Median nanoseconds of a call, after one that is not counted."""
    function()
    samples = []
    for _ in range(repeat):
        began = time.perf_counter_ns()
        function()
        samples.append(time.perf_counter_ns() - began)
    return statistics.median(samples)


def takes_nothing(description: str | None) -> None:
    """Read a command line without arguments: ``--help``, and an error for whatever else stands there."""
    argparse.ArgumentParser(description=description, epilog="Runs on the software runtime. A target that is missed is "
                            "printed as such; the exit status is 0: these machines are shared.").parse_args()


def null_runtime() -> None:
    """Choose the software runtime and its null schedule: calls are accepted and nothing is copied."""
    strata.runtime.use("software")
    control.configure(schedule="null")


def show(title: str, rows: list[Row]) -> None:
    """Print a table."""
    marks = {True: "ok", False: "MISSED", None: ""}
    cells = [("", "measured", "target", ""), *((a, b, c, marks[d]) for a, b, c, d in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    print(title)
    for name, measured, target, mark in cells:
        line = f"  {name:<{widths[0]}}  {measured:>{widths[1]}}  {target:>{widths[2]}}  {mark}"
        print(line.rstrip())
