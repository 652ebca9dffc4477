"""What ``import strata`` means in a checkout that was not built in place: the installed package.

``python -m``, ``python -c`` and ``python -m pytest`` put the folder they run in first on the path. In a checkout that
is the source tree, whose Cython modules are not compiled; whoever typed ``pip install .`` before means what that made.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.util import module_from_spec
from pathlib import Path

__all__ = ["prefer_built"]


def prefer_built(package: str, folder: Path) -> None:
    """Put the installed package in the place of `package`, where `folder` holds no compiled modules.

    Parameters
    ----------
    package : str
        Its name; it is being imported.
    folder : Path
        Where its ``__init__.py`` lies.

    Raises
    ------
    ImportError
        If no other package of that name is on the path.
    """
    if any((folder / f"_planner{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        return
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != folder.parent]
    spec = PathFinder.find_spec(package, elsewhere)
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is strata's source tree and not compiled for this Python, and strata is not "
                          f"installed: run `pip install .` in {folder.parent}", name=package, path=str(folder))
    source = sys.modules[package]
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in loaded:
        del sys.modules[name]
    built = module_from_spec(spec)
    sys.modules[package] = built  # the import system returns what it finds here at the end
    try:
        spec.loader.exec_module(built)
    except BaseException:
        sys.modules[package] = source
        raise
