"""The self-test: whether strata streams right on this machine, on whichever runtime is chosen.

The fixtures are the reference work's own (*ownership* of host buffers, *copy groups* against an oracle, the *held
terminal*, and *transitions* between requests), *aborts*, and *spans*. Under the software runtime each of them runs
under every schedule with the happens-before checker on; on a real device what needs the runtime's help is left out,
and the report says so.
"""

from __future__ import annotations

from strata.tools.selftest.bench import SCHEDULES, Bench
from strata.tools.selftest.fixtures import FIXTURES, run_fixtures
from strata.tools.selftest.outcome import Outcome
from strata.tools.selftest.processes import run_in_processes
from strata.tools.selftest.report import SelftestReport

__all__ = ["FIXTURES", "SCHEDULES", "Bench", "Outcome", "SelftestReport", "run_fixtures", "run_in_processes"]
