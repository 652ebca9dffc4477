"""``strata replay``: stream a recorded request, check every byte and counter, time it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from strata import runtime
from strata.errors import RuntimeNotFound, SettingsError, StrataError
from strata.tools.cli.arguments import byte_count, positive, settings
from strata.tools.cli.checkout import from_checkout
from strata.tools.command import BAD_INPUT, FAILED, complain
from strata.tools.files import unwritable
from strata.tools.progress import Progress
from strata.tools.replay import InputError, load_case, replay

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "replay",
        help="stream a recorded request, check every byte and counter, time it",
        description="Streams a recorded request from pools of pinned and pageable memory: once checking "
        "every byte and counter, then timed. Exits 0 where all of them are right, 1 where not, 2 for bad "
        "input.",
    )
    parser.add_argument("--case", metavar="FILE", help="JSON of the request (default: the reference request)")
    parser.add_argument("--settings", metavar="C,S,SC", type=settings, action="append", default=[],
                        help="copy batch, stage batch, stage copy batch of an arm; may be repeated "
                        "(default: the case's arms)")
    parser.add_argument("--runtime", choices=runtime.NAMES,
                        help="HIP runtime (default: STRATA_HIP_RUNTIME, else auto)")
    parser.add_argument("--pool", metavar="BYTES", type=byte_count,
                        help="bytes of the pinned and of the pageable pool, e.g. 512MiB (default: 1GiB each)")
    parser.add_argument("--repeat", metavar="N", type=positive,
                        help="timed passes of each arm (default: 3; 1 with --imitate)")
    parser.add_argument("--json", metavar="FILE", help="write the report there, too")
    parser.add_argument("--submission", choices=("single", "group", "coalesced"), default="single",
                        help="copies one by one, a group a call where the runtime can, or neighbours in one copy "
                        "(default: single)")
    parser.add_argument("--share", action="store_true",
                        help="with shared dependencies: one wait and one record for the entries of a copy group")
    parser.add_argument("--separate-timing", action="store_true",
                        help="time without reading clocks inside, and split the stalls in one more pass")
    parser.add_argument("--imitate", metavar="PLATFORM",
                        help="instead, from a checkout: what grouping is worth on an expensive platform, its time "
                        "simulated over the software runtime")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; see `strata.tools.cli.main` for the exit status."""
    progress = Progress(sys.stderr)
    if arguments.imitate is not None:
        imitation = from_checkout("benchmarks.imitation.command", "strata replay --imitate")
        return int(imitation.run(arguments, progress))
    try:
        case = load_case(arguments.case)
        if (refused := unwritable("--json", arguments.json)) is not None:
            raise InputError(refused)
        pool = arguments.pool or 2**30
        if pool < case.expert_bytes:
            raise InputError(
                f"--pool is {pool} bytes; one entry of this case needs {case.expert_bytes}")
        if arguments.runtime is None:
            runtime.ensure()
        else:
            runtime.use(arguments.runtime)
        report = replay(
            case,
            arguments.settings,
            pool_bytes=pool,
            repeat=arguments.repeat or 3,
            submission=arguments.submission,
            share=arguments.share,
            separate_timing=arguments.separate_timing,
            say=progress,
        )
    except (InputError, RuntimeNotFound, SettingsError) as problem:
        return complain("strata replay", progress, problem, BAD_INPUT)
    except (StrataError, MemoryError) as problem:
        return complain("strata replay", progress, problem, FAILED)
    finally:
        progress.clear()
    return report.hand_over("strata replay", progress, json=arguments.json)
