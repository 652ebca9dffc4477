"""The *cuda* runtime: strata's HIP calls over the NVIDIA driver, on the GPUs that the driver offers.

The library beside this module implements the HIP functions that strata uses over the CUDA driver API, which
it opens at its first call (``libcuda.so.1``, on Windows ``nvcuda.dll``, or what ``STRATA_CUDA_DRIVER`` names).
Importing this module opens nothing.
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
from typing import Any

__all__ = ["has_batch", "library_path", "problem"]


def library_path() -> pathlib.Path:
    """Return where the package keeps this runtime's library.

    Returns
    -------
    pathlib.Path
        The absolute path beside this module. Whether the file exists is not checked.
    """
    suffix = ".dll" if sys.platform == "win32" else ".so"
    return pathlib.Path(__file__).resolve().with_name(f"libstrata_hip_cuda{suffix}")


def problem() -> str:
    """Say why no device can be used here.

    Opens the driver if that was not tried in this process yet; a child that is forked afterwards cannot use
    it. Safe from any thread.

    Returns
    -------
    str
        One sentence: the driver library that was looked for and why it did not open, a symbol that it lacks,
        the status with which it failed to start, that it has no device, or that the process was forked from
        one that uses it. Empty where the runtime works.

    Raises
    ------
    OSError
        If the runtime's own library cannot be loaded.
    """
    sentence: bytes = _ask("strata_cuda_problem", ctypes.c_char_p)
    return sentence.decode(errors="replace")


def has_batch() -> bool:
    """Say whether the driver has batched copies (CUDA 12.8 and newer).

    Opens the driver like `problem`. Safe from any thread.

    Returns
    -------
    bool
        True where ``hipMemcpyBatchAsync`` works; False also where no device can be used.

    Raises
    ------
    OSError
        If the runtime's own library cannot be loaded.
    """
    return bool(_ask("strata_cuda_has_batch", ctypes.c_int))


def _ask(name: str, result: Any) -> Any:
    function = getattr(ctypes.CDLL(str(library_path())), name)
    function.restype = result
    return function()
