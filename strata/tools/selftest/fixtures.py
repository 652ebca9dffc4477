"""The fixtures in order, run in this process."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from strata.runtime.software.control import ControlError
from strata.tools.selftest import aborts, copy_groups, held_terminal, ownership, spans, transitions
from strata.tools.selftest.bench import Bench
from strata.tools.selftest.outcome import Outcome, TooManyFailures

__all__ = ["FIXTURES", "run_fixtures"]

FIXTURES: dict[str, Callable[[Bench, Outcome], None]] = {
    "ownership": ownership.run,
    "copy groups": copy_groups.run,
    "held terminal": held_terminal.run,
    "transitions": transitions.run,
    "aborts": aborts.run,
    "spans": spans.run,
}


def run_fixtures(bench: Bench, names: list[str] | None = None) -> list[Outcome]:
    """Run fixtures one after the other.

    Parameters
    ----------
    bench : Bench
    names : list of str, optional
        Which of `FIXTURES`. Default: all of them.

    Returns
    -------
    list of Outcome
        Whatever a fixture raises is one of its failures.
    """
    outcomes: list[Outcome] = []
    try:
        with bench.configured():
            for name in FIXTURES if names is None else names:
                outcomes.append(_run(bench, name))
    except ControlError as problem:
        if not outcomes:
            raise
        outcomes[-1].fail(f"the software runtime cannot be put back as it was: {problem}")
    return outcomes


def _run(bench: Bench, name: str) -> Outcome:
    schedule = (bench.schedule or "as configured") if bench.software else "device"
    outcome = Outcome(name, schedule, seed=bench.seed)
    began = time.perf_counter()
    try:
        with bench.watched(outcome), bench.holding():
            FIXTURES[name](bench, outcome)
    except TooManyFailures as problem:
        outcome.fail(str(problem))
    except Exception:
        outcome.fail(f"the fixture broke off: {traceback.format_exc()}")
    outcome.seconds = time.perf_counter() - began
    return outcome
