"""The interface's number, and that what it declares twice is the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import strata

PACKAGE = Path(strata.__file__).resolve().parent
ROOT = PACKAGE.parent
#: An installed package has no sources.
CHECKOUT = Path(__file__).resolve().parents[2] / "strata"

TINY = """# cython: language_level=3
cimport strata.capi as strata
def ok():
    return strata.STRATA_OK
"""

SETUP = """
from setuptools import Extension, setup
from Cython.Build import cythonize
setup(ext_modules=cythonize([Extension("tiny", ["tiny.pyx"])], quiet=True, include_path=["declared"]))
"""


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CFLAGS": "-O0"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", ["1", "7"])
def test_a_module_of_another_abi_says_so_when_it_is_imported(number: str, tmp_path: Path) -> None:
    """Though it uses nothing but a constant: who cimports the interface looks for its number."""
    (tmp_path / "tiny.pyx").write_text(TINY)
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "declared" / "strata").mkdir(parents=True)
    (tmp_path / "declared" / "strata" / "__init__.pxd").touch()
    declared = (PACKAGE / "capi.pxd").read_text()
    assert declared.count("abi_1") == 1
    declared = declared.replace("abi_1", f"abi_{number}").replace("STRATA_ABI = 1", f"STRATA_ABI = {number}")
    (tmp_path / "declared" / "strata" / "capi.pxd").write_text(declared)
    built = run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    shutil.rmtree(tmp_path / "declared")
    done = run([sys.executable, "-c", "import tiny; print(tiny.ok())"], tmp_path)
    if number == "1":
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "0", "")
    else:
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "ImportError: this module was compiled against ABI 7 of strata.capi, and the installed strata has ABI 1: "
            "compile it again")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("    int64_t slot           # index in the GPU ring\n    uintptr_t address      # on the device\n",
         "    uintptr_t address\n    int64_t slot\n", "differ in slot"),
        ("    int64_t nbytes         # to the end", "    int32_t nbytes         # to the end", "differ in"),
        ("    int64_t copy_batch\n    int64_t stage_batch\n", "    int64_t stage_batch\n    int64_t copy_batch\n", "differ in"),
        ("STRATA_HELD = 3 ", "STRATA_HELD = 13", "differs from"),
        ("STRATA_WORKER = 2", "STRATA_WORKER = 3", "differs from"),
    ],
)
def test_a_twin_that_differs_does_not_compile(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    tree = tmp_path / "strata"
    shutil.copytree(CHECKOUT, tree, ignore=lambda folder, names: [
        name for name in names if not (name.endswith((".pxd", ".hpp", ".h")) or name == "capi.pyx"
                                       or Path(folder, name).is_dir())])
    text = (tree / "capi.pxd").read_text()
    assert text.count(old) == 1
    text = text.replace(old, new).replace("cimport int64_t, uint8_t", "cimport int32_t, int64_t, uint8_t")
    (tree / "capi.pxd").write_text(text)
    made = run([sys.executable, "-m", "cython", "--cplus", "-3", "-I", str(tmp_path), "strata/capi.pyx"], tmp_path)
    assert made.returncode == 0, made.stderr
    include = ["-I", str(tree / "include"), "-I", sysconfig_include()]
    compiled = run(["g++", "-std=c++17", "-fsyntax-only", *include, "strata/capi.cpp"], tmp_path)
    assert compiled.returncode != 0
    assert re.search(f"static assertion failed.*{complaint}", compiled.stderr), compiled.stderr[:2000]


def sysconfig_include() -> str:
    import sysconfig

    return sysconfig.get_paths()["include"]
