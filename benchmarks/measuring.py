"""Repetition and tables, for all benchmarks."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import strata
from strata.errors import StrataError
from strata.runtime.software import control
from strata.tools.command import FAILED, OK, complain, needs, put, run_command
from strata.tools.progress import Progress
from strata.tools.tables import Table

__all__ = ["Row", "command", "median_ns", "null_runtime", "show"]

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


def command(module: str, description: str | None, measure: Callable[[], None], *packages: str) -> int:
    """Run a benchmark as ``python -m``: without arguments, and with one line for whatever ends it.

    Parameters
    ----------
    module : str
        Its ``__spec__.name``.
    description : str or None
    measure : callable
        Measures and prints.
    *packages : str
        What it needs of the extra *bench*.
    """
    def run() -> int:
        argparse.ArgumentParser(
            prog=f"python -m {module}", description=description,
            epilog="Runs on the software runtime. A target that is missed is printed as such; the exit status is 0: "
            "these machines are shared.").parse_args()
        needs("bench", *packages)
        progress = Progress(sys.stderr)
        progress("measuring")
        try:
            measure()
        except (StrataError, OSError, subprocess.CalledProcessError) as problem:
            return complain(f"python -m {module}", progress, problem, FAILED)
        finally:
            progress.clear()
        return OK

    return run_command(f"python -m {module}", run)


def null_runtime() -> None:
    """Choose the software runtime and its null schedule: calls are accepted and nothing is copied."""
    strata.runtime.use("software")
    control.configure(schedule="null")


def show(title: str, rows: list[Row]) -> None:
    """Print a table."""
    marks = {True: "ok", False: "MISSED", None: ""}
    table = Table(("", "measured", "target", ""), [(*row[:3], marks[row[3]]) for row in rows])
    put("\n".join([title, *("  " + line for line in table.text())]))
