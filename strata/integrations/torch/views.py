"""Slots and spans as named tensors: made once, then looked up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from strata.errors import StrataError
from strata.layout import SlotLayout

__all__ = ["SlotTensors", "torch_dtype"]


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a layout's dtype.

    Raises
    ------
    TypeError
        If torch has none of that name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {name!r}, which this torch ({torch.__version__}) does not have; take 'uint8', the "
                        "bytes as they are")
    return dtype


class SlotTensors:
    """Named views of the slots of one 2-D tensor of bytes. `strata.Slot.tensors` and `strata.Span.tensors` look here.

    Parameters
    ----------
    memory : torch.Tensor, (slots, stride) uint8
        The slots.
    layout : SlotLayout
        What lies where in a slot.

    Attributes
    ----------
    every : dict of str to torch.Tensor
        The tensors of all slots, (slots, ...).

    Raises
    ------
    TypeError, ValueError
        If a view cannot be had: torch lacks the dtype, or an offset or the stride is no multiple of the item size.
    """

    def __init__(self, memory: torch.Tensor, layout: SlotLayout) -> None:
        self.memory = memory
        self.layout = layout
        self.on_host = not memory.is_cuda
        # Of the running request: its tensors are read by kernels of the current stream.
        self.stream = 0
        self._device = memory.device.index or 0
        self.every: dict[str, torch.Tensor] = {}
        for field in layout.fields:
            dtype = torch_dtype(field.dtype)
            begin, stride = memory.storage_offset(), memory.stride(0)
            if any(place % dtype.itemsize for place in (begin, field.offset, stride)):
                raise ValueError(f"{field.name} lies at offset {field.offset} of slots {stride} bytes apart, {begin} "
                                 f"bytes into their storage; its dtype, {dtype}, wants multiples of {dtype.itemsize}")
            # Outside of inference mode: tensors made in it may not be used in every other place.
            with torch.inference_mode(False):
                whole = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(
                    memory.untyped_storage(), memory.storage_offset(), memory.shape, memory.stride())
                rows = whole[:, field.offset:field.offset + field.nbytes].view(dtype)
                self.every[field.name] = rows.view(len(memory), *field.shape)
        self._found: dict[Any, Mapping[str, torch.Tensor]] = {}

    def _on_stream(self) -> None:
        """Refuse views for kernels that would go on another stream than the request's."""
        if not self.on_host:
            current = torch._C._cuda_getCurrentRawStream(self._device)
            if current != self.stream:
                raise StrataError(f"torch's current stream is {current:#x} and this request's compute stream is "
                                  f"{self.stream:#x}: use the tensors under the stream that was current at begin(), "
                                  "or pass begin(compute_stream=)")

    def slot(self, index: int) -> Mapping[str, torch.Tensor]:
        """The tensors of slot `index`."""
        self._on_stream()
        return self._found.get(index) or self._make(index, index)

    def span(self, first: int, count: int) -> Mapping[str, torch.Tensor]:
        """The tensors of `count` slots from `first` on, each with one more dimension in front."""
        self._on_stream()
        return self._found.get((first, count)) or self._make((first, count), slice(first, first + count))

    def _make(self, key: Any, rows: int | slice) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode(False), torch.no_grad():
            found = MappingProxyType({name: tensor[rows] for name, tensor in self.every.items()})
        self._found[key] = found
        return found
