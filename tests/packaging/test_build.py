"""A tree that is not whole is refused by the build: no module is left out without a word."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources, without what was built of them."""
    shutil.copytree(ROOT / "strata", tmp_path / "strata", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for generated in (path.with_suffix(".cpp") for path in (tmp_path / "strata").rglob("*.pyx")):
        generated.unlink(missing_ok=True)
    shutil.copy(ROOT / "setup.py", tmp_path)
    return tmp_path


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, capture_output=True,
                          text=True, timeout=120)


@pytest.mark.parametrize("name", ["_planner.pyx", "engine/issuer.pyx"])
def test_a_module_is_missing(tree: Path, name: str) -> None:
    (tree / "strata" / name).unlink()
    done = build(tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"this checkout is not whole: missing are ['strata/{name}'], not listed in setup.py are []")
    assert not list(tree.rglob("*.so"))


def test_a_module_is_not_listed(tree: Path) -> None:
    (tree / "strata" / "engine" / "more.pyx").touch()
    done = build(tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("not listed in setup.py are ['strata/engine/more.pyx']")


def test_a_runtime_has_no_sources(tree: Path) -> None:
    shutil.rmtree(tree / "strata" / "runtime" / "cuda" / "native")
    done = build(tree)
    assert done.returncode == 1
    assert "strata/runtime/cuda/native has no C++ sources" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_declaration_is_missing(tree: Path) -> None:
    (tree / "strata" / "_hip.pxd").unlink()
    done = build(tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("CompileError: strata/_hip.pyx")
    assert not list(tree.rglob("*.so"))
