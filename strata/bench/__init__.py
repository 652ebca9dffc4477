"""The evidence harness: a workload in processes of its own, arm against arm, and what may be said of it.

`arms` says how a process of an arm is started (`workload` makes arms of settings), `processes` runs it and ends it,
`memory` watches the machine meanwhile, `outcome` reads what it printed, `protocol` puts the processes of all arms in
order, `agreement` refuses arms that must not be compared, `report` says what came out.
"""

from __future__ import annotations

from strata.bench.arms import Arm
from strata.bench.errors import BenchError, InputError, NotComparable, WatchdogError, WorkloadError
from strata.bench.protocol import Protocol, bench
from strata.bench.report import Report
from strata.bench.workload import Workload

__all__ = [
    "Arm",
    "BenchError",
    "InputError",
    "NotComparable",
    "Protocol",
    "Report",
    "WatchdogError",
    "Workload",
    "WorkloadError",
    "bench",
]
