"""Finding the libraries, and asking them for devices before the bindings are bound to one for good."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from strata.errors import RuntimeNotFound
from strata.runtime import cuda, software
from strata.runtime._loaded import loaded_libraries

logger = logging.getLogger("strata")

#: What `strata.runtime.use` takes.
Name = Literal["rocm", "software", "cuda", "auto"]

# What strata calls (see docs/hip_symbols.md); hipMemcpyBatchAsync alone may be missing.
NEEDED = (
    "hipGetDeviceCount", "hipGetDevice", "hipSetDevice", "hipDeviceGetName", "hipDeviceGetAttribute",
    "hipDeviceSynchronize", "hipRuntimeGetVersion", "hipDriverGetVersion", "hipMemGetInfo", "hipGetLastError",
    "hipPeekAtLastError", "hipGetErrorName", "hipGetErrorString", "hipMalloc", "hipFree", "hipHostMalloc",
    "hipHostFree", "hipHostRegister", "hipHostUnregister", "hipPointerGetAttributes", "hipMemcpy",
    "hipMemcpyAsync", "hipMemsetAsync", "hipStreamCreateWithFlags", "hipStreamDestroy", "hipStreamSynchronize",
    "hipStreamQuery", "hipStreamWaitEvent", "hipStreamGetDevice", "hipLaunchHostFunc",
    "hipEventCreateWithFlags", "hipEventDestroy", "hipEventRecord", "hipEventQuery", "hipEventSynchronize",
)

# How the cuda runtime begins to say that there is no driver at all, and the C library why a file does not open.
_NO_CUDA_DRIVER = "no CUDA driver: "
_NO_FILE = os.strerror(errno.ENOENT)

_INTEGRATED = 16  # hipDeviceAttributeIntegrated, HIP 6 and later
_ROCM_NAME = re.compile(r"libamdhip64\.so(\.\d+)*$|amdhip64(_\d+)?\.dll$", re.IGNORECASE)


def find(name: str) -> str:
    """Return the path of a runtime's library once it opened there and has a device.

    Raises
    ------
    RuntimeNotFound
        With everything that was looked at and why it would not do.
    """
    try:
        return _find(name)
    except _NothingThere as reason:
        raise RuntimeNotFound(str(reason)) from None


def _find(name: str) -> str:
    """As `find`; where there is not even a driver, the error is a kind of its own."""
    if name in ("software", "cuda"):
        path = (software if name == "software" else cuda).library_path()
        if not path.exists():
            raise RuntimeNotFound(f"the {name} runtime is missing from this installation: no {path}")
        try:
            _ask(str(path))
        except _Unfit as reason:
            if name == "software":
                raise RuntimeNotFound(f"the software runtime ({path}) is unfit: {reason}") from None
            problem = cuda.problem()
            kind = _NothingThere if problem.startswith(_NO_CUDA_DRIVER) and _NO_FILE in problem else RuntimeNotFound
            raise kind(f"the cuda runtime cannot be used: {problem or reason}") from None
        return str(path)
    tried = []
    for candidate in _rocm_candidates():
        try:
            _ask(candidate)
        except _Unfit as reason:
            tried.append(f"{candidate}: {reason}")
            continue
        return _mapped(candidate) or candidate
    if not tried:
        raise _NothingThere("the rocm runtime cannot be used: no libamdhip64 is mapped, in rocm_sdk, in ROCM_PATH, in "
                            "/opt/rocm or known to the loader")
    raise RuntimeNotFound(f"the rocm runtime cannot be used: {'; '.join(tried)}")


def choose() -> tuple[Name, str]:
    """Return name and path of the runtime that *auto* takes: a real device where there is one.

    That there is none is usual, and told as information; that a driver is there and strata cannot use it, as a warning.
    """
    reasons = []
    drivers = False
    wanted: tuple[tuple[Name, str], ...] = (("rocm", "/dev/kfd"), ("cuda", "/dev/nvidiactl"))
    for name, node in wanted:
        try:
            path = _find(name)
        except RuntimeNotFound as reason:
            reasons.append(str(reason))
            if not isinstance(reason, _NothingThere):
                drivers = True
            elif os.path.exists(node):
                drivers = True
                reasons.append(f"its kernel driver is there, though ({node})")
            continue
        if _integrated(path):
            drivers = True
            reasons.append(f"the {name} runtime ({path}) has an integrated device only")
            continue
        return name, path
    why = "; ".join(reasons)
    if drivers:
        logger.warning("a GPU's driver is here, but strata can use no device of it, so the software runtime is taken, "
                       "which computes on the host: %s", why)
    else:
        logger.info("no GPU was found, so the software runtime is taken: %s", why)
    return "software", find("software")


class _NothingThere(RuntimeNotFound):
    """Not even a driver."""


class _Unfit(Exception):
    pass


def _ask(path: str) -> None:
    """Open the library and ask for the device count, before anything else is asked of it."""
    try:
        library = ctypes.CDLL(path)
    except OSError as problem:
        raise _Unfit(f"it does not open ({problem})") from None
    count = ctypes.c_int(0)
    try:
        status = library.hipGetDeviceCount(ctypes.byref(count))
    except AttributeError:
        raise _Unfit("it has no hipGetDeviceCount") from None
    missing = [name for name in NEEDED if not hasattr(library, name)] if status == 0 else []
    if missing:
        raise _Unfit(f"it lacks {', '.join(missing)}")
    if status != 0:
        raise _Unfit(f"hipGetDeviceCount gave {_status_name(library, status)} ({status})")
    if count.value < 1:
        raise _Unfit("hipGetDeviceCount counts 0 devices")


def _status_name(library: ctypes.CDLL, status: int) -> str:
    try:
        function = library.hipGetErrorName
    except AttributeError:
        return "status"
    function.restype = ctypes.c_char_p
    return (function(status) or b"status").decode(errors="replace")


def _integrated(path: str) -> bool:
    """Whether device 0 shares the host's memory; a library that does not say is taken to have a real one."""
    value = ctypes.c_int(0)
    library = ctypes.CDLL(path)
    if library.hipDeviceGetAttribute(ctypes.byref(value), _INTEGRATED, 0) != 0:
        library.hipGetLastError()
        return False
    return value.value != 0


