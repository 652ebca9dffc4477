"""Puts each fault into a scratch copy of the core, and says which tests notice.

``python -m tests.mutants`` prints a line a mutant; ``--markdown FILE`` writes the page of the docs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.scratch import ScratchTree, Verdict
from tests.mutants.table import markdown, summary


def main(argv: Sequence[str] | None = None) -> int:
    """Try the mutants.

    Returns
    -------
    int
        0 if every mutant was caught; 1 otherwise; 2 if the tests fail without any fault.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page of the docs there")
    parser.add_argument("--only", metavar="TEXT", default="", help="mutants with this in their name")
    parser.add_argument("--first", action="store_true", help="stop each mutant at its first witness")
    arguments = parser.parse_args(argv)
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.name]
    results: dict[Mutant, list[Verdict]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        began = time.monotonic()
        tree = ScratchTree(Path(folder))
        print(f"{time.monotonic() - began:6.1f} s  built", flush=True)
        began = time.monotonic()
        clean = tree.verdicts()
        print(f"{time.monotonic() - began:6.1f} s  without a fault", flush=True)
        if any(verdict.caught for verdict in clean):
            print(f"the tests fail without any fault: {summary(clean)}", file=sys.stderr)
            return 2
        for mutant in chosen:
            began = time.monotonic()
            with tree.mutated(mutant):
                results[mutant] = tree.verdicts(first_only=arguments.first)
            print(f"{time.monotonic() - began:6.1f} s  {mutant.name}: {summary(results[mutant])}", flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(results), encoding="utf-8")
    return 0 if all(any(v.caught for v in verdicts) for verdicts in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
