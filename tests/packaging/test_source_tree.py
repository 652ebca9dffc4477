"""Python puts the folder it runs in first on the path: in a checkout, ``import strata`` still means what was built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import strata
from tests.support.scripts import environment

PACKAGE = Path(strata.__file__).resolve().parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Python files of a source tree, without a compiled module."""
    shutil.copytree(PACKAGE, tmp_path / "strata", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    return tmp_path


def python(folder: Path, *words: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment(**changes), capture_output=True,
                          text=True, timeout=60)


SAY = "import strata, strata.copies as c; print(strata.__file__); print(c.__file__); print(strata.CopyPlan.__name__)"


@pytest.mark.parametrize("words", [["-c", SAY], ["-c", f"import strata.errors; {SAY}"]], ids=["package", "module"])
def test_the_installed_package_is_meant(checkout: Path, words: list[str]) -> None:
    done = python(checkout, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [str(PACKAGE / "__init__.py"), str(PACKAGE / "copies.py"), "CopyPlan"]


def test_a_module_is_run(checkout: Path) -> None:
    done = python(checkout, "-m", "strata", "--version")
    assert (done.returncode, done.stdout) == (0, f"strata {strata.__version__}\n")


def test_a_tree_built_in_place_is_taken(checkout: Path) -> None:
    for compiled in PACKAGE.rglob("*.so"):
        shutil.copy2(compiled, checkout / "strata" / compiled.relative_to(PACKAGE))
    done = python(checkout, "-c", SAY)
    assert done.stdout.splitlines()[:2] == [str(checkout / "strata" / name) for name in ("__init__.py", "copies.py")]


def test_nothing_installed_is_said(checkout: Path) -> None:
    done = python(checkout, "-S", "-c", "import strata", PYTHONPATH=None)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {checkout / 'strata'} is strata's source tree and not compiled for this Python, and strata is "
        f"not installed: run `pip install .` in {checkout}")


def test_an_installed_package_that_fails_is_no_success(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    broken = tmp_path_factory.mktemp("site")
    (broken / "strata").mkdir()
    (broken / "strata" / "__init__.py").write_text("raise RuntimeError('broken')\n")
    done = python(checkout, "-S", "-c", "import strata", PYTHONPATH=str(broken))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "RuntimeError: broken"