def _rocm_candidates() -> Iterator[str]:
    """Yield libraries that may be AMD's, best first: the mapped copy, the SDK's, ROCM_PATH's, the loader's."""
    seen: set[str] = set()
    for paths in (_mapped_libraries, _libraries_of_sdk, _libraries_in_folders):
        for path in paths():
            if path not in seen:
                seen.add(path)
                yield path


def _libraries_of_sdk() -> list[str]:
    try:
        from rocm_sdk import find_libraries  # type: ignore[import-not-found, unused-ignore]

        return [str(path) for path in find_libraries("amdhip64")]
    except Exception as problem:  # not installed, or an installation without its runtime part
        logger.debug("rocm_sdk offers no amdhip64: %r", problem)
        return []


def _libraries_in_folders() -> Iterator[str]:
    for folder in _folders():
        yield from _libraries_in(folder)


def _folders() -> list[Path]:
    roots = [os.environ.get("ROCM_PATH"), os.environ.get("ROCM_HOME")]
    roots.append(os.environ.get("HIP_PATH") if sys.platform == "win32" else "/opt/rocm")
    folders = [Path(root) / part for root in roots if root for part in ("lib", "lib64", "bin")]
    folders += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    if sys.platform.startswith("linux"):
        folders += [Path(p) for p in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")]
    else:
        folders += [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    return folders


def _libraries_in(folder: Path) -> list[str]:
    """Return the folder's copies, best first.

    On Linux that is the plain name, then the highest version: a distribution may ship only those. On Windows the
    plain name is the oldest, of HIP 5; later versions are in the name (``amdhip64_7.dll``).
    """
    try:
        names = [entry.name for entry in folder.iterdir() if _ROCM_NAME.search(entry.name)]
    except OSError:
        return []
    # One file usually has several names.
    if sys.platform == "win32":
        names.sort(key=lambda name: [int(n) for n in re.findall(r"\d+", name)], reverse=True)
    else:
        names.sort(key=lambda name: (name.count("."), [-int(n) for n in re.findall(r"\d+", name)]))
    unique: dict[str, str] = {}
    for name in names:
        unique.setdefault(os.path.realpath(folder / name), str(folder / name))
    return list(unique.values())


def _mapped_libraries() -> list[str]:
    """Return the copies of libamdhip64 that this process has mapped (torch's, say)."""
    return [path for path in loaded_libraries("amdhip64") if _ROCM_NAME.search(path)]


def _mapped(path: str) -> str | None:
    """Return the mapped file behind a path: the name under which the bindings must open the same copy."""
    real = os.path.realpath(path)
    return real if real in _mapped_libraries() else None
