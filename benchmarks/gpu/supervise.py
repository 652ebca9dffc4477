"""Runs workers, and keeps what they measured when one of them crashes or hangs."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.gpu.cases import Case, Size
from benchmarks.gpu.measuring import Pace, Result
from strata.tools.patience import next_of

__all__ = ["WORKER", "Limits", "supervise"]

WORKER = (sys.executable, "-m", "benchmarks.gpu.worker")


class Limits:
    """How long things may take.

    Parameters
    ----------
    until : float
        `time.monotonic` at which everything ends.
    start_s : float
        Seconds for a worker to make its sources.
    case_s : float
        Seconds for one case.
    """

    def __init__(self, until: float, start_s: float = 150.0, case_s: float = 60.0) -> None:
        self.until = until
        self.start_s = start_s
        self.case_s = case_s


def supervise(sizes: Sequence[Size], cases: Sequence[Case], pace: Pace, limits: Limits, log: Path,
              report: Callable[[Result], None], command: Sequence[str] = WORKER) -> None:
    """Have every case measured, or say why it was not.

    Parameters
    ----------
    sizes : sequence of Size
        Those that occur in the cases.
    cases : sequence of Case
    pace : Pace
    limits : Limits
    log : pathlib.Path
        Gets what the workers write to their standard error.
    report : callable
        Takes the result of each case as it comes; those that failed carry a reason.
    command : sequence of str
        The worker; the path of a file with the cases is appended.

    Notes
    -----
    A case in which the worker dies or takes too long is lost, and a fresh worker goes on with the next. Two
    workers in a row that begin no case at all lose all that is left.
    """
    left = list(cases)
    failed_starts = 0
    while left:
        if time.monotonic() >= limits.until:
            reason = "not reached: the time allowed for the whole race was over"
        else:
            reason, began = _one_worker(sizes, left, pace, limits, log, report, command)
            if began:
                failed_starts = 0
                if reason:
                    report(Result(left.pop(0), reason=reason))
                continue
            failed_starts += 1
            if failed_starts < 2:
                continue
            reason = f"no worker began a case: {reason}"
        for case in left:
            report(Result(case, reason=reason))
        return


def _one_worker(sizes: Sequence[Size], left: list[Case], pace: Pace, limits: Limits, log: Path,
                report: Callable[[Result], None], command: Sequence[str]) -> tuple[str, bool]:
    """Run a worker; take from `left` what it measured. Gives why it ended early, and whether it began a case."""
    began = False
    starting = True
    with tempfile.TemporaryDirectory() as folder, log.open("a") as errors:
        plan = Path(folder) / "cases.json"
        plan.write_text(json.dumps({"sizes": [asdict(size) for size in sizes], "pace": asdict(pace),
                                    "cases": [case.as_dict() for case in left]}))
        worker = subprocess.Popen([*command, str(plan)], stdout=subprocess.PIPE, stderr=errors, text=True)
        assert worker.stdout is not None
        messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(worker.stdout, messages), daemon=True)
        reader.start()
        try:
            while left:
                allowed = limits.start_s if starting else limits.case_s
                rest = limits.until - time.monotonic()
                try:
                    message = next_of(messages, max(0.0, min(allowed, rest)))
                except queue.Empty:
                    if rest < allowed:
                        return "stopped: the time allowed for the whole race was over", True
                    return f"took more than {allowed:g} s", began
                if message is None:
                    return f"its process ended with status {worker.wait()}: {_last_line(log)}", began
                if message["event"] == "result":
                    left.pop(0)
                    report(Result.from_dict(message["result"]))
                else:
                    starting = message["event"] == "sources"
                    began = began or not starting
        finally:
            if left and worker.poll() is None:
                worker.kill()
            try:
                worker.wait(timeout=10)
            except subprocess.TimeoutExpired:  # everything was said
                worker.kill()
                worker.wait()
            reader.join()
            worker.stdout.close()
    return "", began


def _read(stream: IO[str], messages: queue.Queue[dict[str, Any] | None]) -> None:
    for line in stream:
        messages.put(json.loads(line))
    messages.put(None)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it wrote nothing"
