"""The fixtures in order, run in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from strata.selftest import copy_groups, held_terminal, ownership, transitions
from strata.selftest.bench import Bench
from strata.selftest.outcome import Outcome, TooManyFailures

__all__ = ["FIXTURES", "run_fixtures"]

FIXTURES: dict[str, Callable[[Bench, Outcome], None]] = {
    "ownership": ownership.run,
    "copy groups": copy_groups.run,
    "held terminal": held_terminal.run,
    "transitions": transitions.run,
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
    outcomes = []
    with bench.configured():
        for name in FIXTURES if names is None else names:
            schedule = (bench.schedule or "as configured") if bench.software else "device"
            outcome = Outcome(name, schedule, seed=bench.seed)
            with outcome.timed():
                try:
                    with bench.watched(outcome):
                        FIXTURES[name](bench, outcome)
                except TooManyFailures as problem:
                    outcome.fail(str(problem))
                except Exception:
                    outcome.fail(f"the fixture broke off: {traceback.format_exc()}")
            outcomes.append(outcome)
    return outcomes
