"""``strata replay --imitate``: what grouping is worth on an expensive platform."""

from __future__ import annotations

import argparse

from benchmarks.imitation.platform import PLATFORMS, derive, imitate, load_recorded
from benchmarks.imitation.report import ImitationReport
from strata import runtime
from strata.errors import RuntimeNotFound, StrataError
from strata.tools.command import BAD_INPUT, FAILED, complain
from strata.tools.files import unwritable
from strata.tools.progress import Progress
from strata.tools.replay import InputError, load_case

__all__ = ["run"]


def run(arguments: argparse.Namespace, progress: Progress) -> int:
    """Run the imitation with the arguments of ``strata replay``; exit status as there."""
    try:
        problem = _refused(arguments)
        if problem is not None:
            raise InputError(problem)
        case = load_case(arguments.case)
        recorded, dependency_us, tokens = load_recorded(case, arguments.case)
        costs = derive(case, recorded, dependency_us, tokens)
        runtime.use("software")
        arms = imitate(case, costs, recorded, arguments.settings, repeat=arguments.repeat or 1,
                       say=progress)
    except (InputError, RuntimeNotFound) as error:
        return complain("strata replay", progress, error, BAD_INPUT)
    except (StrataError, MemoryError) as error:
        return complain("strata replay", progress, error, FAILED)
    finally:
        progress.clear()
    report = ImitationReport(arguments.imitate, case, costs, arms)
    return report.hand_over("strata replay", progress, json=arguments.json)


def _refused(arguments: argparse.Namespace) -> str | None:
    """Name an option that means nothing here, rather than pass over it."""
    if arguments.imitate not in PLATFORMS:
        return f"--imitate is {arguments.imitate!r}; {', '.join(PLATFORMS)} is allowed"
    if arguments.runtime not in (None, "software"):
        return f"--runtime is {arguments.runtime!r}; an imitation runs on 'software' alone"
    if arguments.submission != "single":
        return f"--submission is {arguments.submission!r}; an imitation submits 'single' copies, as was measured"
    if arguments.pool is not None:
        return f"--pool is {arguments.pool}; an imitation moves no bytes that would need one"
    if arguments.separate_timing:
        return "--separate-timing is set; an imitation reads the streams' own clocks"
    return unwritable("--json", arguments.json)
