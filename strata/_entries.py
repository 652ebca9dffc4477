"""Entries of a request, as callers name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["dropped_entries"]


def dropped_entries(entries: Any, length: int) -> range | npt.NDArray[np.int64]:
    """What `Request.drop` was given, as a range or a sorted array of int64."""
    if isinstance(entries, (bool, np.bool_)):
        raise TypeError(f"entries is {entries!r}; entries of the request are wanted")
    if isinstance(entries, (int, np.integer)):
        return range(int(entries), int(entries) + 1)
    if isinstance(entries, slice):
        return range(length)[entries]
    if isinstance(entries, range):
        if entries and not (0 <= entries[0] < length and 0 <= entries[-1] < length):
            outside = next(entry for entry in (entries[0], entries[-1]) if not 0 <= entry < length)
            raise IndexError(f"entries has {outside}; the list has {length} entries")
        return range(entries[0], entries[0] + 1) if len(entries) == 1 else entries  # its step may be no int64
    array = np.asarray(entries)
    if array.ndim != 1:
        raise TypeError(f"entries is {entries!r}; an entry, a slice, a range, integers or a mask are wanted")
    if array.dtype == np.bool_:
        if len(array) != length:
            raise ValueError(f"entries is a mask of {len(array)}; the list has {length} entries")
        return np.flatnonzero(array).astype(np.int64, copy=False)
    if array.size == 0:
        return range(0)
    if array.dtype.kind not in "iu":
        raise TypeError(f"entries has dtype {array.dtype}; integers or bools are wanted")
    if array.dtype.kind == "u" and int(array.max()) > 2**62:
        raise IndexError(f"entries has {int(array.max())}; the list has {length} entries")
    array = np.ascontiguousarray(array, np.int64)
    return array if bool((array[1:] >= array[:-1]).all()) else np.sort(array)
