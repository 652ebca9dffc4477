"""Host memory of torch's tensors and storages, without importing torch: whoever has one has imported it.

A list of copies holds a NumPy view of each storage. As long as one exists, and ever after, torch refuses to resize
that storage, so its bytes stay where they are. torch does not refuse to move a storage to shared memory
(``share_memory_``, or a tensor that is sent to another process), and frees the old bytes: a request looks for that.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["HeldStorage", "is_torch", "torch_bytes"]


def is_torch(source: Any) -> bool:
    """Whether an object is a tensor or a storage of torch's."""
    torch = sys.modules.get("torch")
    kinds = tuple(
        kind
        for name in ("Tensor", "UntypedStorage", "TypedStorage")
        if isinstance(kind := getattr(torch, name, None), type)
    )
    return isinstance(source, kinds)


def torch_bytes(source: Any, name: str, *, stacked: bool = False) -> tuple[Any, int, int]:
    """(storage, first byte in it, bytes) of a tensor or storage in host memory.

    With `stacked` only what lies below the first axis has to be contiguous, and the bytes are those from the
    first byte of row 0 to the last of that row.

    Raises
    ------
    TypeError
        It has no bytes in host memory, or bytes that do not mean what the tensor means.
    ValueError
        It is not contiguous, or its storage was resized under it.
    """
    torch = sys.modules["torch"]
    if not isinstance(source, torch.Tensor):
        storage = getattr(source, "_untyped_storage", source)  # of a TypedStorage
        _check_place(storage.device, name, "storage")
        return storage, 0, int(storage.nbytes())
    with torch._C.DisableTorchFunctionSubclass():
        kind = type(source).__name__
        _check_place(source.device, name, "tensor")
        if source.layout is not torch.strided:
            raise TypeError(
                f"{name} is a tensor of layout {source.layout}: a dense one (torch.strided) is needed"
            )
        if source.is_nested:
            raise TypeError(f"{name} is a nested tensor: pass the tensors that it is made of")
        for lazy, word, mend in (("is_conj", "conjugated", "resolve_conj"), ("is_neg", "negated", "resolve_neg")):
            if getattr(source, lazy)():
                raise TypeError(f"{name} is a lazily {word} tensor: pass its {mend}(), whose bytes are its values")
        item = source.element_size()
        sizes, strides = tuple(source.size()), tuple(source.stride())
        checked = (sizes[1:], strides[1:]) if stacked else (sizes, strides)
        if not _is_contiguous(*checked):
            raise ValueError(f"{name} is a tensor with strides {strides}, shape {sizes}: C-contiguous is needed")
        nbytes = item
        for size in checked[0]:
            nbytes *= size
        if nbytes == 0 or 0 in sizes:
            return None, 0, nbytes
        try:
            storage = source.untyped_storage()
            address = storage.data_ptr()
        except (RuntimeError, NotImplementedError):
            address = 0
        if address == 0 and not (type(source) in (torch.Tensor, torch.nn.Parameter) and _is_empty(source)):
            raise TypeError(
                f"{name} is a {kind} without a storage of its own: pass the tensors that it is made of"
            )
        first = source.storage_offset() * item
        last = first + nbytes + ((sizes[0] - 1) * strides[0] * item if stacked else 0)
        if last > storage.nbytes():
            raise ValueError(
                f"{name} is a tensor of {last - first} bytes in a storage of {storage.nbytes()}: "
                "it was resized under the tensor"
            )
        return storage, first, nbytes


class HeldStorage:
    """A storage and the view of its bytes that keeps torch from resizing it.

    Attributes
    ----------
    address : int
        Where the bytes lay when it was made.
    """

    __slots__ = ("_storage", "_view", "address")

    def __init__(self, storage: Any) -> None:
        torch = sys.modules["torch"]
        tensor = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._storage = storage
        self._view = tensor.set_(storage, 0, (storage.nbytes(),), (1,)).numpy()
        self.address = int(storage.data_ptr())

    def check_in_place(self) -> None:
        """Raise `ValueError` where torch has moved the bytes."""
        now = int(self._storage.data_ptr())
        if now != self.address:
            raise ValueError(
                f"copies has a torch storage that lay at {self.address:#x} and was moved to {now:#x} (share_memory_, "
                "or sent to another process): make the list after that"
            )


def _check_place(device: Any, name: str, kind: str) -> None:
    if device.type != "cpu":
        raise TypeError(f"{name} is a {kind} on device {device.type}: sources are host memory")


def _is_empty(tensor: Any) -> bool:
    """Whether a plain tensor's storage was freed (resized to 0)."""
    try:
        return int(tensor.untyped_storage().nbytes()) == 0
    except (RuntimeError, NotImplementedError):
        return False


def _is_contiguous(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if 0 in sizes:
        return True
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
