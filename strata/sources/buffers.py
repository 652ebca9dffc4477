"""Host memory of objects: where a buffer, an array or a tensor lies, who keeps it, whether it is pinned."""

from __future__ import annotations

import itertools
import re
import sys
import weakref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strata.sources.torch_memory import HeldStorage, is_torch, torch_bytes

__all__ = [
    "Owners", "Stack", "ask_runtime", "ask_stack", "host_memory", "new_regions", "stacked_memory", "type_and_shape",
]  # fmt: skip

_Int64 = npt.NDArray[np.int64]
_UInt64 = npt.NDArray[np.uint64]
_Bool = npt.NDArray[np.bool_]

#: Regions that strata numbers itself begin above those that a caller may give.
_numbers = itertools.count(2**31)


def new_regions(count: int) -> list[int]:
    """Numbers of source regions that no list of this process has yet."""
    return [next(_numbers) for _ in range(count)]


class Owners:
    """The objects that a list of copies keeps alive, and the source region that each stands for.

    An ``id`` says something as long as its object lives, so whatever is a key here is kept here, too.
    """

    __slots__ = ("_guards", "_kept", "_regions")

    def __init__(self) -> None:
        self._kept: dict[object, object] = {}
        self._guards: list[weakref.ref[Any]] = []
        self._regions: dict[int, tuple[int, object]] = {}

    def keep(self, key: object, kept: object) -> None:
        """Keep an object, once a key."""
        self._kept.setdefault(key, kept)

    def has(self, key: object) -> bool:
        return key in self._kept

    def get(self, key: object) -> Any:
        """What is kept by a key."""
        return self._kept[key]

    def guard(self, array: npt.NDArray[Any]) -> None:
        """Keep an array's memory where it is: NumPy resizes none with a weak reference, ``refcheck=False`` or not."""
        self._guards.append(weakref.ref(array))

    def region(self, memory: object) -> int:
        """The region that lies in the memory of an object, which is kept."""
        number, _ = self._regions.get(id(memory), (-1, None))
        if number < 0:
            number = next(_numbers)
            self._regions[id(memory)] = (number, memory)
        return number

    def objects(self) -> tuple[object, ...]:
        """What is kept, in the order in which it came; last, what keeps arrays from being resized."""
        return (*self._kept.values(), tuple(self._guards)) if self._guards else tuple(self._kept.values())


def ask_runtime(addresses: _UInt64, nbytes: _Int64) -> bool | _Bool:
    """(segments,) bool: whether the runtime knows the segment as pinned; True for empty ones, unasked."""
    asked = np.flatnonzero(nbytes)
    if len(asked) == 0:
        return True
    from strata import _hip, runtime  # here, so that a list with known places needs no runtime

    runtime.ensure()
    is_pinned = _hip.range_is_pinned
    pinned = np.ones(len(nbytes), np.bool_)
    pinned[asked] = [
        is_pinned(address, size)
        for address, size in zip(addresses[asked].tolist(), nbytes[asked].tolist(), strict=True)
    ]
    return pinned


def host_memory(source: Any, name: str, owners: Owners) -> tuple[int, int, int]:
    """(address, bytes, source region) of a buffer, which `owners` keeps from then on."""
    if isinstance(source, np.ndarray):
        return _array_source(source, name, owners)
    if is_torch(source):
        return _torch_source(source, name, owners)
    view = _view(source, name)
    if view is None:
        return _array_source(_by_array_interface(source, name), name, owners)
    if not view.c_contiguous:
        raise ValueError(f"{name} has strides {view.strides}, shape {view.shape}: C-contiguous is needed")
    if holds_objects(view.format):
        raise TypeError(f"{name} holds Python objects: bytes are needed")
    if view.nbytes == 0:
        return 0, 0, -1
    address = int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
    # The exporter and its view: one may go without the other, and another exporter then get its id. Of a
    # memoryview, which its owner may release, one of our own over the same exporter.
    exporter = view.obj if isinstance(source, memoryview) else source
    owners.keep((id(exporter), address, view.nbytes), view if view.obj is exporter else (exporter, view))
    return address, view.nbytes, owners.region(_root(view))


def type_and_shape(source: Any, name: str) -> tuple[Any, tuple[int, ...]]:
    """(dtype, shape) of an array, tensor or buffer, wherever it lies: a name, or bytes of a type without one."""
    if is_torch(source):
        if not hasattr(source, "dtype") or not hasattr(source, "shape"):
            return "uint8", (int(source.nbytes()),)
        return str(source.dtype).removeprefix("torch."), tuple(source.shape)
    array = source if isinstance(source, np.ndarray) else _as_array(source, name)
    return _type_name(array.dtype), array.shape


