"""What a fixture found: plain data that travels between processes as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from strata.counters import Counters
from strata.errors import StrataError

__all__ = ["Outcome", "TooManyFailures"]

#: Failures whose text is kept; all are counted.
_KEPT = 20
#: Cases that ended with an error (and not with a wrong result) after which a fixture gives up: each may have
#: waited for seconds.
_ERRORS = 4


class TooManyFailures(Exception):
    """A fixture gives up: what it tests does not work at all."""


@dataclass
class Outcome:
    """One fixture under one schedule.

    Attributes
    ----------
    fixture : str
    schedule : str
        Of the software runtime; ``device`` on a real one.
    seed : int
    cases : int
        Configurations or situations that were tried.
    generations : int
        Requests in them.
    failures : int
        Failed cases, and whatever else was not as it must be.
    texts : list of str
        What failed, the first 20.
    fence_errors : int
        The sum of this counter over all requests.
    findings : int or None
        Of the happens-before checker; None where there is none.
    accesses : int or None
        Accesses to memory that the checker looked at.
    bytes_checked : int
    seconds : float
    left_out : list of str
        Parts that this runtime does not allow, and why.
    errors : int
        Cases that ended with an error.
    """

    fixture: str
    schedule: str
    seed: int = 0
    cases: int = 0
    generations: int = 0
    failures: int = 0
    texts: list[str] = field(default_factory=list)
    fence_errors: int = 0
    findings: int | None = None
    accesses: int | None = None
    bytes_checked: int = 0
    seconds: float = 0.0
    left_out: list[str] = field(default_factory=list)
    errors: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and something was tried."""
        return self.failures == 0 and self.cases > 0

    def fail(self, text: str) -> None:
        """Count a failure."""
        self.failures += 1
        if len(self.texts) < _KEPT:
            self.texts.append(text)

    def note(self, counters: Counters) -> None:
        """Add what is summed up over requests."""
        self.fence_errors += counters.fence_errors

    def leave_out(self, text: str) -> None:
        """Say, once, that something cannot be tried here."""
        if text not in self.left_out:
            self.left_out.append(text)

    def end_case(self, name: str, problems: list[str], *, error: bool = False) -> None:
        """Count a case.

        Raises
        ------
        TooManyFailures
            If several cases ended with errors.
        """
        self.cases += 1
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.fail(f"{name}: {problems[0]}{more}")
        if error:
            self.count_error()

    @contextmanager
    def case(self, name: str) -> Iterator[list[str]]:
        """Run a case: gives the list that problems go to, and takes an error that ends it for one of them.

        Raises
        ------
        TooManyFailures
            If several cases ended with errors.
        """
        problems: list[str] = []
        error = False
        try:
            yield problems
        except (StrataError, MemoryError, TimeoutError) as problem:
            problems.insert(0, f"{type(problem).__name__}: {problem}")
            error = True
        self.end_case(name, problems, error=error)

    def count_error(self) -> None:
        """Note that a case broke off.

        Raises
        ------
        TooManyFailures
            If several did.
        """
        self.errors += 1
        if self.errors >= _ERRORS:
            raise TooManyFailures(f"gave up after {self.errors} cases that broke off")

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON wants it."""
        return {**asdict(self), "ok": self.ok}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outcome:
        """Undo `as_dict`."""
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})
