"""Rows of a list of copies: from what a caller gave to checked arrays, with errors that name row and entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["INT64_MAX", "REGION_MAX", "UINT64_MAX", "back_to_back", "bools", "check_ends", "check_overlaps",
           "check_sources", "converted", "indices_of", "integer_rows", "iterated", "place_of", "staged_entries",
           "starts_of"]

_Int64 = npt.NDArray[np.int64]
_UInt64 = npt.NDArray[np.uint64]
_UInt8 = npt.NDArray[np.uint8]
_Bool = npt.NDArray[np.bool_]
_Rows = list[int] | npt.NDArray[Any]

INT64_MAX = 2**63 - 1
REGION_MAX = 2**31 - 1  #: of a caller's numbers; strata numbers from there on
UINT64_MAX = 2**64 - 1


# Arguments: types and shapes.


def iterated(name: str, value: Iterable[Any], kind: str) -> Iterator[Any]:
    """An iterator over an argument that must be an iterable of `kind`."""
    try:
        return iter(value)
    except TypeError:
        raise TypeError(f"{name} is a {type(value).__name__}: an iterable of {kind} is needed") from None


def integer_rows(name: str, value: Any, length: int | None = None) -> _Rows:
    """`value` as a list of Python ints or a one-dimensional, contiguous, native integer array."""
    rows: _Rows
    if isinstance(value, (list, tuple, range)):
        kinds = set(map(type, value))
        for kind in kinds:
            if issubclass(kind, (bool, np.bool_)) or not issubclass(kind, (int, np.integer)):
                raise TypeError(f"{name} holds a {kind.__name__}: integers are needed")
        rows = list(value) if kinds <= {int} else [int(number) for number in value]
    else:
        rows = _array(name, value, "iu", "integers")
    if length is not None and len(rows) != length:
        raise ValueError(f"{name} has {len(rows)} elements: {length} are needed, as many as addresses")
    return rows


def _array(name: str, value: Any, kinds: str, wanted: str) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in kinds:
        raise TypeError(f"{name} has dtype {array.dtype}: {wanted} are needed")
    if not array.dtype.isnative:
        raise TypeError(f"{name} has dtype {array.dtype.str}: native byte order is needed")
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}: one dimension is needed")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} has strides {array.strides}: a C-contiguous array is needed")
    return array


def bools(name: str, value: Any, length: int, each: str) -> bool | _Bool | None:
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    if isinstance(value, (list, tuple)):
        for kind in set(map(type, value)):
            if not issubclass(kind, (bool, np.bool_)):
                raise TypeError(f"{name} holds a {kind.__name__}: bools are needed")
        array = np.array(value, np.bool_)
    else:
        array = _array(name, value, "b", "None, a bool or bools")
    if len(array) != length:
        raise ValueError(f"{name} has {len(array)} elements: {length} are needed, one {each}")
    return array


def converted(
    name: str, rows: _Rows, dtype: type[Any], most: int, place: Callable[[int], str], least: int = 0
) -> npt.NDArray[Any]:
    """A private copy of `rows` as `dtype`, each value from `least` to `most`; `place` names a row in errors."""
    if len(rows) == 0:
        return np.empty(0, dtype)
    if isinstance(rows, list):
        if min(rows) < least or max(rows) > most:
            index = next(i for i, number in enumerate(rows) if not least <= number <= most)
            raise ValueError(f"{name} is {rows[index]} at {place(index)}: {least} to {most} is allowed")
    elif int(rows.min()) < least or int(rows.max()) > most:
        index = int(np.argmax((rows < least) | (rows > most)))
        raise ValueError(f"{name} is {int(rows[index])} at {place(index)}: {least} to {most} is allowed")
    return np.array(rows, dtype)


def starts_of(value: Any, segments: int) -> _Int64:
    """(entries + 1,) int64 from the argument `entry_starts`, in CSR form as well."""
    if value is None:
        return np.arange(segments + 1, dtype=np.int64)
    rows = integer_rows("entry_starts", value)
    if len(rows) == 0:
        raise ValueError(
            f"entry_starts is empty: entries + 1 values are needed, from 0 to the {segments} segments"
        )
    starts = converted("entry_starts", rows, np.int64, segments, lambda index: f"[{index}]")
    if starts[0] != 0:
        raise ValueError(f"entry_starts[0] is {starts[0]}: 0 is needed")
    falls = starts[1:] < starts[:-1]
    if falls.any():
        index = int(np.argmax(falls)) + 1
        raise ValueError(
            f"entry_starts[{index}] is {starts[index]}, below the {starts[index - 1]} before it: "
            "it may never decrease"
        )
    if starts[-1] != segments:
        raise ValueError(
            f"entry_starts[-1] is {starts[-1]}: {segments} is needed, the number of segments"
        )
    return starts


def indices_of(rows: _Rows, entries: int) -> _Int64:
    if len(rows) == 0:
        return np.empty(0, np.int64)
    edges = (min(rows), max(rows)) if isinstance(rows, list) else (int(rows.min()), int(rows.max()))
    for edge in edges:
        if not 0 <= edge < entries:
            allowed = f"0 to {entries - 1} is allowed" if entries else "the list has no entries"
            raise IndexError(f"indices holds {edge}: {allowed}")
    return np.array(rows, np.int64)


# Checks of the values.


def located(starts: _Int64, segment: int) -> tuple[int, int]:
    """(entry, which of the entry's segments) of a segment."""
    entry = int(np.searchsorted(starts, segment, side="right")) - 1
    return entry, segment - int(starts[entry])


def place_of(starts: _Int64, segment: int) -> str:
    """Name a segment in a message."""
    entry, number = located(starts, segment)
    return f"entry {entry}, segment {number}"


def check_sources(addresses: _UInt64, nbytes: _Int64, place: Callable[[int], str]) -> None:
    null = (addresses == 0) & (nbytes > 0)
    if null.any():
        index = int(np.argmax(null))
        raise ValueError(f"addresses is 0 at {place(index)}, with nbytes {nbytes[index]}: not null is needed")
    wraps = addresses + nbytes.view(np.uint64) < addresses
    if wraps.any():
        index = int(np.argmax(wraps))
        raise ValueError(
            f"addresses is {addresses[index]:#x} at {place(index)}, with nbytes {nbytes[index]}: "
            "an end below 2**64 is needed"
        )


def back_to_back(nbytes: _Int64, starts: _Int64) -> _Int64:
    """Offsets of segments that follow one another in their entry, from 0."""
    ends = np.cumsum(nbytes.view(np.uint64))
    # The sum over the list may wrap; within an entry the first end that an int64 cannot hold is still below
    # 2**64, as each step is below 2**63, so it is seen here.
    begins = np.concatenate([np.zeros(1, np.uint64), ends])[starts[:-1]]
    ends -= np.repeat(begins, np.diff(starts))
    if len(ends) and int(ends.max()) > INT64_MAX:
        index = int(np.argmax(ends > np.uint64(INT64_MAX)))
        raise ValueError(
            f"nbytes is {nbytes[index]} at {place_of(starts, index)}: the entry's segments, back to back, "
            f"end beyond {INT64_MAX}"
        )
    offsets = ends.view(np.int64)
    offsets -= nbytes
    return offsets


def check_ends(offsets: _Int64, nbytes: _Int64, place: Callable[[int], str]) -> None:
    beyond = offsets > INT64_MAX - nbytes
    if beyond.any():
        index = int(np.argmax(beyond))
        raise ValueError(
            f"offsets is {offsets[index]} at {place(index)}, with nbytes {nbytes[index]}: "
            f"an end of at most {INT64_MAX} is allowed"
        )


def check_overlaps(offsets: _Int64, nbytes: _Int64, starts: _Int64) -> None:
    # Empty segments overlap nothing. The others overlap somewhere only if two neighbours by offset do.
    rows = np.flatnonzero(nbytes)
    entries = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[rows]
    overlaps = _neighbours_overlap(offsets[rows], nbytes[rows], entries)
    if overlaps.any():  # or the segments are merely not in the order of their offsets
        order = np.lexsort((offsets[rows], entries))
        rows = rows[order]
        overlaps = _neighbours_overlap(offsets[rows], nbytes[rows], entries[order])
    if overlaps.any():
        index = int(np.argmax(overlaps))
        first, second = int(rows[index]), int(rows[index + 1])
        raise ValueError(
            f"offsets is {offsets[second]} at {place_of(starts, second)}, but segment "
            f"{located(starts, first)[1]} takes {offsets[first]} to {offsets[first] + nbytes[first] - 1}: "
            "segments may not overlap"
        )


def _neighbours_overlap(offsets: _Int64, nbytes: _Int64, entries: _Int64) -> _Bool:
    overlaps: _Bool = (offsets[1:] < offsets[:-1] + nbytes[:-1]) & (entries[1:] == entries[:-1])
    return overlaps


def staged_entries(nbytes: _Int64, pinned: bool | _Bool, starts: _Int64, one_each: bool) -> _UInt8:
    """(entries,) uint8: 1 where a segment with bytes is pageable."""
    staged = np.zeros(len(starts) - 1, np.uint8)
    if pinned is True:
        return staged
    pageable = nbytes > 0
    pageable &= np.logical_not(pinned)
    if one_each:
        return pageable.view(np.uint8)
    staged[np.searchsorted(starts, np.flatnonzero(pageable), side="right") - 1] = 1
    return staged


