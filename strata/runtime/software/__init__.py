"""The software HIP runtime: HIP's C ABI in C++, for machines without a GPU, for tests and examples.

Nothing here opens the library: that is left to the HIP bindings, or to
:mod:`strata.runtime.software.control`, which talks to the copy that the bindings opened.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["library_path"]


def library_path() -> Path:
    """Return where the runtime's shared library lies, beside this module.

    Returns
    -------
    pathlib.Path
        Absolute path. The package builds and ships the file, so its absence means a damaged
        installation; that is for whoever opens it to report.
    """
    suffix = ".dll" if sys.platform == "win32" else ".so"
    return Path(__file__).resolve().with_name(f"libstrata_hip_software{suffix}")
