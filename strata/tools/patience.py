"""Limits of a wait that count time in which this process could run, not time in which it was stopped.

Ctrl-Z stops a tool together with the processes that it watches: when it goes on, none of them has been slow.
"""

from __future__ import annotations

import queue
import time
from typing import TypeVar

__all__ = ["Patience", "next_of"]

_T = TypeVar("_T")

_SLICE_S = 0.5
_LATE_S = 0.5  # what a loaded machine may wake a waiter late


class Patience:
    """So many seconds to wait, in slices.

    Parameters
    ----------
    seconds : float
        How long, in all.

    Notes
    -----
    A wait of at most `slice` seconds follows each call of it, and then `spent`. One thread uses it.
    """

    def __init__(self, seconds: float) -> None:
        self.left = float(seconds)
        self._asked = 0.0
        self._began = time.monotonic()

    def slice(self, most: float = _SLICE_S) -> float:
        """Return how long to wait now, in seconds: at most `most`."""
        self._asked = max(0.0, min(most, self.left))
        self._began = time.monotonic()
        return self._asked

    def spent(self) -> bool:
        """After a wait, or a piece of work in its place: whether nothing is left."""
        self.left -= min(time.monotonic() - self._began, self._asked + _LATE_S)
        return self.left <= 0


def next_of(items: queue.Queue[_T], seconds: float) -> _T:
    """Take the next item of a queue.

    Raises
    ------
    queue.Empty
        None came for so many seconds.
    """
    patience = Patience(seconds)
    while True:
        try:
            return items.get(timeout=patience.slice())
        except queue.Empty:
            if patience.spent():
                raise
