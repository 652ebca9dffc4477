"""Run the race: ``python -m benchmarks.gpu.race --out DIR``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import machine
from benchmarks.gpu.cases import PEERS, SIZES, in_order
from benchmarks.gpu.measuring import Pace, Result
from benchmarks.gpu.report import RaceReport
from benchmarks.gpu.supervise import Limits, supervise
from benchmarks.gpu.targets import gb_s
from strata.tools.command import FAILED, OK, complain, needs, put, run_command

__all__ = ["main", "parse"]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.race",
                                     description="Races strata against what people use today, on a GPU with torch.")
    parser.add_argument("--out", type=Path, required=True, help="folder for race.json, race.md and workers.log")
    parser.add_argument("--only", default=",".join(PEERS), help="peers, separated by commas (default: all)")
    parser.add_argument("--sizes", default=",".join(size.name for size in SIZES),
                        help="bytes of an expert, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="small pools and few passes: a trial, not a result")
    parser.add_argument("--seconds", type=float, default=290.0, help="time for the whole race (default: 290)")
    parser.add_argument("--case-seconds", type=float, default=60.0, help="time for one case (default: 60)")
    parser.add_argument("--commit", help="commit to name in the result (default: the checkout's)")
    args = parser.parse_args(arguments)
    args.only = tuple(args.only.split(","))
    for name in args.only:
        if name not in PEERS:
            parser.error(f"--only names {name!r}; {', '.join(PEERS)} are allowed")
    by_name = {size.name: size for size in SIZES}
    for name in args.sizes.split(","):
        if name not in by_name:
            parser.error(f"--sizes names {name!r}; {', '.join(by_name)} are allowed")
    args.sizes = tuple(by_name[name] for name in args.sizes.split(","))
    return args


def _line(result: Result) -> str:
    rate = gb_s(result)
    if result.reason:
        what = f"not measured: {result.reason}"
    elif rate is not None:
        what = f"{rate:.2f} GB/s"
    else:
        what = f"host {result.host_us:.2f} us, issuing {result.issue_us:.2f} us an entry"
    return f"{result.case.key}: {what}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write after each case. Gives 0 where every case was measured, else 1; 2 where none can be."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_command("python -m benchmarks.gpu.race", lambda: _race(given))


def _race(given: list[str]) -> int:
    args = parse(given)
    needs("torch", "torch")
    began = time.monotonic()
    head = {"command": " ".join(["python -m benchmarks.gpu.race", *given]), "commit": machine.commit(args.commit),
            "machine": machine.describe(), "quick": args.quick}
    results: list[Result] = []

    def took(result: Result) -> None:
        results.append(result)
        RaceReport(head, results).write_into(args.out)
        put(f"{time.monotonic() - began:6.1f} s  {_line(result)}")

    limits = Limits(began + args.seconds, case_s=args.case_seconds)
    pace = Pace(3, 3, 0.1) if args.quick else Pace()
    sizes = [size.reduced() if args.quick else size for size in args.sizes]
    put(f"making sources of {len(sizes)} sizes; {len(in_order(sizes, args.only))} cases")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        supervise(sizes, in_order(sizes, args.only), pace, limits, args.out / "workers.log", took)
    except OSError as problem:
        return complain("python -m benchmarks.gpu.race", None, problem, FAILED)
    return OK if RaceReport(head, results).ok else FAILED


if __name__ == "__main__":
    sys.exit(main())
