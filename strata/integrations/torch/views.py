"""Slots and spans as named tensors: made once, then looked up."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

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
        self._fields = tuple(
            (name, torch_dtype(dtype), tuple(shape), int(offset))
            for name, dtype, shape, offset in zip(layout.names, layout.dtypes, layout.shapes, layout.offsets,
                                                  strict=True)
        )
        stride = memory.stride(0)
        for name, dtype, _, offset in self._fields:
            if offset % dtype.itemsize or stride % dtype.itemsize:
                raise ValueError(f"{name} lies at offset {offset} of slots {stride} bytes apart; its dtype, {dtype}, "
                                 f"wants multiples of {dtype.itemsize}")
        self._spans: dict[tuple[int, int], Mapping[str, torch.Tensor]] = {}
        self._slots = [self._make(index, None) for index in range(memory.shape[0])]

    def _make(self, first: int, count: int | None) -> Mapping[str, torch.Tensor]:
        made = {}
        # Outside of inference mode: tensors made in it may not be used in every other place.
        with torch.inference_mode(False), torch.no_grad():
            for name, dtype, shape, offset in self._fields:
                strides = tuple(prod(shape[k + 1 :]) for k in range(len(shape)))
                row = self.memory.stride(0) // dtype.itemsize
                begin = self.memory.storage_offset() + first * self.memory.stride(0) + offset
                whole = torch.empty(0, dtype=dtype, device=self.memory.device).set_(self.memory.untyped_storage())
                made[name] = (whole.as_strided(shape, strides, begin // dtype.itemsize) if count is None
                              else whole.as_strided((count, *shape), (row, *strides), begin // dtype.itemsize))
        return MappingProxyType(made)

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
        return self._slots[index]

    def span(self, first: int, count: int) -> Mapping[str, torch.Tensor]:
        """The tensors of `count` slots from `first` on, each with one more dimension in front."""
        self._on_stream()
        found = self._spans.get((first, count))
        if found is None:
            found = self._spans[first, count] = self._make(first, count)
        return found
