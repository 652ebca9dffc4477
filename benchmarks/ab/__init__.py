"""The evidence harness: a workload in processes of its own, arm against arm, and what may be said of it.

`arms` says how a process of an arm is started (`workload` makes arms of settings), `processes` runs it and ends it,
`memory` watches the machine meanwhile, `process_output` reads what it printed, `protocol` puts the processes of all
arms in order, `agreement` refuses arms that must not be compared, `report` says what came out.
"""

from __future__ import annotations

from benchmarks.ab.arms import Arm
from benchmarks.ab.errors import BenchError, InputError, NotComparable, WatchdogError, WorkloadError
from benchmarks.ab.protocol import Protocol, bench
from benchmarks.ab.report import BenchReport
from benchmarks.ab.workload import Workload

__all__ = [
    "Arm",
    "BenchError",
    "BenchReport",
    "InputError",
    "NotComparable",
    "Protocol",
    "WatchdogError",
    "Workload",
    "WorkloadError",
    "bench",
]
