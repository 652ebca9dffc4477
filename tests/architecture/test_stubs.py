"""Stubs say what their modules say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture import stubs


@pytest.mark.parametrize("stub", stubs.STUBS, ids=lambda path: path.stem)
def test_docstrings_are_the_modules(stub: Path) -> None:
    """``python -m tests.architecture.stubs`` writes them."""
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    differ = [node.name for node, text in stubs.wanted(stub, tree) if text is not None and ast.get_docstring(node) != text]
    assert differ == []


def test_most_of_what_is_public_is_documented() -> None:
    said = [text for stub in stubs.STUBS for _, text in stubs.wanted(stub, ast.parse(stub.read_text(encoding="utf-8")))]
    assert sum(text is not None for text in said) >= 30