def _type_name(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "biufc" and dtype.isnative:
        return dtype.name
    if dtype.kind == "V" and dtype.names is None and dtype.isnative and not dtype.name.startswith("void"):
        return dtype.name  # registered by a package, as bfloat16 is
    return dtype.str, dtype.itemsize


def _view(source: Any, name: str) -> memoryview | None:
    """A view of a buffer; None of what is none."""
    if isinstance(source, np.generic):
        raise TypeError(f"{name} is a NumPy scalar ({type(source).__name__}): a buffer is needed")
    try:
        return memoryview(source)
    except TypeError:
        return None
    except (ValueError, BufferError) as error:  # a closed mmap, a released memoryview
        raise ValueError(f"{name} is a {type(source).__name__} that gives no memory: {error}") from None


def _as_array(source: Any, name: str) -> npt.NDArray[Any]:
    """An array over a buffer, which it keeps exported, or over what has the array interface."""
    view = _view(source, name)
    if view is None:
        return _by_array_interface(source, name)
    if holds_objects(view.format):
        raise TypeError(f"{name} holds Python objects: bytes are needed")
    array: npt.NDArray[Any] = np.asarray(view)
    return array


class Stack(NamedTuple):
    """A fused tensor ``[experts, ...]`` in host memory: row i lies at ``address + i * stride``."""

    address: int
    stride: int
    nbytes: int  #: of a row
    experts: int
    dtype: Any
    shape: tuple[int, ...]  #: of a row
    region: int


def stacked_memory(source: Any, name: str, owners: Owners) -> Stack:
    """Where a fused tensor lies; `owners` keeps it from then on. Rows are contiguous, and may lie apart."""
    if is_torch(source) and isinstance(source, sys.modules["torch"].Tensor):
        if source.dim() == 0:
            raise ValueError(f"{name} has no dimensions: [experts, ...] is needed")
        dtype, shape = type_and_shape(source, name)
        storage, first, nbytes = torch_bytes(source, name, stacked=True)
        if storage is None:
            return Stack(0, 0, nbytes if shape[0] else 0, shape[0], dtype, shape[1:], -1)
        address, region = keep_storage(storage, owners)
        stride = source.stride(0) * source.element_size()
        return Stack(address + first, stride, nbytes, shape[0], dtype, shape[1:], region)
    array = source if isinstance(source, np.ndarray) else _as_array(source, name)
    if array.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects (dtype {array.dtype}): bytes are needed")
    if array.ndim == 0:
        raise ValueError(f"{name} has no dimensions: [experts, ...] is needed")
    dtype, shape = _type_name(array.dtype), array.shape
    if array.size == 0:
        return Stack(0, 0, 0, shape[0], dtype, shape[1:], -1)
    row = array[0, ...]
    if not row.flags.c_contiguous:
        raise ValueError(
            f"{name} has strides {array.strides}, shape {array.shape}: rows that are C-contiguous are needed"
        )
    keep_array(array, name, owners)
    address = int(array.__array_interface__["data"][0])
    return Stack(address, array.strides[0], row.nbytes, shape[0], dtype, shape[1:], owners.region(_root(array)))


def ask_stack(stack: Stack) -> bool | _Bool:
    """Whether the runtime knows a fused tensor's rows as pinned: all of them, or (experts,) bools."""
    if stack.experts == 0 or stack.nbytes == 0:
        return True
    from strata import _hip, runtime

    runtime.ensure()
    reach = (stack.experts - 1) * stack.stride
    if _hip.range_is_pinned(stack.address + min(0, reach), abs(reach) + stack.nbytes):
        return True
    return np.frombuffer(_hip.rows_are_pinned(stack.address, stack.stride, stack.nbytes, stack.experts), np.bool_)


def _by_array_interface(source: Any, name: str) -> npt.NDArray[Any]:
    """An array over an object that has no buffer; it keeps the object."""
    if hasattr(source, "__cuda_array_interface__"):
        raise TypeError(f"{name} ({type(source).__name__}) is device memory: sources are host memory") from None
    if hasattr(source, "__array_interface__"):
        return np.asarray(source)
    raise TypeError(
        f"{name} is a {type(source).__name__}: a C-contiguous buffer (or a list or tuple of them) is needed"
    ) from None


def holds_objects(layout: str) -> bool:
    """Whether a buffer's format has a Python object in it. Names of fields stand between colons there."""
    return "O" in re.sub(":[^:]*:", "", layout)


def _root(memory: Any) -> Any:
    """The object whose memory views and arrays of views lie in."""
    while True:
        below = getattr(memory, "obj" if isinstance(memory, memoryview) else "base", None)
        if below is None or not isinstance(memory, (memoryview, np.ndarray)):
            return memory
        memory = below


def _array_source(array: npt.NDArray[Any], name: str, owners: Owners) -> tuple[int, int, int]:
    if array.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects (dtype {array.dtype}): bytes are needed")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} has strides {array.strides}, shape {array.shape}: C-contiguous is needed")
    if array.nbytes == 0:
        return 0, 0, -1
    keep_array(array, name, owners)
    return int(array.__array_interface__["data"][0]), array.nbytes, owners.region(_root(array))


def keep_array(array: npt.NDArray[Any], name: str, owners: Owners) -> None:
    """Keep the array that holds the memory, once, rather than each view of it."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if owners.has(id(root)):
        return
    if root.base is not None:  # a foreign buffer; an array over one does not always keep it exported
        try:
            owners.keep(("base", id(root.base)), memoryview(root.base))
        except TypeError:
            pass  # no buffer but an owner of memory, which the array keeps alive
        except (ValueError, BufferError) as error:
            kind = type(root.base).__name__
            raise ValueError(f"{name} lies in a {kind} that gives no memory: {error}") from None
    owners.keep(id(root), root)
    owners.guard(root)


def _torch_source(source: Any, name: str, owners: Owners) -> tuple[int, int, int]:
    storage, first, nbytes = torch_bytes(source, name)
    if nbytes == 0:
        return 0, 0, -1
    address, region = keep_storage(storage, owners)
    return address + first, nbytes, region


def keep_storage(storage: Any, owners: Owners) -> tuple[int, int]:
    """(address, source region) of a storage of torch's, which is kept once."""
    key = ("storage", storage._cdata)  # the address of the storage's own object, which is kept
    if not owners.has(key):
        owners.keep(key, HeldStorage(storage))
    held = owners.get(key)
    return held.address, owners.region(held)
