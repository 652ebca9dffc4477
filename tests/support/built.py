"""What is compiled for tests is compiled once a run, whichever worker asks first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["built_once"]


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], None]) -> Path:
    """The file that ``build`` makes, given its path. Workers that ask at once may both make it: the last is kept."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    path = shared / name
    if not path.exists():
        made = factory.mktemp("built") / name
        build(made)
        made.replace(path)
    return path
