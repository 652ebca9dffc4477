"""Types of command-line arguments, for argparse: each refuses with a sentence of its own."""

from __future__ import annotations

import argparse
import re

from strata.settings import BatchSettings

__all__ = ["byte_count", "positive", "seed", "settings"]

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*([0-9]+)\s*([A-Za-z]*)\s*\Z")


def byte_count(text: str) -> int:
    """Read a number of bytes: ``1073741824``, ``512MiB``, ``1GiB``."""
    match = _SIZE.match(text)
    unit = match and _UNITS.get(match[2].upper())
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of bytes: an integer, optionally with KiB, MiB, GiB, KB, MB or GB, is wanted")
    count = int(match[1]) * unit
    if not 1 <= count < 2**62:
        raise argparse.ArgumentTypeError(f"{text!r} is {count} bytes: 1 to 2**62 - 1 is allowed")
    return count


def positive(text: str) -> int:
    """Read an integer from 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer: 1 or more is wanted") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1: 1 or more is wanted")
    return value


def seed(text: str) -> int:
    """Read an integer from 0 to 2**64 - 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.60} is no integer: 0 to 2**64 - 1 is wanted") from None
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{value} is out of range: 0 to 2**64 - 1 is wanted")
    return value


def settings(text: str) -> BatchSettings:
    """Read ``C,S,SC``: the copy batch, the stage batch and the stage copy batch."""
    parts = text.split(",")
    try:
        values = [int(part) for part in parts]
    except ValueError:
        values = []
    if len(values) != 3 or min(values) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not C,S,SC: three integers from 1 are wanted (copy batch, stage batch, stage copy "
            "batch), e.g. 8,16,16")
    return BatchSettings(*values)
