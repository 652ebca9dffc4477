"""Waiting for what another thread brings about."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]

_DEADLINE_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    """Poll until something is so; a failure if it never is."""
    began = time.perf_counter()
    while not condition():
        assert time.perf_counter() - began < _DEADLINE_S, "what the test waits for has not come"
        time.sleep(0.0002)
