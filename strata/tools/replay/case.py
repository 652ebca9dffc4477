"""The case: a recorded request and the counters that it must meet, in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strata.counters import Counters
from strata.settings import BatchSettings

__all__ = ["Case", "InputError", "load_case"]

#: How the file says in which order the two kinds of entries come; what follows these words is comment.
_ORDERS = {"all direct copies first": True, "all staged copies first": False}
_BATCHES = ("copy_batch", "stage_batch", "stage_copy_batch")
_MOST = 2**40
_MOST_TEXT = 2**20  # bytes of a case's file: a device node has no end


class InputError(ValueError):
    """The case, or an argument of the replay, cannot be used; nothing was streamed."""


@dataclass(frozen=True)
class Case:
    """One recorded request.

    Attributes
    ----------
    name : str
        The file's name, or ``reference_request``.
    expert_bytes : int
        Bytes of every entry, 1 or more.
    direct, staged : int
        Entries of each kind.
    direct_first : bool
        Whether all direct entries come before all staged ones, or after them.
    gpu_ring, host_ring : int
        Depths of the rings.
    arms : dict of str to BatchSettings
        The settings that were recorded, by name.
    counters : dict of str to dict of str to int
        What each arm must count in a warmed request; an arm may be missing.
    """

    name: str
    expert_bytes: int
    direct: int
    staged: int
    direct_first: bool
    gpu_ring: int
    host_ring: int
    arms: dict[str, BatchSettings]
    counters: dict[str, dict[str, int]]

    def __len__(self) -> int:
        return self.direct + self.staged

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the request streams."""
        return len(self) * self.expert_bytes

    def is_staged(self) -> npt.NDArray[np.bool_]:
        """Whether each entry is staged, in list order: bools of shape (entries,)."""
        staged = np.zeros(len(self), np.bool_)
        if self.direct_first:
            staged[self.direct :] = True
        else:
            staged[: self.staged] = True
        return staged

    def jobs(self) -> npt.NDArray[np.int64]:
        """Return what `strata.CopyPlan` wants: -1 for a direct entry, else its job; shape (entries,)."""
        staged = self.is_staged()
        return np.where(staged, np.cumsum(staged) - 1, -1).astype(np.int64)

    def expected(self, settings: BatchSettings) -> dict[str, int] | None:
        """Return the recorded counters of the arm with these (clamped) settings, or None."""
        for name, recorded in self.arms.items():
            if recorded.clamped(self.gpu_ring, self.host_ring) == settings and name in self.counters:
                return self.counters[name]
        return None


def load_case(path: str | Path | None = None) -> Case:
    """Read a case.

    Parameters
    ----------
    path : str or Path, optional
        A JSON file. Default: the reference request, which the package ships.

    Returns
    -------
    Case

    Raises
    ------
    InputError
        The file cannot be read, is no JSON, or a field is missing or wrong; the field, its value and what is
        allowed are named.
    """
    if path is None:
        name = "reference_request"
        text = (files("strata") / "data" / "reference_request.json").read_text(encoding="utf-8")
    else:
        name = Path(path).name
        try:
            with open(Path(path), "rb") as file:
                content = file.read(_MOST_TEXT + 1)
            if len(content) > _MOST_TEXT:
                raise InputError(f"case {str(path)!r:.200} is longer than {_MOST_TEXT:,} bytes: no case is")
            text = content.decode("utf-8")
        except (OSError, ValueError) as problem:  # no UTF-8, or a NUL in the path
            if isinstance(problem, InputError):
                raise
            raise InputError(f"case {str(path)!r:.200} cannot be read: {_reason(problem)}") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"case {name!r} is no JSON: {problem}") from None
    if not isinstance(data, dict):
        raise InputError(f"case {name!r} is {_short(data)}; a JSON object is wanted")
    try:
        return _checked(name, data)
    except InputError as problem:
        raise InputError(f"case {name!r}: {problem}") from None


def _checked(name: str, data: Mapping[str, Any]) -> Case:
    expert_bytes = _integer(data, "expert_bytes", 1)
    direct = _integer(data, "direct_pinned_copies", 0)
    staged = _integer(data, "staged_copies", 0)
    gpu_ring = _integer(data, "gpu_ring", 1)
    host_ring = _integer(data, "host_ring", 1)
    # What the file says twice must agree.
    for field, value in (
        ("copies", direct + staged),
        ("direct_bytes", direct * expert_bytes),
        ("staged_bytes", staged * expert_bytes),
        ("h2d_bytes", (direct + staged) * expert_bytes),
    ):
        if field in data and data[field] != value:
            raise InputError(f"{field} is {_short(data[field])}; direct_pinned_copies, staged_copies and "
                             f"expert_bytes make it {value}")
    arms = {}
    for arm, batches in _object(data, "arms").items():
        where = f"arms[{arm!r}]"
        if not isinstance(batches, dict):
            raise InputError(f"{where} is {_short(batches)}; an object with {', '.join(_BATCHES)} is wanted")
        arms[arm] = BatchSettings(*(_integer(batches, batch, 1, f"{where}.") for batch in _BATCHES))
    return Case(name, expert_bytes, direct, staged, _direct_first(data), gpu_ring, host_ring, arms,
                _counters(data, arms))


def _counters(data: Mapping[str, Any], arms: Mapping[str, BatchSettings]) -> dict[str, dict[str, int]]:
    known = [field.name for field in fields(Counters) if field.type in (int, "int")]
    counters = {}
    for arm, values in _object(data, "counters").items():
        where = f"counters[{arm!r}]"
        if arm not in arms:
            raise InputError(f"{where} belongs to no arm; one of {', '.join(map(repr, arms))} is allowed")
        if not isinstance(values, dict):
            raise InputError(f"{where} is {_short(values)}; an object of counters is wanted")
        for counter in values:
            if counter not in known:
                raise InputError(f"{where} names {counter!r}; a counter is one of {', '.join(known)}")
        counters[arm] = {counter: _integer(values, counter, 0, f"{where}.") for counter in values}
    return counters


def _direct_first(data: Mapping[str, Any]) -> bool:
    order = _field(data, "order")
    for words, direct_first in _ORDERS.items():
        if isinstance(order, str) and order.startswith(words):
            return direct_first
    raise InputError(f"order is {_short(order)}; text that begins with "
                     f"{' or '.join(map(repr, _ORDERS))} is wanted")


def _field(data: Mapping[str, Any], field: str, prefix: str = "") -> Any:
    if field not in data:
        raise InputError(f"{prefix}{field} is missing")
    return data[field]


def _integer(data: Mapping[str, Any], field: str, least: int, prefix: str = "") -> int:
    value = _field(data, field, prefix)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise InputError(f"{prefix}{field} is {_short(value)}; an integer from {least} to 2**40 is wanted")
    return value


def _object(data: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = _field(data, field)
    if not isinstance(value, dict):
        raise InputError(f"{field} is {_short(value)}; a JSON object is wanted")
    return value


def _reason(problem: Exception) -> str:
    return problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
