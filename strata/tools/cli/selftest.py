"""``strata selftest``: whether strata streams right on this machine."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from strata import runtime
from strata.errors import RuntimeNotFound, SettingsError, StrataError
from strata.runtime import _libraries
from strata.runtime.software.control import Schedule
from strata.tools.cli.arguments import seed as seed_type
from strata.tools.command import BAD_INPUT, FAILED, complain
from strata.tools.files import unwritable
from strata.tools.progress import Progress
from strata.tools.selftest import SCHEDULES, Bench, SelftestReport, run_fixtures, run_in_processes
from strata.tools.selftest.processes import Run, Unusable

__all__ = ["add_parser", "run"]


class _InputError(ValueError):
    pass


def add_parser(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "selftest",
        help="check that strata streams right on this machine",
        description="Runs strata's fixtures (ownership of host buffers, copy groups, the held terminal, "
        "transitions between requests, aborts, spans) on a HIP runtime; on the software one under every schedule, "
        "with a happens-before checker. Prints a page with a block for bug reports. Exits 0 where nothing failed, 1 "
        "where something did, 2 for bad input.",
    )
    parser.add_argument("--runtime", choices=runtime.NAMES,
                        help="HIP runtime (default: STRATA_HIP_RUNTIME, else auto)")
    parser.add_argument("--schedule", choices=SCHEDULES,
                        help="one schedule of the software runtime (default: each of them in turn)")
    parser.add_argument("--seed", metavar="N", type=seed_type,
                        help="of everything that is random (default: a new one, which is printed)")
    parser.add_argument("--quick", action="store_true", help="fewer configurations, less than half a minute")
    parser.add_argument("--share", action="store_true",
                        help="with shared dependencies (spans are always tried with and without)")
    parser.add_argument("--json", metavar="FILE", help="write everything there, too")
    parser.add_argument("--in-process", action="store_true",
                        help="run in this process, for debuggers: a crash or a hang is not caught then")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; see `strata.tools.cli.main` for the exit status."""
    progress = Progress(sys.stderr)
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    began = time.perf_counter()
    try:
        if (refused := unwritable("--json", arguments.json)) is not None:
            raise _InputError(refused)
        name = _runtime(arguments.runtime)
        schedules = _schedules(name, arguments.schedule)
        if arguments.in_process:
            found = _run_here(name, schedules, seed, arguments, progress)
        else:
            found = run_in_processes(runtime=name, schedules=schedules, seed=seed, quick=arguments.quick,
                                     share=arguments.share, say=progress)
    except (_InputError, RuntimeNotFound, SettingsError, Unusable) as problem:
        return complain("strata selftest", progress, problem, BAD_INPUT)
    except (StrataError, MemoryError) as problem:
        return complain("strata selftest", progress, problem, FAILED)
    finally:
        progress.clear()
    report = SelftestReport(
        about=found.about or {"runtime": name},
        outcomes=found.outcomes,
        seed=seed,
        quick=arguments.quick,
        command=_command(arguments, name, seed),
        seconds=time.perf_counter() - began,
    )
    return report.hand_over("strata selftest", progress, json=arguments.json)


def _runtime(name: str | None) -> runtime.Name:
    """Name the runtime that will be used, without opening it in this process."""
    if name is None:
        name = runtime.current() or os.environ.get("STRATA_HIP_RUNTIME", "").strip() or "auto"
    for known in runtime.NAMES:
        if known == name:
            return _libraries.choose()[0] if known == "auto" else known
    raise _InputError(f"STRATA_HIP_RUNTIME is {name!r}; one of {', '.join(runtime.NAMES)} is allowed")


def _schedules(name: str, wanted: Schedule | None) -> Sequence[Schedule | None]:
    if name != "software":
        if wanted is not None:
            raise _InputError(f"--schedule is {wanted!r}; the {name} runtime has no schedules, the software runtime "
                              "alone has")
        return (None,)
    return SCHEDULES if wanted is None else (wanted,)


def _run_here(
    name: runtime.Name, schedules: Sequence[Schedule | None], seed: int, arguments: argparse.Namespace,
    progress: Progress,
) -> Run:
    runtime.use(name)
    found = Run(about=runtime.describe())
    for schedule in schedules:
        found.outcomes += run_fixtures(Bench(schedule=schedule, seed=seed, quick=arguments.quick,
                                             share=arguments.share, say=progress))
    return found


def _command(arguments: argparse.Namespace, name: str, seed: int) -> str:
    words = ["strata", "selftest", "--runtime", name, "--seed", str(seed)]
    if arguments.schedule:
        words += ["--schedule", arguments.schedule]
    words += [f"--{flag}" for flag in ("quick", "share", "in-process") if getattr(arguments, flag.replace("-", "_"))]
    return shlex.join(words)
