"""The ``strata`` command."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

import strata
from strata.tools.cli import replay, selftest
from strata.tools.cli.checkout import NotACheckout, from_checkout
from strata.tools.command import BAD_INPUT, complain, run_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``strata`` command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the command's name. Default: those of the process.

    Returns
    -------
    int
        Exit status: 0, where all is well; 1, where what was asked for failed; 2, for bad input; further ones as
        `strata.tools.command.run_command`.

    Raises
    ------
    SystemExit
        By argparse, with 0 for ``--help`` and ``--version`` and 2 for arguments that it refuses.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    return run_command("strata", lambda: _run(given))


def _run(given: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="strata", description="Streams Mixture-of-Experts weights from host RAM to a GPU."
    )
    parser.add_argument("--version", action="version", version=f"strata {strata.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    replay.add_parser(commands)
    commands.add_parser("bench", add_help=False, help="compare settings, and peers: independent processes, medians, "
                        "memory, counters (from a checkout)")
    selftest.add_parser(commands)
    harness = given[:1] == ["bench"]  # has a parser of its own, in the checkout
    arguments = None if harness else parser.parse_args(given)
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(logging.Formatter("strata: %(message)s"))
    logger = logging.getLogger("strata")
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        if arguments is None:
            return int(from_checkout("benchmarks.ab.command", "strata bench").main(given[1:]))
        return int(arguments.run(arguments))
    except NotACheckout as problem:
        return complain("strata", None, problem, BAD_INPUT)
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
