"""Which processes may be compared at all: those that made the same thing of the same input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.ab.errors import NotComparable
from benchmarks.ab.process_output import ProcessOutput

__all__ = ["check_agreement"]


def check_agreement(outcomes: Sequence[tuple[str, ProcessOutput]]) -> None:
    """Refuse processes that differ from the first one in model, seed, input or output.

    Parameters
    ----------
    outcomes : sequence of (str, ProcessOutput)
        Each with words for its process.

    Raises
    ------
    NotComparable
        Naming what differs, and both values.
    """
    if not outcomes:
        return
    first_name, first = outcomes[0]
    for name, outcome in outcomes[1:]:
        for what, one, other in (
            ("models", first.model, outcome.model),
            ("seeds", first.seed, outcome.seed),
            ("inputs", first.workload, outcome.workload),
            ("outputs (fingerprints)", first.fingerprint, outcome.fingerprint),
        ):
            if one != other:
                raise NotComparable(f"{first_name} and {name} cannot be compared, their {what} differ: "
                                    f"{_difference(one, other)}")


def _difference(one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        one, other = {key: one.get(key) for key in keys}, {key: other.get(key) for key in keys}
    return f"{one!r:.200} and {other!r:.200}"
