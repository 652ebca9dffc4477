"""Without its extra, an integration says which one to install; the core does not need any."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for module in [each for each in sys.modules if each.startswith("strata.integrations.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}.*: pip install 'strata-moe\[{package}\]'"):
        importlib.import_module(f"strata.integrations.{package}")
