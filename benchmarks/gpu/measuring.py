"""Passes, repeated and timed, and what a case came to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.gpu.cases import Case

__all__ = ["Pace", "Result", "timed_passes"]


@dataclass
class Pace:
    """How often a pass is repeated.

    Parameters
    ----------
    least, most : int
        Passes that are counted.
    seconds : float
        Once so long was measured, `least` is enough.
    """

    least: int = 3
    most: int = 9
    seconds: float = 0.4


@dataclass
class Result:
    """What a case came to.

    Parameters
    ----------
    case : Case
    nbytes : int
        Bytes moved to the device in one pass.
    seconds : list of float
        Wall time of each counted pass, until the device was done.
    thread_seconds : list of float
        Processor time of the engine's own thread in each of them.
    host_us, issue_us : float, optional
        Of a *host* case: microseconds of the engine's thread, and of issuing, an entry.
    verified : bool, optional
        Whether the device's sum over the bytes of every entry is the host's; None where it was not asked for.
    notes : list of str
    reason : str
        Why there is no measurement; empty where there is one.
    """

    case: Case
    nbytes: int = 0
    seconds: list[float] = field(default_factory=list)
    thread_seconds: list[float] = field(default_factory=list)
    host_us: float | None = None
    issue_us: float | None = None
    verified: bool | None = None
    notes: list[str] = field(default_factory=list)
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Result:
        """The inverse of `as_dict`."""
        return cls(**{**data, "case": Case(**data["case"])})


def timed_passes(case: Case, one_pass: Callable[[], object], synchronize: Callable[[], object],
                 pace: Pace, warm: bool = False) -> Result:
    """Run a pass a few times, after one that is not counted (unless it is warm already).

    Parameters
    ----------
    case : Case
    one_pass : callable
        Streams every entry once; may return while the device still works.
    synchronize : callable
        Returns once the device is done.
    pace : Pace
    warm : bool
        Whether such a pass has been run before.

    Returns
    -------
    Result
    """
    if not warm:
        one_pass()
        synchronize()
    result = Result(case, nbytes=case.entries * case.size)
    while len(result.seconds) < pace.most:
        if len(result.seconds) >= pace.least and sum(result.seconds) >= pace.seconds:
            break
        thread = time.thread_time()
        began = time.perf_counter()
        one_pass()
        thread = time.thread_time() - thread
        synchronize()
        result.seconds.append(time.perf_counter() - began)
        result.thread_seconds.append(thread)
    return result
