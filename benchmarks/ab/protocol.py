"""The protocol: independent processes of each arm, in turn, each with warm-ups and measured samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.ab.agreement import check_agreement
from benchmarks.ab.arms import Arm
from benchmarks.ab.errors import InputError, WatchdogError, WorkloadError
from benchmarks.ab.machine import Machine
from benchmarks.ab.memory import MemoryWatch, psutil
from benchmarks.ab.process_output import ProcessOutput, Sample, read_output
from benchmarks.ab.processes import run_process
from benchmarks.ab.report import BenchReport

__all__ = ["ArmRuns", "ProcessRun", "Protocol", "bench"]


_MOST_S = 1e9


@dataclass(frozen=True)
class Protocol:
    """How often, and under which watch.

    Attributes
    ----------
    processes, warmups, samples : int
        Processes of an arm; unmeasured and measured requests of each of them.
    interval_s : float
        Seconds between two looks at the memory.
    min_available : int
        Bytes of memory that must stay available.
    timeout_s : float
        Seconds that a process may take.

    Raises
    ------
    InputError
        Naming the attribute, its value and what is allowed.
    """

    processes: int = 2
    warmups: int = 2
    samples: int = 3
    interval_s: float = 0.5
    min_available: int = 2 * 2**30
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        for name, least in (("processes", 1), ("warmups", 0), ("samples", 1), ("min_available", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value!r:.60}; an integer from {least} is wanted")
        for name in ("interval_s", "timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_S:
                raise InputError(f"{name} is {value!r:.60}; seconds above 0, to {_MOST_S:g}, are wanted")


@dataclass(frozen=True)
class ProcessRun:
    """One process of an arm: what it printed, what memory did meanwhile, how long it was there."""

    outcome: ProcessOutput
    memory: MemoryWatch
    seconds: float


@dataclass
class ArmRuns:
    """All processes of an arm."""

    arm: Arm
    runs: list[ProcessRun] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The arm's."""
        return self.arm.name

    @property
    def used(self) -> tuple[int, ...] | None:
        """The settings as the workload used them, clamped to its rings; None of a peer."""
        return self.runs[0].outcome.settings

    @property
    def samples(self) -> list[Sample]:
        """The measured requests of all processes, in order."""
        return [sample for run in self.runs for sample in run.outcome.samples]


def bench(
    arms: Sequence[Arm],
    protocol: Protocol | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> BenchReport:
    """Run every arm and compare.

    Parameters
    ----------
    arms : sequence of Arm
        One or more, each once; the others are compared with the first.
    protocol : Protocol, optional
    say : callable, optional
        Called with a line of progress.

    Returns
    -------
    BenchReport

    Raises
    ------
    InputError
        An argument cannot be used.
    NotComparable
        Processes differ in output, model or seed. It is found after the process that differs.
    WatchdogError, WorkloadError
        A process was ended, or failed; the text names it. No later one was started.
    """
    protocol = protocol or Protocol()
    psutil()
    if not arms:
        raise InputError("there is no arm, neither of settings nor a peer")
    names = [arm.name for arm in arms]
    if len(set(names)) != len(names):
        raise InputError(f"there is an arm twice: {', '.join(names)}")
    machine = Machine.here()
    all_runs = [ArmRuns(arm) for arm in arms]
    done: list[tuple[str, ProcessOutput]] = []
    for turn in range(protocol.processes):
        for runs in all_runs:
            name = f"process {turn + 1} of arm {runs.name}"
            say(f"{name} (of {protocol.processes})")
            run = _run(runs.arm, protocol, name)
            runs.runs.append(run)
            done.append((name, run.outcome))
            check_agreement(done)
    return BenchReport(protocol=protocol, machine=machine, arms=all_runs)


def _run(arm: Arm, protocol: Protocol, name: str) -> ProcessRun:
    watch = MemoryWatch(protocol.min_available)
    command = arm.command(protocol.warmups, protocol.samples)
    began = time.monotonic()
    try:
        text = run_process(command, watch, interval_s=protocol.interval_s, timeout_s=protocol.timeout_s)
        outcome = read_output(text, arm, protocol.samples)
    except (WatchdogError, WorkloadError) as problem:
        raise type(problem)(f"{name}: {problem}") from None
    return ProcessRun(outcome, watch, time.monotonic() - began)
