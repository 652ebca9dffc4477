"""The fixtures in processes of their own, one a schedule: a crash or a hang is a result like any other."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from strata.tools.patience import next_of
from strata.tools.selftest.outcome import Outcome

__all__ = ["Run", "Unusable", "run_in_processes"]

#: Silence after which a process is given up. No single step of a fixture may wait for so long.
HANG_S = 180.0

# The child sees the same modules as this process, however they were found.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from strata.tools.selftest.worker import main; sys.exit(main())"


@dataclass
class Run:
    """What the processes said.

    Attributes
    ----------
    about : dict or None
        `strata.runtime.describe` of the first process that came so far.
    outcomes : list of Outcome
    """

    about: dict[str, Any] | None = None
    outcomes: list[Outcome] = field(default_factory=list)


class Unusable(Exception):
    """A process could not use the runtime; the text says why."""


def run_in_processes(
    *,
    runtime: str,
    schedules: Sequence[str | None],
    seed: int,
    quick: bool,
    share: bool = False,
    say: Callable[[str], None] = lambda text: None,
    hang_s: float = HANG_S,
) -> Run:
    """Run all fixtures, in one process a schedule, one after the other.

    Parameters
    ----------
    runtime : {"rocm", "software", "cuda"}
    schedules : sequence of str or None
        Of the software runtime; ``(None,)`` for another.
    seed : int
    quick : bool
    share : bool, optional
        Streamers share dependencies.
    say : callable, optional
        Called with a line of progress, often.
    hang_s : float
        Seconds without a sign of life after which a process is ended.

    Returns
    -------
    Run

    Raises
    ------
    Unusable
        The runtime cannot be used.
    """
    run = Run()
    for schedule in schedules:
        order = {"runtime": runtime, "schedule": schedule, "seed": seed, "quick": quick, "share": share}
        _run_one(order, run, say, hang_s)
    return run


def _run_one(order: dict[str, Any], run: Run, say: Callable[[str], None], hang_s: float) -> None:
    schedule = order["schedule"] or "device"
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", _PROGRAM.format(path=sys.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    at = "its start"
    finished = False
    lost = Outcome("process", schedule, seed=order["seed"], cases=1)
    try:
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        while True:
            try:
                line = next_of(lines, hang_s)
            except queue.Empty:
                lost.fail(f"nothing moved for {hang_s:g} s; it was ended. Last seen at: {at}")
                _end_with_traceback(process)
                break
            if line is None:
                break
            said = json.loads(line)
            if "unusable" in said:
                raise Unusable(said["unusable"])
            if "at" in said:
                at = said["at"]
                say(f"{schedule}, {at}")
            elif "about" in said:
                run.about = run.about or said["about"]
            elif "outcome" in said:
                run.outcomes.append(Outcome.from_dict(said["outcome"]))
            elif "finished" in said:
                finished = True
    except OSError:  # it ended before it read its order; its exit status tells more
        pass
    finally:
        if process.poll() is None and not finished:
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
        try:
            status = process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
            lost.fail("the process did not exit after its last fixture; it was killed")
        process.stdout.close()
    if lost.failures == 0 and (status != 0 or not finished):
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        lost.fail(f"the process ended with {ended}. Last seen at: {at}")
    if lost.failures:
        run.outcomes.append(lost)


def _end_with_traceback(process: subprocess.Popen[str]) -> None:
    """End a process that hangs; where signals are, its threads' tracebacks go to standard error."""
    if hasattr(signal, "SIGABRT") and sys.platform != "win32":
        process.send_signal(signal.SIGABRT)
    else:
        process.kill()


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    try:
        for line in stream:
            lines.put(line)
    except ValueError:  # closed meanwhile
        pass
    lines.put(None)
