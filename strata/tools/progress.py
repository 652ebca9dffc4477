"""Progress on a terminal: one line that is written over."""

from __future__ import annotations

import time
from typing import TextIO

__all__ = ["Progress"]

_INTERVAL_S = 0.1


class Progress:
    """Writes over one line of a terminal, at most ten times a second; silent on anything else.

    Parameters
    ----------
    stream : file
        Usually ``sys.stderr``.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._phase = ""
        self._shown = 0
        self._next = 0.0

    def __call__(self, text: str) -> None:
        """Show `text`, unless the same phase (the words before a colon) was shown a moment ago."""
        if self._stream is None:
            return
        now = time.monotonic()
        phase = text.partition(":")[0]
        if phase == self._phase and now < self._next:
            return
        self._phase = phase
        self._next = now + _INTERVAL_S
        self._stream.write("\r" + text.ljust(self._shown))
        self._stream.flush()
        self._shown = len(text)

    def clear(self) -> None:
        """Wipe the line."""
        if self._stream is not None and self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()
            self._shown = 0
