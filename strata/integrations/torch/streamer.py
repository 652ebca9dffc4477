"""The streamer as a torch user expects it: slots are a tensor, streams are torch's, bytes are named tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from strata import _hip, runtime
from strata.copies import ExpertCopies
from strata.engine.request import Request
from strata.errors import StrataError
from strata.integrations.torch.memory import device_slots, host_slots
from strata.integrations.torch.views import SlotTensors
from strata.layout import SlotLayout
from strata.streamer import ExpertStreamer

__all__ = ["TorchStreamer", "place"]

_ALIGNMENT = 256


class TorchStreamer(ExpertStreamer):
    """An `strata.ExpertStreamer` whose slots are one torch tensor.

    Parameters
    ----------
    layout : SlotLayout or int
        What lies where in a slot, or the bytes of a slot: then its one tensor is named ``bytes``.
    slots : torch.Tensor, optional
        A 2-D uint8 tensor on the device, (gpu_ring, at least the layout's bytes), whose rows are the slots. It is kept
        alive. Default: one is made.
    gpu_ring : int, optional
        Slots, where `slots` is not given. Default: as `strata.ExpertStreamer`.
    device : torch.device, str or int, optional
        Default: that of `slots`, else torch's current one; the CPU, where the software runtime is chosen.
    compute_stream, copy_stream : optional
        ``torch.cuda.Stream``, an object with ``__cuda_stream__``, or a raw handle. Default: each request runs on the
        stream that is current at its `begin`; a copy stream of strata's own.
    **options
        As `strata.ExpertStreamer` has them.

    Attributes
    ----------
    layout : SlotLayout
    memory : torch.Tensor, (gpu_ring, stride) uint8
        The slots.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and what is allowed.
    StrataError
        If the runtime and torch's device do not go together.

    Notes
    -----
    `slot.tensors()` and `span.tensors()` give views by the layout's names. On a GPU the kernels that read them go on
    the stream that was current at `begin`; under another stream the views are refused. On the CPU they wait for the
    bytes by themselves. torch's caching allocator hands the slots' memory out again only after the compute stream, and
    a copy stream that was lent, are done with it: raw handles that are lent must live as long as that memory. strata's
    own copy stream is done when `close` returns; where it cannot be waited for, the memory is never freed.
    """

    def __init__(
        self,
        layout: SlotLayout | int,
        *,
        slots: torch.Tensor | None = None,
        gpu_ring: int | None = None,
        device: torch.device | str | int | None = None,
        compute_stream: Any = None,
        copy_stream: Any = None,
        **options: Any,
    ) -> None:
        if isinstance(layout, int) and not isinstance(layout, bool):
            layout = SlotLayout({"bytes": ("uint8", (layout,))})
        if not isinstance(layout, SlotLayout):
            raise TypeError(f"layout is {layout!r}; a strata.SlotLayout, or the bytes of a slot (int), is wanted")
        self.layout = layout
        self._own_stream = 0
        where = place(slots, device)
        stride = -(-layout.nbytes // _ALIGNMENT) * _ALIGNMENT
        if slots is None:
            count = _ring(gpu_ring, layout.nbytes, where)
            slots = device_slots(count, stride, where) if where.type == "cuda" else host_slots(count, stride)
        else:
            _check_slots(slots, layout.nbytes)
            if gpu_ring is not None and gpu_ring != slots.shape[0]:
                raise ValueError(f"gpu_ring is {gpu_ring} and slots has {slots.shape[0]} rows; they must be equal")
        self.memory = slots
        self._tensors = SlotTensors(slots, layout)
        self._stream_given = compute_stream is not None
        if compute_stream is None:
            if where.type == "cuda":
                compute_stream = torch.cuda.current_stream(where)
            else:
                self._own_stream = compute_stream = _hip.create_stream()
        addresses = slots.data_ptr() + np.arange(slots.shape[0], dtype=np.uint64) * np.uint64(slots.stride(0))
        try:
            super().__init__(layout.nbytes, slots=addresses, compute_stream=compute_stream, copy_stream=copy_stream,
                             device=where.index if where.type == "cuda" else None, **options)
        except BaseException:
            self._drop_stream()
            raise
        self._core.tensors = self._tensors
        # torch's allocator records an event on each of these streams when the memory is dropped, and ends the process
        # where one is gone by then. strata's own copy stream ends in close(), which has waited for its copies.
        if copy_stream is not None:
            self._use_on(self.copy_stream)
        self._use_on(self.compute_stream)

    def begin(self, copies: ExpertCopies | None = None, *, compute_stream: Any = None, **options: Any) -> Request:
        """Begin a request on torch's current stream; see `strata.ExpertStreamer.begin`."""
        if options.get("slots") is not None:
            raise ValueError("slots is given to begin(); a TorchStreamer's slots are those that it was made with")
        if compute_stream is None and not self._stream_given and self.memory.is_cuda:
            compute_stream = torch.cuda.current_stream(self.memory.device)
        request = super().begin(copies, compute_stream=compute_stream, **options)
        self._tensors.stream = request.compute_stream
        self._use_on(request.compute_stream)
        return request

    def close(self) -> None:
        """As `strata.ExpertStreamer.close`; the slots' memory then goes back to torch as its tensors are dropped."""
        super().close()
        self._drop_stream()

    def _use_on(self, stream: int) -> None:
        """Tell torch's allocator that work of this stream uses the slots."""
        if self.memory.is_cuda and stream:
            self.memory.record_stream(torch.cuda.ExternalStream(stream, device=self.memory.device))

    def _drop_stream(self) -> None:
        if self._own_stream and not _hip.is_forked():
            stream, self._own_stream = self._own_stream, 0
            _hip.destroy_stream(stream)


def place(slots: torch.Tensor | None, device: torch.device | str | int | None) -> torch.device:
    """The device of a streamer; torch's and the runtime's must be the same."""
    name = runtime.ensure()
    if slots is not None and not isinstance(slots, torch.Tensor):
        raise TypeError(f"slots is {type(slots).__name__}; a 2-D uint8 torch.Tensor is wanted")
    if device is not None:
        where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    elif slots is not None:
        where = slots.device
    else:
        where = torch.device("cpu" if name == "software" else "cuda")
    if slots is not None and (slots.device.type != where.type or (where.index is not None and slots.device != where)):
        raise ValueError(f"slots lies on {slots.device} and device is {where}; they must be the same")
    if (where.type == "cpu") != (name == "software"):
        raise StrataError(f"the device is {where} and the HIP runtime is {name!r}: the software runtime serves the "
                          "CPU, the others a GPU; strata.runtime.use() chooses")
    if where.type not in ("cuda", "cpu"):
        raise ValueError(f"device is {where}; 'cuda' or 'cpu' is allowed")
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return where


def _check_slots(slots: torch.Tensor, nbytes: int) -> None:
    if slots.dtype != torch.uint8 or slots.ndim != 2:
        raise ValueError(f"slots has dtype {slots.dtype} and shape {tuple(slots.shape)}; a 2-D tensor of torch.uint8 "
                         "is wanted")
    if slots.shape[0] == 0 or slots.shape[1] < nbytes:
        raise ValueError(f"slots has shape {tuple(slots.shape)}; at least 1 row of at least {nbytes} bytes is wanted")
    if slots.stride(1) != 1 or (slots.shape[0] > 1 and slots.stride(0) < nbytes):
        raise ValueError(f"slots has strides {slots.stride()}; rows of neighbouring bytes, at least {nbytes} apart, "
                         "are wanted")


def _ring(gpu_ring: int | None, nbytes: int, where: torch.device) -> int:
    from strata.settings import gpu_ring_from_env
    from strata.streamer import _MAX_RING, _count

    if gpu_ring is not None:
        return _count("gpu_ring", gpu_ring, 1, _MAX_RING)
    if where.type == "cuda":
        free, _ = torch.cuda.mem_get_info(where)
    else:
        free, _ = _hip.memory_info()
    return gpu_ring_from_env(free_bytes=free, slot_bytes=nbytes)
