"""The tests notice a core that breaks the contract: each mutant is caught, and the core without one is not.

The scratch copy is built once; docs/mutants.md has the table of all witnesses.
"""

from __future__ import annotations

import pytest

from tests.mutants.mutants import MUTANTS, Edit, Mutant
from tests.mutants.scratch import PANELS, ROOT, ScratchTree
from tests.mutants.table import markdown

DOCS = ROOT / "docs" / "mutants.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_line_is_there_once(mutant: Mutant) -> None:
    text = (ROOT / "strata" / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(text) != text


def test_a_line_that_is_gone_is_told() -> None:
    for text in ("", "a\na\n", "aa\n"):
        with pytest.raises(ValueError, match=r"mutant 'm': found [02] times, not once, in strata/_x.pyx:\na"):
            Mutant("m", "_x.pyx", "r", (Edit("a\n", "b\n"),)).applied(text)


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_docs_have_every_mutant_as_it_is() -> None:
    in_docs = DOCS.read_text(encoding="utf-8")
    assert f"{len(MUTANTS)} mutants, {len(MUTANTS)} caught" in in_docs
    assert f"core itself, {len(MUTANTS)} of them" in (ROOT / "README.md").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        page = markdown({mutant: []})
        section = page[page.index("\n## " + mutant.name[0].upper() + mutant.name[1:]) :]
        assert section[: section.index("```\n\n") + 4] in in_docs, f"write docs/mutants.md again: {mutant.name}"


# --- with builds ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")  # with pytest-xdist a process may come back to this module
def tree(tmp_path_factory: pytest.TempPathFactory) -> ScratchTree:
    """The scratch copy, built, on which all the tests pass."""
    made = ScratchTree(tmp_path_factory.mktemp("mutants"))
    assert [verdict for verdict in made.verdicts() if verdict.caught] == []
    return made


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_is_caught(mutant: Mutant, tree: ScratchTree) -> None:
    with tree.mutated(mutant):
        verdicts = tree.verdicts(first_only=True)
    assert any(verdict.caught for verdict in verdicts), f"none of {', '.join(PANELS)} noticed"
