"""Host memory of objects: where a buffer, an array or a tensor lies, and whether the runtime has pinned it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ask_runtime", "host_memory"]

_Int64 = npt.NDArray[np.int64]
_UInt64 = npt.NDArray[np.uint64]
_Bool = npt.NDArray[np.bool_]


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


def host_memory(source: Any, name: str, owners: dict[int, object]) -> tuple[int, int]:
    """(address, bytes) of a buffer, which `owners` (id -> object) keeps from then on."""
    if isinstance(source, np.ndarray):
        return _array_source(source, name, owners)
    if hasattr(source, "data_ptr") and hasattr(source, "device"):
        return _tensor_source(source, name, owners)
    if isinstance(source, np.generic):
        raise TypeError(f"{name} is a NumPy scalar ({type(source).__name__}): a buffer is needed")
    try:
        view = memoryview(source)
    except TypeError:
        if hasattr(source, "__cuda_array_interface__"):
            raise TypeError(
                f"{name} ({type(source).__name__}) is device memory: sources are host memory"
            ) from None
        if hasattr(source, "__array_interface__"):
            return _array_source(np.asarray(source), name, owners)
        raise TypeError(
            f"{name} is a {type(source).__name__}: a C-contiguous buffer (or a list or tuple of them) "
            "is needed"
        ) from None
    except ValueError as error:  # a closed mmap, a released memoryview
        raise ValueError(f"{name} is a {type(source).__name__} that gives no memory: {error}") from None
    if not view.c_contiguous:
        raise ValueError(f"{name} has strides {view.strides}, shape {view.shape}: C-contiguous is needed")
    if "O" in view.format:
        raise TypeError(f"{name} holds Python objects: bytes are needed")
    if view.nbytes == 0:
        return 0, 0
    # One export an object; of a memoryview, which its owner may release, one of our own each time.
    owners.setdefault(id(view if isinstance(source, memoryview) else source), view)
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]), view.nbytes


def _array_source(array: npt.NDArray[Any], name: str, owners: dict[int, object]) -> tuple[int, int]:
    if array.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects (dtype {array.dtype}): bytes are needed")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} has strides {array.strides}, shape {array.shape}: C-contiguous is needed")
    if array.nbytes == 0:
        return 0, 0
    # Keep the array that holds the memory, once, rather than each view of it.
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if id(root) not in owners:
        owners[id(root)] = root
        if root.base is not None:  # a foreign buffer; an array over one does not always keep it exported
            try:
                owners[id(root.base)] = memoryview(root.base)
            except TypeError:
                pass  # no buffer but an owner of memory, which the array keeps alive
            except ValueError as error:
                kind = type(root.base).__name__
                raise ValueError(f"{name} lies in a {kind} that gives no memory: {error}") from None
    return int(array.__array_interface__["data"][0]), array.nbytes


def _tensor_source(tensor: Any, name: str, owners: dict[int, object]) -> tuple[int, int]:
    """(address, bytes) of a tensor in the manner of PyTorch, without importing it."""
    place = getattr(tensor.device, "type", tensor.device)
    if place != "cpu":
        raise TypeError(f"{name} is a tensor on device {place}: sources are host memory")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is a tensor that is not contiguous: a C-contiguous one is needed")
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return 0, 0
    kept = tensor.detach()  # holds the storage, and no graph
    owners[id(kept)] = kept
    return int(kept.data_ptr()), nbytes
