"""The shared libraries that this process has loaded, by their paths."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["loaded_libraries"]


def loaded_libraries(part: str) -> list[str]:
    """Return the paths of the loaded files whose path contains `part`; none where the system does not say."""
    if sys.platform == "win32":
        paths = _windows()
    else:
        paths = _maps()
    return sorted(path for path in paths if part in path)


def _maps() -> set[str]:
    try:
        lines = Path("/proc/self/maps").read_bytes().split(b"\n")  # names of files are bytes, in no encoding
    except OSError:
        return set()
    return {os.fsdecode(fields[5]) for line in lines if len(fields := line.split(maxsplit=5)) == 6}


def _windows() -> set[str]:
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined, unused-ignore]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32EnumProcessModules.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32),
    ]
    kernel.GetModuleFileNameW.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32]
    process = kernel.GetCurrentProcess()
    count, needed = 0, ctypes.c_uint32(1024 * ctypes.sizeof(ctypes.c_void_p))
    while needed.value > count * ctypes.sizeof(ctypes.c_void_p):  # more may be loaded meanwhile
        count = needed.value // ctypes.sizeof(ctypes.c_void_p)
        modules = (ctypes.c_void_p * count)()
        if not kernel.K32EnumProcessModules(process, modules, ctypes.sizeof(modules), ctypes.byref(needed)):
            return set()
    name = ctypes.create_unicode_buffer(32768)  # the longest path that Windows has
    paths = set()
    for module in modules[: needed.value // ctypes.sizeof(ctypes.c_void_p)]:
        if kernel.GetModuleFileNameW(module, name, len(name)):
            paths.add(name.value)
    return paths
