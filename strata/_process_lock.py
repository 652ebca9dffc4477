"""Locks that no child of a fork inherits held: in a child each is new, whoever held it in the parent."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["ProcessLock"]


class ProcessLock:
    """A mutual exclusion among the threads of one process; a context manager.

    Notes
    -----
    A child has one thread, the one that forked. What another held there is held by nobody: waiting for it would never
    end. A thread that forks while it holds the lock itself leaves the block in the child as usual.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        if self._lock.locked():  # not in a child that was forked in between
            self._lock.release()


_all: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _renew() -> None:
    for each in list(_all):
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_renew)
