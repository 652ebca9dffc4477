"""Puts each fault into a scratch copy of the tree, and says which tests notice.

``python -m tests.mutants`` prints a line a mutant; ``--markdown FILE`` writes everything, ``--summary FILE`` the short
page of the docs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strata.tools.cli.arguments import positive
from strata.tools.command import BAD_INPUT, FAILED, OK, complain, put, run_command
from strata.tools.files import unwritable, write_whole
from strata.tools.progress import Progress
from tests.mutants.around import AROUND
from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.scratch import AROUND_PANELS, PANELS, ROOT, ScratchTree, Verdict, panels_of
from tests.mutants.table import markdown, short, summary, witnesses

_NAME = "python -m tests.mutants"
#: What the last whole run found.
PAGE = ROOT / "docs" / "mutants.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Try the mutants.

    Returns
    -------
    int
        0 if every mutant was caught; 1 otherwise, or if the tests fail without any fault; 2 for bad input.
    """
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", metavar="FILE", help="write every witness there, with what it said")
    parser.add_argument("--summary", metavar="FILE", help="write the short page there: docs/mutants.md")
    parser.add_argument("--only", metavar="TEXT", default="", help="mutants with this in their name or file")
    parser.add_argument("--first", action="store_true", help="stop each mutant at its first witness")
    parser.add_argument("--known-good", action="store_true", help="the tests have just passed: do not run them without a fault")
    parser.add_argument("--copies", type=positive, default=2, help="scratch copies, each with a mutant of its own (default 2)")
    return run_command(_NAME, lambda: _run(parser.parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    for option in ("markdown", "summary"):
        if (refused := unwritable(f"--{option}", getattr(arguments, option))) is not None:
            return complain(_NAME, progress, ValueError(refused), BAD_INPUT)
    chosen = [mutant for mutant in (*MUTANTS, *AROUND) if arguments.only in f"{mutant.name} {mutant.path}"]
    needed = {name: paths for mutant in chosen for name, paths in panels_of(mutant).items()}
    known = witnesses(PAGE.read_text(encoding="utf-8")) if arguments.first and PAGE.exists() else {}
    results: dict[Mutant, list[Verdict]] = {}
    waiting = deque(enumerate(chosen, 1))

    def try_all(tree: ScratchTree) -> None:
        while (turn := _next(waiting)) is not None:
            number, mutant = turn
            progress(f"mutant {number} of {len(chosen)}: {mutant.name}")
            began = time.monotonic()
            with tree.mutated(mutant):
                panels = panels_of(mutant)
                asked = sorted(panels, key=lambda name: name not in known.get(mutant.name, ()))
                results[mutant] = tree.verdicts({name: panels[name] for name in asked}, first_only=arguments.first)
            progress.clear()
            put(f"{time.monotonic() - began:6.1f} s  {mutant.name}: {summary(results[mutant])}")

    try:
        with (tempfile.TemporaryDirectory(prefix="mutants") as folder,
              ThreadPoolExecutor(arguments.copies) as pool):
            progress("building a scratch copy")
            build = any(mutant.builds for mutant in chosen)
            trees = [ScratchTree(Path(folder, "0"), build=build)]
            trees += [ScratchTree(Path(folder, str(k)), like=trees[0]) for k in range(1, arguments.copies)]
            if not arguments.known_good:
                progress("running the tests without a fault")
                clean = trees[0].verdicts(needed)
                if any(verdict.caught for verdict in clean):
                    return complain(_NAME, progress,
                                    RuntimeError(f"the tests fail without any fault: {summary(clean)}"), FAILED)
            try:
                list(pool.map(try_all, trees))
            finally:
                waiting.clear()
        results = {mutant: results[mutant] for mutant in chosen}
    finally:
        progress.clear()
    for path, text in ((arguments.markdown, markdown), (arguments.summary, short)):
        if path is not None:
            write_whole(path, text(results, {**PANELS, **dict(AROUND_PANELS.values())}))
    return OK if all(any(v.caught for v in verdicts) for verdicts in results.values()) else FAILED


def _next(waiting: deque[tuple[int, Mutant]]) -> tuple[int, Mutant] | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


if __name__ == "__main__":
    sys.exit(main())
