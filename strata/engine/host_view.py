"""Slots' memory as NumPy sees it, where the host can read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_array", "asked_for", "check_wait"]


class _HostView:
    """Lends memory to NumPy, and keeps it where it is strata's own."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: object, interface: dict[str, Any]) -> None:
        self.memory = memory
        self.__array_interface__ = interface


def as_array(
    memory: object, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> npt.NDArray[np.uint8]:
    """View memory as uint8; the array keeps the object `memory`."""
    return np.asarray(_HostView(memory, {
        "shape": shape, "typestr": "|u1", "data": (address or 1, False), "version": 3, "strides": strides}))


def check_wait(wait: object) -> bool:
    """True or False."""
    if not isinstance(wait, (bool, np.bool_)):
        raise TypeError(f"wait is {wait!r}; True or False is wanted")
    return bool(wait)


def asked_for(array: npt.NDArray[np.uint8], dtype: npt.DTypeLike | None, copy: bool | None) -> npt.NDArray[Any]:
    """What ``__array__`` has to give of an array."""
    if dtype is not None and np.dtype(dtype) != array.dtype:
        if copy is False:
            raise ValueError(f"copy is False: {np.dtype(dtype)} of uint8 bytes is another array")
        return array.astype(dtype)
    return array.copy() if copy else array
