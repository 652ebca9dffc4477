"""Drops each dependency call of the suite once, and says what came of it.

``python -m tests.proof.prover.necessity`` prints everything; ``--markdown FILE`` writes it there, ``--summary FILE``
the short page of the docs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from strata import runtime
from strata.errors import StrataError
from strata.tools.command import BAD_INPUT, FAILED, OK, complain, put, run_command
from strata.tools.files import unwritable, write_whole
from strata.tools.progress import Progress
from tests.proof.prover.suite import quick_suite, suite
from tests.proof.prover.table import NecessityReport
from tests.proof.prover.trials import Trial, trials

__all__ = ["faults", "main"]

_NAME = "python -m tests.proof.prover.necessity"


def faults(results: Sequence[Trial]) -> list[str]:
    """Say what does not agree with the predictions: missed, unexpected, or found as something else."""
    said = []
    for trial in results:
        if trial.missed:
            said.append(f"missed: {trial}")
        elif trial.unexpected:
            said.append(f"unexpected: {trial}")
        elif trial.lost != trial.prediction.lost:
            said.append(f"found as {sorted(trial.lost)} instead of {sorted(trial.prediction.lost)}: {trial}")
    return said


def main(argv: Sequence[str] | None = None) -> int:
    """Run the proof.

    Returns
    -------
    int
        0 if everything was found that had to be, and nothing else; 1 otherwise; 2 for bad input.
    """
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one configuration of each kind only")
    parser.add_argument("--markdown", metavar="FILE", help="write the whole page there instead of printing it")
    parser.add_argument("--summary", metavar="FILE", help="write the short page there: docs/necessity.md")
    return run_command(_NAME, lambda: _run(parser.parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    for option in ("markdown", "summary"):
        if (refused := unwritable(f"--{option}", getattr(arguments, option))) is not None:
            return complain(_NAME, progress, ValueError(refused), BAD_INPUT)
    try:
        runtime.use("software")
    except StrataError as problem:
        return complain(_NAME, progress, problem, BAD_INPUT)
    configurations = quick_suite() if arguments.quick else suite()
    results: list[Trial] = []
    try:
        for number, configuration in enumerate(configurations, 1):
            progress(f"{number} of {len(configurations)}: {configuration.name}")
            results += trials(configuration)
    finally:
        progress.clear()
    if arguments.markdown is None:
        put(NecessityReport(results))
    else:
        write_whole(arguments.markdown, NecessityReport(results).markdown())
    if arguments.summary is not None:
        write_whole(arguments.summary, NecessityReport(results, whole=False).markdown())
    wrong = faults(results)
    for line in wrong:
        print(line, file=sys.stderr)
    return FAILED if wrong else OK


if __name__ == "__main__":
    sys.exit(main())
