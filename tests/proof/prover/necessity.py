"""Drops each dependency call of the suite once, and says what came of it.

``python -m tests.proof.prover.necessity`` prints the tables; ``--markdown FILE`` writes the page of the docs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from strata import runtime
from strata.errors import StrataError
from tests.proof.prover.configuration import Configuration
from tests.proof.prover.suite import quick_suite, suite
from tests.proof.prover.table import markdown
from tests.proof.prover.trials import Trial, trials

__all__ = ["faults", "main"]


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
    parser = argparse.ArgumentParser(prog="python -m tests.proof.prover.necessity", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one configuration of each kind only")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there instead of printing them")
    arguments = parser.parse_args(argv)
    try:
        runtime.use("software")
    except StrataError as problem:
        print(f"strata: {problem}", file=sys.stderr)
        return 2
    results = _run(quick_suite() if arguments.quick else suite())
    text = markdown(results)
    if arguments.markdown is None:
        print(text)
    else:
        arguments.markdown.write_text(text, encoding="utf-8")
    wrong = faults(results)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _run(configurations: Sequence[Configuration]) -> list[Trial]:
    results: list[Trial] = []
    for number, configuration in enumerate(configurations, 1):
        if sys.stderr.isatty():
            print(f"\r\x1b[K{number}/{len(configurations)} {configuration.name}", end="", file=sys.stderr)
        results += trials(configuration)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return results


if __name__ == "__main__":
    sys.exit(main())
