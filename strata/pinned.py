"""Pinned (page-locked) host memory: the DMA engine reads it where it lies, so entries in it are direct."""

from __future__ import annotations

import bisect
import logging
import operator
import os
import sys
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ._host_memory import check_room
from .sources.buffers import Owners, keep_array

__all__ = ["pinned_empty", "register"]

#: Below that, looking at the limits costs more than it saves.
_LOOK_AT_ROOM = 2**20

_log = logging.getLogger("strata")


class _PinnedBlock:
    """Owner of one pinned allocation; arrays made from it keep it as their base.

    The functions that its end needs are held by the object: at interpreter exit the module's globals may be
    gone before it is.
    """

    __slots__ = ("__weakref__", "_address", "_free", "_getpid", "_nbytes", "_pid", "_warn")

    def __init__(self, nbytes: int) -> None:
        from . import _hip, runtime

        self._address = 0  # nothing to free if the allocation raises
        runtime.ensure()
        self._nbytes = nbytes
        self._free = _hip.pinned_free
        self._warn = _log.warning
        self._getpid = os.getpid
        self._pid = os.getpid()
        self._address = _hip.pinned_alloc(nbytes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._nbytes,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def __del__(self) -> None:
        # In a child after fork the memory belongs to the parent's runtime: leave it alone.
        if not getattr(self, "_address", 0) or self._getpid() != self._pid:
            return
        address, self._address = self._address, 0
        try:
            self._free(address)
        except Exception as error:  # an exception cannot leave __del__
            self._warn("%d bytes of pinned memory at %#x not freed: %s", self._nbytes, address, error)


def _shape(shape: object) -> tuple[int, ...]:
    dimensions = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    checked = []
    for dimension in dimensions:
        try:
            if isinstance(dimension, (bool, np.bool_)):
                raise TypeError
            size = operator.index(dimension)
        except TypeError:
            raise TypeError(f"shape is {shape!r}: an integer or a tuple of integers is needed") from None
        if size < 0:
            raise ValueError(f"shape is {shape!r}: dimensions of 0 or more are allowed")
        checked.append(size)
    return tuple(checked)


def pinned_empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Make an array in pinned memory, its contents arbitrary.

    The memory is freed when the last array that views it is gone.

    Parameters
    ----------
    shape : int or tuple of int
        As for ``numpy.empty``. Where it holds no bytes, nothing is pinned.
    dtype : dtype
        Type of the elements; none that holds Python objects.

    Returns
    -------
    numpy.ndarray
        C-contiguous and writable.

    Raises
    ------
    TypeError
        `shape` is no integer or tuple of integers, or `dtype` is None, or holds Python objects.
    ValueError
        A dimension is negative, or the array is larger than an address space.
    MemoryError
        The container's limit has no room for so much.
    HipError
        The runtime could not allocate the memory.
    RuntimeNotFound, StrataError
        As `strata.runtime.use`: this call may be the first that needs a runtime.

    Notes
    -----
    May be called from any thread; the array may be shared between threads as any other.
    """
    if dtype is None:
        raise TypeError("dtype is None: an element type is needed")
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as problem:
        raise TypeError(f"dtype is {dtype!r}: an element type is needed ({problem})") from None
    if kind.hasobject:
        raise TypeError(f"dtype is {kind}: types that hold Python objects cannot lie in pinned memory")
    sizes = _shape(shape)
    if kind.subdtype is not None:  # as numpy.empty: an element that is an array adds its dimensions
        kind, inner = kind.subdtype
        sizes += inner
    nbytes = kind.itemsize
    for size in sizes:
        nbytes *= size
    if nbytes > sys.maxsize:
        raise ValueError(f"shape is {shape!r} of {kind}: {nbytes} bytes, at most {sys.maxsize} are allowed")
    if nbytes == 0:
        return np.empty(sizes, kind)
    if nbytes >= _LOOK_AT_ROOM:
        check_room(f"shape is {shape!r} of {kind}", nbytes, container=True)
    array: npt.NDArray[Any] = np.ndarray(sizes, kind, buffer=np.asarray(_PinnedBlock(nbytes)))
    return array


class _Registrations:
    """What strata registered, by base address: runtimes differ in what they do with a second registration.

    AMD's accepts it, and the first unregistration ends both; CUDA's refuses it. So the library is asked once for a
    range and told once that it ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dropped: list[int] = []  # of finalizers, which may run where the lock is held already
        self._bases: list[int] = []  # sorted; the ranges do not overlap
        self._ranges: dict[int, list[int]] = {}  # base: bytes, users
        self._pid = os.getpid()

    def _renew_in_child(self) -> None:
        """After a fork: nothing of the parent's is pinned here, and nobody may hold its lock."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]

    def _overlapping(self, address: int, nbytes: int) -> int | None:
        at = bisect.bisect_right(self._bases, address)
        if at and self._bases[at - 1] + self._ranges[self._bases[at - 1]][0] > address:
            return self._bases[at - 1]
        return self._bases[at] if at < len(self._bases) and self._bases[at] < address + nbytes else None

    def add(self, address: int, nbytes: int) -> None:
        from . import _hip

        self._renew_in_child()
        self._end_dropped()
        with self._lock:
            known = self._ranges.get(address)
            if known is not None and known[0] == nbytes:
                known[1] += 1
                return
            other = self._overlapping(address, nbytes)
            if other is not None:
                there, users = self._ranges[other]
                raise ValueError(
                    f"array lies at {address:#x} ({nbytes} bytes) and overlaps {other:#x} ({there} bytes), which is "
                    f"registered already ({users} time(s)): register the same range, or one that contains neither"
                )
            _hip.host_register(address, nbytes)
            bisect.insort(self._bases, address)
            self._ranges[address] = [nbytes, 1]

    def remove(self, address: int) -> None:
        self._renew_in_child()
        self._end_dropped()
        with self._lock:
            self._end(address)

    def drop(self, address: int) -> None:
        """End a registration from a finalizer: at once, or by whoever holds the lock, or the next one."""
        self._dropped.append(address)
        self._end_dropped()

    def _end_dropped(self) -> None:
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self._end(self._dropped.pop())
            except IndexError:  # another thread was faster
                pass
            finally:
                self._lock.release()

    def _end(self, address: int) -> None:
        from . import _hip

        known = self._ranges.get(address)
        if known is None:
            return
        known[1] -= 1
        if known[1] == 0:
            del self._ranges[address]
            self._bases.remove(address)
            _hip.host_unregister(address)


_registrations = _Registrations()


def _drop_registration(address: int, nbytes: int, pid: int) -> None:
    """End what a `register` that was entered by hand left behind when it went."""
    if os.getpid() != pid:
        return
    try:
        _registrations.drop(address)
    except Exception as error:  # an exception cannot leave a finalizer
        _log.warning("%d bytes at %#x not unregistered: %s", nbytes, address, error)


class register:
    """Pin an existing array in place for as long as a ``with`` block lasts.

    ``with strata.register(weights): ...`` makes entries that lie in ``weights`` direct. The array must not
    be streamed any more when the block ends: finish the requests first.

    Parameters
    ----------
    array : numpy.ndarray
        C-contiguous; one over a mapped file or a foreign buffer (``numpy.frombuffer``) will do. An array
        without bytes is left as it is.

    Raises
    ------
    TypeError
        `array` is no NumPy array, or holds Python objects.
    ValueError
        `array` is not C-contiguous.
    ValueError
        On entering: the array lies in a map that was closed, or overlaps another one that is registered.
        (The same range may be registered again: it is unpinned when the last block ends.)
    HipError
        On entering: the runtime could not pin the memory (some of it may be pinned already, by others). On
        leaving: it could not release it.
    RuntimeNotFound, StrataError
        On entering, as `strata.runtime.use`: this may be the first call that needs a runtime.
    RuntimeError
        The block is entered again while it lasts.

    Notes
    -----
    Entering gives the array. Until it is left, the array cannot be resized nor a map that it lies in be closed. The
    object keeps the array alive, can be entered again after it was left, and
    is for one thread at a time. Where it was entered by hand and is dropped without having been left, the range
    is unpinned before its array goes.
    """

    __slots__ = ("__weakref__", "_array", "_entered", "_finalizer", "_owners")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"array is a {type(array).__name__}: a NumPy array is needed "
                "(numpy.frombuffer makes one of a buffer)"
            )
        if array.dtype.hasobject:
            raise TypeError(f"array has dtype {array.dtype}: Python objects cannot be streamed")
        if not array.flags.c_contiguous:
            raise ValueError(
                f"array has strides {array.strides}, shape {array.shape}: C-contiguous is needed"
            )
        self._array = array
        self._entered = False
        self._finalizer: weakref.finalize | None = None
        self._owners: Owners | None = None  # while it lasts: what keeps the memory from being resized or unmapped

    def __enter__(self) -> npt.NDArray[Any]:
        if self._entered:
            raise RuntimeError("register: this array is pinned by this object already")
        if self._array.nbytes:
            from . import runtime

            runtime.ensure()
            owners = Owners()
            keep_array(self._array, "array", owners)
            address, nbytes = self._array.ctypes.data, self._array.nbytes
            _registrations.add(address, nbytes)
            self._owners = owners
            # It runs before the array goes: weak references are cleared before attributes.
            self._finalizer = weakref.finalize(self, _drop_registration, address, nbytes, os.getpid())
            self._finalizer.atexit = False
        self._entered = True
        return self._array

    def __exit__(self, *error: object) -> None:
        finalizer, self._finalizer = self._finalizer, None
        self._entered = False
        detached = finalizer.detach() if finalizer is not None else None
        # In a child after fork nothing is pinned, and the runtime is the parent's.
        if detached is not None and detached[2][2] == os.getpid():
            _registrations.remove(detached[2][0])
        self._owners = None
