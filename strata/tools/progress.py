"""What a long command does and how far it is: one line that is written over, or a line every ten seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["Progress"]

_REDRAW_S = 0.1  # between two texts of one phase
_TERMINAL_S = 1.0  # between two looks at the clock
_PIPED_S = 10.0


class Progress:
    """Shows what it is told: on a terminal over one line, with the seconds a text is there; else every ten seconds.

    Parameters
    ----------
    stream : file or None
        Usually ``sys.stderr``. Nothing is shown where it is closed.
    clock : callable, optional
        Seconds. Default: `time.monotonic`, and a thread that looks at it until `clear`.

    Notes
    -----
    For any thread. A command that ends calls `clear`; the thread is a daemon all the same.
    """

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] | None = None) -> None:
        self._stream = stream
        self._terminal = stream is not None and stream.isatty()
        self._clock = clock or time.monotonic
        self._ticks = clock is None
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None
        self._text = ""
        self._since = 0.0
        self._began: float | None = None
        self._shown = 0
        self._next = 0.0

    def __call__(self, text: str) -> None:
        """Show `text`, at the latest a second later on a terminal."""
        with self._lock:
            now = self._clock()
            same = _phase(text) == _phase(self._text)
            if text != self._text:
                self._text = text
                if not same:
                    self._since = now
            if self._began is None:
                self._began = now
                self._next = now + (0.0 if self._terminal else _PIPED_S)
            if self._terminal and (not same or now >= self._next):
                self._draw(now)
            elif not self._terminal and now >= self._next:
                self._line(now)
            if self._ticks and self._stop is None and self._stream is not None:
                self._stop = threading.Event()
                threading.Thread(target=self._run, args=(self._stop,), name="progress", daemon=True).start()

    def tick(self) -> None:
        """Look at the clock, and show the last text again where it is time."""
        with self._lock:
            now = self._clock()
            if self._began is None or not self._text:
                return
            if self._terminal:
                if now >= self._since + _TERMINAL_S:
                    self._draw(now)
            elif now >= self._next:
                self._line(now)

    def clear(self) -> None:
        """Wipe the line and be silent until the next text."""
        with self._lock:
            if self._stop is not None:
                self._stop.set()
                self._stop = None
            if self._shown:
                self._write("\r" + " " * self._shown + "\r")
            self._shown = 0
            self._text = ""
            self._began = None

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_TERMINAL_S):
            self.tick()

    def _draw(self, now: float) -> None:
        for_s = int(now - self._since)
        text = self._text + (f" ({for_s} s)" if for_s >= _TERMINAL_S else "")
        self._next = now + _REDRAW_S
        self._write("\r" + text.ljust(self._shown))
        self._shown = len(text)

    def _line(self, now: float) -> None:
        assert self._began is not None
        self._next = now + _PIPED_S
        self._write(f"{now - self._began:.0f} s: {self._text}\n")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody listens any more
            self._stream = None


def _phase(text: str) -> str:
    return text.partition(":")[0]
