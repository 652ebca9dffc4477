"""``strata bench``: a workload at some settings against others, and against peers, in processes of their own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ab import Arm, BenchError, InputError, NotComparable, Protocol, Workload, bench
from benchmarks.ab.workload import BUILT_IN
from strata.settings import BatchSettings
from strata.tools.cli.arguments import byte_count, positive, settings
from strata.tools.command import BAD_INPUT, FAILED, complain, run_command
from strata.tools.files import same_place, unwritable
from strata.tools.progress import Progress

__all__ = ["main", "run"]

_ARMS = (BatchSettings(1, 1, 1), BatchSettings(8, 16, 16))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``strata bench``; see `strata.tools.cli.main` for the exit status."""
    default = Protocol()
    parser = argparse.ArgumentParser(
        prog="strata bench",
        description="Runs a workload at 1/1/1 and at 8/16/16, and peers, in processes of their own that take turns, "
        "and compares medians. Exits 0 with a comparison, 1 where a process failed or memory ran short, 2 for bad "
        "input and for arms that must not be compared: their outputs, models or seeds differ.",
    )
    parser.add_argument("--settings", metavar="C,S,SC", type=settings, action="append", default=[],
                        help="one more arm; may be repeated")
    parser.add_argument("--only", action="store_true",
                        help="only the arms of --settings and --peer, the first of which the others are compared with")
    parser.add_argument("--peer", metavar="NAME=COMMAND", action="append", default=[],
                        help="one more arm, after those of settings: a command line with {warmups} and {samples} that "
                        "does the workload's work in another way, and reports NAME as its arm; may be repeated")
    parser.add_argument("--workload", metavar="COMMAND", default="prefill-engine",
                        help=f"{' or '.join(BUILT_IN)}, or a command line with {{settings}}, {{warmups}} and "
                        "{samples} that prints one JSON object (default: prefill-engine, run from a checkout)")
    parser.add_argument("--processes", metavar="N", type=positive, default=default.processes,
                        help=f"processes of each arm (default: {default.processes})")
    parser.add_argument("--warmups", metavar="N", type=_count, default=default.warmups,
                        help=f"unmeasured requests of each process (default: {default.warmups})")
    parser.add_argument("--samples", metavar="N", type=positive, default=default.samples,
                        help=f"measured requests of each process (default: {default.samples})")
    parser.add_argument("--min-available", metavar="BYTES", type=byte_count, default=default.min_available,
                        help="end the run when less memory is available (default: 2GiB)")
    parser.add_argument("--timeout", metavar="SECONDS", type=positive, default=int(default.timeout_s),
                        help=f"end the run when a process takes longer (default: {default.timeout_s:g})")
    parser.add_argument("--markdown", metavar="FILE", help="write the report there as Markdown, too")
    parser.add_argument("--json", metavar="FILE", help="write everything there as JSON, too")
    return run_command("strata bench", lambda: run(parser.parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    """Run the command; see `strata.tools.cli.main` for the exit status."""
    progress = Progress(sys.stderr)
    settings = [*(() if arguments.only else _ARMS), *arguments.settings]
    protocol = Protocol(
        processes=arguments.processes,
        warmups=arguments.warmups,
        samples=arguments.samples,
        min_available=arguments.min_available,
        timeout_s=arguments.timeout,
    )
    try:
        for option in ("markdown", "json"):
            problem = unwritable(f"--{option}", getattr(arguments, option))
            if problem is not None:
                raise InputError(problem)
        if None not in (arguments.json, arguments.markdown) and same_place(arguments.json, arguments.markdown):
            raise InputError(f"--json and --markdown are both {arguments.json!r}; a file of its own each is wanted")
        if arguments.workload == "prefill-engine" and not Path("examples/prefill_engine/__main__.py").is_file():
            raise InputError("--workload is 'prefill-engine', which is run from a checkout of strata; elsewhere "
                             "'replay' is allowed, or a command line")
        arms = [*Workload.named(arguments.workload).arms(settings), *map(Arm.peer, arguments.peer)]
        report = bench(arms, protocol, say=progress)
    except (InputError, NotComparable) as error:
        return complain("strata bench", progress, error, BAD_INPUT)
    except BenchError as error:
        return complain("strata bench", progress, error, FAILED)
    finally:
        progress.clear()
    return report.hand_over("strata bench", progress, json=arguments.json, markdown=arguments.markdown)


def _count(text: str) -> int:
    if text.strip() == "0":
        return 0
    if text.strip().startswith("-"):
        raise argparse.ArgumentTypeError(f"{text} is below 0: 0 or more is wanted")
    return positive(text)
