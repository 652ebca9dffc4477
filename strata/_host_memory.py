"""How much memory the host has, in bytes; None where the system does not say."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from strata import _control_groups

__all__ = ["available", "check_room", "room", "total"]

#: Where the system does not say how much memory there is.
_UNKNOWN = 2**46


def total() -> int | None:
    """Return the host's physical memory."""
    if sys.platform == "win32":
        return _windows("total_physical")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def available() -> int | None:
    """Return what can be had now without swapping, in this container if it has a limit."""
    if sys.platform == "win32":
        return _windows("available_physical")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    left = _control_groups.memory_left()
    return machine if left is None else min(machine, left[0])


def room() -> tuple[int, str]:
    """Return how many bytes can be asked for at once, and whose memory that is."""
    machine = total() or _UNKNOWN
    left = _control_groups.memory_left()
    if left is not None and left[0] < machine:
        return left
    return machine, "the host's memory"


def check_room(what: str, nbytes: int, *, container: bool = False) -> None:
    """Raise `MemoryError` for more than there is `room` for, so that the kernel does not end the process later.

    With `container` only for what a container's limit forbids: what the host does not have, its allocator refuses.
    """
    most, whose = room()
    if nbytes > most and not (container and nbytes > (total() or _UNKNOWN)):
        raise MemoryError(f"{what}: {nbytes} bytes are more than {most}, {whose}")


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
