"""The software HIP runtime: HIP's C ABI in C++, for machines without a GPU, for tests and examples.

Nothing here opens the library: that is left to the HIP bindings, or to
:mod:`strata.runtime.software.control`, which talks to the copy that the bindings opened.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]

_LIBRARY = "libstrata_hip_software.so"


def library_path() -> Path:
    """Return where the runtime's shared library lies, beside this module.

    Returns
    -------
    pathlib.Path
        Absolute path. The package builds and ships the file, so its absence means a damaged
        installation; that is for whoever opens it to report.
    """
    return Path(__file__).resolve().parent / _LIBRARY
