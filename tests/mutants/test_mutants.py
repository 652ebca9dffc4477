"""The table of mutants fits the tree and its page. `python -m tests.mutants` tries them; CI does so each time."""

from __future__ import annotations

import pytest

from tests.mutants.around import AROUND
from tests.mutants.mutants import MUTANTS, Edit, Mutant
from tests.mutants.scratch import AROUND_PANELS, PANELS, ROOT, panels_of
from tests.mutants.table import witnesses

ALL = (*MUTANTS, *AROUND)
DOCS = ROOT / "docs" / "mutants.md"


@pytest.mark.parametrize("mutant", ALL, ids=lambda m: m.name)
def test_the_line_is_there_once(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert mutant.applied(text) != text


def test_a_line_that_is_gone_is_told() -> None:
    for text in ("", "a\na\n", "aa\n"):
        with pytest.raises(ValueError, match=r"mutant 'm': found [02] times, not once, in strata/_x.pyx:\na"):
            Mutant("m", "_x.pyx", "r", (Edit("a\n", "b\n"),)).applied(text)


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL)


def test_every_test_of_a_panel_is_there() -> None:
    for paths in (*PANELS.values(), *(paths for _, paths in AROUND_PANELS.values())):
        for path in paths:
            assert (ROOT / path.partition("::")[0]).exists(), path


def test_the_docs_have_every_mutant_as_it_is() -> None:
    in_docs = DOCS.read_text(encoding="utf-8")
    assert f"{len(ALL)} mutants, {len(ALL)} caught" in in_docs
    evidence = " ".join((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    assert f"core itself, {len(MUTANTS)} of them, and into the Python around it, {len(AROUND)}" in evidence
    known = witnesses(in_docs)
    assert known.keys() == {mutant.name for mutant in ALL}, "write docs/mutants.md again"
    for mutant in ALL:
        assert f"| {mutant.name} | `{mutant.path}` | " in in_docs
        assert known[mutant.name]
        assert set(known[mutant.name]) <= set(panels_of(mutant)), mutant.name
