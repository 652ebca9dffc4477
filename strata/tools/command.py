"""How every command begins and ends: one line on standard error for what went wrong, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from strata.errors import StrataError
from strata.tools.progress import Progress

__all__ = [
    "BAD_INPUT", "FAILED", "INTERRUPTED", "OK", "MissingExtra", "OutputError", "complain", "needs", "put",
    "run_command",
]

OK, FAILED, BAD_INPUT = 0, 1, 2
# What a shell reports of a command that Ctrl-C ended, or whose reader has gone.
INTERRUPTED, _NO_READER = 130, 141

# They end a process without a word, and leave what it was at. (SIGHUP: its terminal has gone.)
_ENDING = ("SIGTERM", "SIGHUP")


class OutputError(StrataError):
    """Standard output takes no more."""


class MissingExtra(StrataError):
    """A package is missing that only this command needs."""


def run_command(name: str, run: Callable[[], int]) -> int:
    """Run a command to its end, whatever that is.

    Parameters
    ----------
    name : str
        What its messages begin with.
    run : callable
        The work; returns the exit status.

    Returns
    -------
    int
        Its status; 1, where standard output takes no more; 2, where an extra is missing; 130 after Ctrl-C; 141, where
        the reader of standard output has gone; 143 after SIGTERM; 129 after SIGHUP.

    Raises
    ------
    SystemExit
        By argparse, with 0 for ``--help`` and 2 for arguments that it refuses.

    Notes
    -----
    SIGTERM and SIGHUP unwind as Ctrl-C does, so that nothing half-done stays behind. A handler of the caller's
    own is kept, and so is a signal that is ignored.
    """
    try:
        with _ending_on_request():
            try:
                return run()
            finally:
                _flush()
    except KeyboardInterrupt:
        _say(f"{name}: interrupted")
        return INTERRUPTED
    except _Ended as end:
        _say(f"{name}: ended by {end.signal.name}")
        return 128 + end.signal
    except MissingExtra as problem:
        _say(f"{name}: error: {problem}")
        return BAD_INPUT
    except OutputError as problem:
        _silence()
        if isinstance(problem.__cause__, BrokenPipeError):
            return _NO_READER
        _say(f"{name}: error: {problem}")
        return FAILED


def put(text: object) -> None:
    """Print on standard output, at once.

    Raises
    ------
    OutputError
        It is closed or full.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    try:
        print(text)
    except OSError as problem:
        raise OutputError(f"standard output: {problem.strerror or problem}") from problem
    _flush()


def complain(command: str, progress: Progress | None, problem: BaseException, status: int) -> int:
    """Print a problem in one line and return the exit status."""
    if progress is not None:
        progress.clear()
    text = " ".join(str(problem).split()) or type(problem).__name__
    _say(f"{command}: error: {text}")
    return status


def needs(extra: str, *packages: str) -> None:
    """Look for packages that only an extra brings.

    Raises
    ------
    MissingExtra
        One is missing; the text says how to install it.
    """
    for package in packages:
        try:
            there = find_spec(package) is not None
        except (ImportError, ValueError):  # a parent package is missing, or it was put out of the way
            there = False
        if not there:
            raise MissingExtra(f"{package} is not installed: pip install 'strata-moe[{extra}]', or {package} alone")


class _Ended(BaseException):
    """A signal came. No `Exception`, as KeyboardInterrupt is none: nobody takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


@contextmanager
def _ending_on_request() -> Iterator[None]:
    numbers: list[int] = []
    if threading.current_thread() is threading.main_thread():
        there = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
        numbers = [number for number in there if signal.getsignal(number) == signal.SIG_DFL]

    def end(number: int, frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # once is enough: what unwinds now is not to be disturbed
        raise _Ended(number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _flush() -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as problem:
        raise OutputError(f"standard output: {problem.strerror or problem}") from problem


def _silence() -> None:
    """Let what is left in the buffer go nowhere: the interpreter would flush it again at exit, and complain."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):  # no file stands behind it
        pass


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody listens
        pass
