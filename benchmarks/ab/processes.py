"""One process of an arm: started, watched, and ended with all of its children, whatever happens."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO, Any

from benchmarks.ab.errors import InputError, WatchdogError, WorkloadError
from benchmarks.ab.memory import MemoryWatch, psutil
from strata.tools.patience import Patience

__all__ = ["end_family", "run_process"]

_GRACE_S = 3.0  # between asking a process to end and ending it
_TAIL_BYTES = 4096


def run_process(command: Sequence[str], watch: MemoryWatch, *, interval_s: float, timeout_s: float) -> str:
    """Run a command to its end and return what it printed.

    Parameters
    ----------
    command : sequence of str
    watch : MemoryWatch
        Sampled before the start, at the start, and every `interval_s` seconds.
    interval_s, timeout_s : float
        Seconds.

    Returns
    -------
    str
        Its standard output.

    Raises
    ------
    InputError
        There is no such command.
    WatchdogError
        Memory or time ran out.
    WorkloadError
        It ended with another status than 0.

    Notes
    -----
    When this returns or raises (Ctrl-C included) neither the process nor a child of it is left. It has a session
    of its own, so that a terminal's Ctrl-C reaches it through here alone.
    """
    watch.sample()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                       start_new_session=True)
        except OSError as problem:
            raise InputError(f"the workload {command[0]!r} cannot be started: {problem}") from None
        seen: dict[int, Any] = {}
        try:
            _watch_until_end(process, watch, seen, interval_s, timeout_s)
        finally:
            end_family(process, seen)
        if process.returncode != 0:
            raise WorkloadError(f"{_ending(process.returncode)}{_last_words(errors)}")
        out.seek(0)
        return out.read().decode(errors="replace")


def _watch_until_end(process: subprocess.Popen[bytes], watch: MemoryWatch, seen: dict[int, Any], interval_s: float,
                     timeout_s: float) -> None:
    patience = Patience(timeout_s)
    while True:
        pause = patience.slice(interval_s)
        watch.sample(process.pid)
        _note_family(process.pid, seen)
        try:
            process.wait(pause)
            return
        except subprocess.TimeoutExpired:
            if patience.spent():
                raise WatchdogError(f"it has not ended within {timeout_s:g} s") from None


def _note_family(pid: int, seen: dict[int, Any]) -> None:
    tool = psutil()
    try:
        for one in tool.Process(pid).children(recursive=True):
            seen.setdefault(one.pid, one)
    except tool.NoSuchProcess:
        return


def end_family(process: subprocess.Popen[bytes], seen: dict[int, Any] | None = None) -> None:
    """End a process and every child of it: those that are there, and those `seen` earlier, whose parent is gone.

    psutil's processes know when they were born: a number that the system gave to another since is left alone.
    """
    tool = psutil()
    family = dict(seen or {})
    _note_family(process.pid, family)
    if process.poll() is None:
        process.terminate()
    for one in family.values():
        _send(tool, one, "terminate")
    _, stubborn = tool.wait_procs(list(family.values()), timeout=0 if not family else _GRACE_S)
    for one in stubborn:
        _send(tool, one, "kill")
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _send(tool: Any, process: Any, what: str) -> None:
    try:
        getattr(process, what)()
    except tool.NoSuchProcess:
        pass


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _last_words(errors: IO[bytes]) -> str:
    """Return the last line that it wrote to its standard error."""
    size = errors.seek(0, 2)
    errors.seek(max(0, size - _TAIL_BYTES))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""
