"""The mutants, and what caught them: a short page for the docs, and everything."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from strata.tools.tables import Table
from tests.mutants.mutants import Mutant
from tests.mutants.scratch import Verdict

__all__ = ["markdown", "short", "summary", "witnesses"]

_SHOWN = 240

_INTRODUCTION = """\
# Would the tests notice?

A test that passes says little as long as nobody knows what would make it fail. So faults were put into the core and
into the Python around it, one at a time: each drops, moves or misdirects one step. On the tree without a fault all of
these tests passed.

This page is generated: `python -m tests.mutants --summary docs/mutants.md`. With `--markdown FILE` the same run writes
everything: each fault as a diff, each test that noticed, and what it said. CI makes that file, with
`--first`: each mutant is asked for its first witness alone, of the tests that this page names for it before others.

"""

Results = Mapping[Mutant, Sequence[Verdict]]
Panels = Mapping[str, Sequence[str]]


def _cell(text: str, *, code: bool = False) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"`` {text} ``" if code else text


def _diff(mutant: Mutant) -> str:
    lines = []
    for edit in mutant.edits:
        lines += [
            line for line in difflib.unified_diff(edit.old.splitlines(), edit.new.splitlines(), lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))
        ]
    return "\n".join(lines)


def _test(verdict: Verdict) -> str:
    return verdict.test.removeprefix("tests/")


def summary(verdicts: Sequence[Verdict]) -> str:
    """Say in a line who caught a mutant."""
    caught = [v for v in verdicts if v.caught]
    return "; ".join(f"{v.panel} ({v.how}): {_test(v)}: {_cell(v.message)}" for v in caught) or "NOT CAUGHT"


def short(results: Results, panels: Panels) -> str:
    """Write the page of the docs: a line a mutant."""
    caught = sum(any(v.caught for v in verdicts) for verdicts in results.values())
    rows = [[mutant.name, f"`{mutant.path}`", ", ".join(v.panel for v in verdicts if v.caught) or "**nothing**"]
            for mutant, verdicts in results.items()]
    tests = [[name, ", ".join(f"`{path}`" for path in paths)] for name, paths in panels.items()]
    return "\n".join([
        _INTRODUCTION + f"## Result: {len(results)} mutants, {caught} caught\n",
        *Table(("mutant", "file", "caught by"), rows, left=3).markdown(),
        "\nThe tests, each row in a process of its own that ends at the first failure; those marked `slow` are left "
        "out:\n",
        *Table(("caught by", "tests"), tests, left=2).markdown(),
    ]) + "\n"


def witnesses(page: str) -> dict[str, list[str]]:
    """The panels that caught each mutant, as the page of the docs has them."""
    return {name: caught.split(", ") for name, caught in re.findall(r"^\| (.+?) \| `.+?` \| (.+?) \|$", page, re.MULTILINE)}


def markdown(results: Results, panels: Panels) -> str:
    """Write everything."""
    parts = [short(results, panels)]
    for mutant, verdicts in results.items():
        parts.append(f"\n## {mutant.name[0].upper()}{mutant.name[1:]}\n\n`{mutant.path}`: {mutant.rule}.\n\n"
                     f"```diff\n{_diff(mutant)}\n```\n\n")
        rows = [[f"`{_test(v)}`", _cell(v.message, code=True) if v.how == "failed" else f"{v.how}: {_cell(v.message)}"]
                for v in verdicts if v.caught]
        parts.append("\n".join(Table(("caught by", "first line of what it said"), rows, left=2).markdown())
                     if rows else "**Not caught.**")
        parts.append("\n")
    return "".join(parts)
