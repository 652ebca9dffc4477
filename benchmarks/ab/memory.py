"""The machine's memory while a process runs: what is available, and what the process and its children hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.ab.errors import InputError, WatchdogError

__all__ = ["MemoryWatch", "psutil"]


def psutil() -> Any:
    """Import psutil.

    Raises
    ------
    InputError
        It is not installed.
    """
    try:
        import psutil as module  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("psutil is not installed, and the memory is measured with it: "
                         "pip install 'strata-moe[bench]', or psutil alone") from None
    return module


@dataclass
class MemoryWatch:
    """Extremes of what was sampled, and the floor that ends a run.

    Attributes
    ----------
    floor : int
        Bytes that must stay available.
    min_available : int or None
        Least bytes that the system had available; of the whole machine, whatever limit a container has.
    max_working_set : int
        Most bytes that the process and its children had resident, pages that they share counted for each.
    samples : int
    """

    floor: int
    min_available: int | None = None
    max_working_set: int = 0
    samples: int = 0

    def sample(self, pid: int | None = None) -> None:
        """Look once.

        Parameters
        ----------
        pid : int, optional
            The process. One that has ended meanwhile holds nothing.

        Raises
        ------
        WatchdogError
            Less than the floor is available.
        """
        tool = psutil()
        available = int(tool.virtual_memory().available)
        self.samples += 1
        self.min_available = available if self.min_available is None else min(available, self.min_available)
        if pid is not None:
            self.max_working_set = max(self.max_working_set, _working_set(tool, pid))
        if available < self.floor:
            raise WatchdogError(f"{available / 2**30:.2f} GiB of memory is available; {self.floor / 2**30:.2f} GiB "
                                "must stay so")


def _working_set(tool: Any, pid: int) -> int:
    total = 0
    try:
        process = tool.Process(pid)
        family = [process, *process.children(recursive=True)]
    except tool.NoSuchProcess:
        return 0
    for one in family:
        try:
            total += int(one.memory_info().rss)
        except (tool.NoSuchProcess, tool.AccessDenied):
            continue
    return total
