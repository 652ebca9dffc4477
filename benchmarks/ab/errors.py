"""What can end a benchmark."""

from __future__ import annotations

__all__ = ["BenchError", "InputError", "NotComparable", "WatchdogError", "WorkloadError"]


class BenchError(Exception):
    """A benchmark has no result."""


class InputError(BenchError, ValueError):
    """An argument cannot be used, or a package is missing; nothing was run."""


class NotComparable(BenchError):
    """Processes differ in output, model or seed: their times say nothing about settings."""


class WatchdogError(BenchError):
    """The machine ran out of memory, or a process out of time; it was ended."""


class WorkloadError(BenchError):
    """A process failed, or what it printed is no result."""
