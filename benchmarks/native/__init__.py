"""Loops that must not be Python's: built against the installed strata at first use, kept in a temporary folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import strata

__all__ = ["load"]

_SETUP = """
from Cython.Build import cythonize
from setuptools import Extension, setup

setup(ext_modules=cythonize([Extension("loops", ["loops.pyx"], include_dirs=[{include!r}])], language_level=3))
"""


def load() -> ModuleType:
    """Build ``loops.pyx``, unless that was done before for this strata and this Python, and import it."""
    source = Path(__file__).with_name("loops.pyx").read_text()
    package = Path(strata.__file__).resolve().parent
    interfaces = [(package / name).read_text() for name in ("capi.pxd", "_hip.pxd")]
    key = hashlib.sha256("\n".join([source, *interfaces, str(package), sys.version]).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"strata-benchmarks-{key}"
    if not list(folder.glob("loops*.so")):
        folder.mkdir(exist_ok=True)
        (folder / "loops.pyx").write_text(source)
        (folder / "setup.py").write_text(_SETUP.format(include=strata.get_include()))
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            check=True,
        )
    (path,) = folder.glob("loops*.so")
    spec = importlib.util.spec_from_file_location("loops", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
