"""The mutants, and what caught them, as a page of the docs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from tests.mutants.mutants import Mutant
from tests.mutants.scratch import PANELS, Verdict

__all__ = ["markdown", "summary"]

_SHOWN = 240

_INTRODUCTION = """\
# Would the tests notice?

A test that passes says little as long as nobody knows what would make it fail. So faults were put into the core, one at
a time: each drops, moves or misdirects one step of [the contract](contract.md), by one line. A script applied it to a
scratch copy of the tree, built that, and ran the same tests on it. On the copy without a fault all of them passed.

This page is generated: `python -m tests.mutants --markdown docs/mutants.md` (`pytest -m slow tests/mutants` asks each
mutant for its first witness alone).

The tests, each row in a process of its own that ends at the first failure; those marked `slow` are left out:

"""


def _cell(text: str, *, code: bool = False) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"`` {text} ``".replace("|", "\\|") if code else text.replace("|", "\\|")


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


def markdown(results: Mapping[Mutant, Sequence[Verdict]]) -> str:
    """Write the page."""
    caught = sum(any(v.caught for v in verdicts) for verdicts in results.values())
    rows = ["| panel | tests |", "|---|---|"]
    rows += [f"| {name} | {', '.join(f'`{path}`' for path in paths)} |" for name, paths in PANELS.items()]
    parts = [_INTRODUCTION, "\n".join(rows), f"\n\n## Result: {len(results)} mutants, {caught} caught\n\n"]
    columns = list(PANELS)
    rows = [f"| mutant | file | rule of the contract | {' | '.join(columns)} |", "|---" * (len(columns) + 3) + "|"]
    for mutant, verdicts in results.items():
        by_panel = {v.panel: v for v in verdicts}
        marks = [("" if not by_panel[c].caught else by_panel[c].how) if c in by_panel else "not run" for c in columns]
        rows.append(f"| {mutant.name} | `{mutant.file}` | {_cell(mutant.rule)} | {' | '.join(marks)} |")
    parts.append("\n".join(rows))
    parts.append(
        "\n\n*failed*: a test failed; *hang*: a test or its process came to its time limit; *crash*: the process ended "
        "by a\nsignal; empty: not noticed there. A mutant counts as caught where any panel noticed.\n")
    for mutant, verdicts in results.items():
        parts.append(f"\n## {mutant.name[0].upper()}{mutant.name[1:]}\n\n`strata/{mutant.file}`: {mutant.rule}.\n\n")
        parts.append(f"```diff\n{_diff(mutant)}\n```\n\n")
        rows = ["| caught by | first line of what it said |", "|---|---|"]
        for v in verdicts:
            if v.caught:
                what = _cell(v.message, code=True) if v.how == "failed" else f"{v.how}: {_cell(v.message)}"
                rows.append(f"| `{_test(v)}` | {what} |")
        parts.append("\n".join(rows) if len(rows) > 2 else "**Not caught.**")
        parts.append("\n")
    return "".join(parts)
