"""Loops that must not be Python's: built against the installed strata at first use, kept in a private cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import strata
from benchmarks.native.cache import private_cache

__all__ = ["load"]

_SETUP = """
from Cython.Build import cythonize
from setuptools import Extension, setup

setup(ext_modules=cythonize([Extension("loops", ["loops.pyx"], include_dirs=[{include!r}])], language_level=3))
"""


def load() -> ModuleType:
    """Build ``loops.pyx``, unless that was done before for this strata and this Python, and import it.

    Raises
    ------
    OSError
        The cache cannot be used: it is somebody else's, say (`strata.tools.files.UnsafeFolder`).
    """
    source = Path(__file__).with_name("loops.pyx").read_text()
    package = Path(strata.__file__).resolve().parent
    interfaces = [(package / name).read_text() for name in ("capi.pxd", "_hip.pxd")]
    key = hashlib.sha256("\n".join([source, *interfaces, str(package), sys.version]).encode()).hexdigest()[:16]
    built = private_cache("benchmarks", key) / f"loops{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not built.exists():
        _build(source, package, built)
    spec = importlib.util.spec_from_file_location("loops", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(source: str, package: Path, built: Path) -> None:
    """Build beside the place and rename: another process may build, or load, at the same time."""
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        (Path(folder) / "loops.pyx").write_text(source)
        (Path(folder) / "setup.py").write_text(_SETUP.format(include=strata.get_include()))
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder,
                       env={**os.environ, "PYTHONPATH": str(package.parent)}, check=True)
        os.replace(Path(folder) / built.name, built)
