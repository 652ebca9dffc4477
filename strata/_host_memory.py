"""How much memory the host has, in bytes; None where the system does not say."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["available", "total"]


def total() -> int | None:
    """Return the host's physical memory."""
    if sys.platform == "win32":
        return _windows("total_physical")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def available() -> int | None:
    """Return what can be had now without swapping."""
    if sys.platform == "win32":
        return _windows("available_physical")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


class _MemoryStatus(ctypes.Structure):  # MEMORYSTATUSEX
    _fields_ = [
        ("length", ctypes.c_uint32), ("load", ctypes.c_uint32),
        ("total_physical", ctypes.c_uint64), ("available_physical", ctypes.c_uint64),
        ("total_page_file", ctypes.c_uint64), ("available_page_file", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64), ("available_virtual", ctypes.c_uint64),
        ("available_extended_virtual", ctypes.c_uint64),
    ]


def _windows(field: str) -> int | None:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined, unused-ignore]
    if not kernel.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(getattr(status, field))
