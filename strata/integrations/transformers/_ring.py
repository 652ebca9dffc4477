"""The slots as one tensor, and a streamer over them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

import strata

__all__ = ["Ring", "Span"]

_ALIGNMENT = 256


class Span:
    """A run of neighbouring slots that hold entries ``begin`` to ``end``."""

    def __init__(self, slots: list[Any]) -> None:
        self._slots = slots
        self.begin = slots[0].entry
        self.end = slots[-1].entry + 1
        self.slot = slots[0].slot

    def synchronize(self) -> None:
        for slot in self._slots:
            slot.synchronize()

    def release(self) -> None:
        for slot in self._slots:
            slot.release()


class Ring:
    """A streamer whose slots are a (slots, bytes) tensor.

    Parameters
    ----------
    slot_bytes : int
        Bytes of the largest expert.
    slots : int
        Depth of the ring.
    device : torch.device
        Where the slots lie. On a CPU they are memory of the software runtime, and a span is waited for by the host.
    options : dict
        Further arguments of `strata.ExpertStreamer`.
    """

    def __init__(self, slot_bytes: int, slots: int, device: torch.device, **options: Any) -> None:
        stride = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        self.device = device
        self._on_host = device.type == "cpu"
        if self._on_host:
            self.streamer = strata.ExpertStreamer(slot_bytes, gpu_ring=slots, **options)
            base = self.streamer.slots[0]
            memory = (ctypes.c_uint8 * (stride * slots)).from_address(base)
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
            assert self.streamer.slots == tuple(base + stride * k for k in range(slots))
        else:
            self.bytes = torch.empty(slots, stride, dtype=torch.uint8, device=device)
            addresses = [self.bytes.data_ptr() + stride * k for k in range(slots)]
            stream = torch.cuda.current_stream(device).cuda_stream
            self.streamer = strata.ExpertStreamer(slot_bytes, slots=addresses, compute_stream=stream, **options)
        self.limit = max(1, min(slots // 3, self.streamer.max_held))

    def begin(self) -> Any:
        """Begin a request whose kernels go on torch's current stream."""
        if self._on_host:
            return self.streamer.begin()
        return self.streamer.begin(compute_stream=torch.cuda.current_stream(self.device).cuda_stream)

    def spans(self, request: Any, end: int, wanted: Any = None) -> Iterator[Span]:
        """Take the next entries, to `end`, in runs of neighbouring slots; each is released when the next is taken."""
        ring = self.streamer.gpu_ring
        while (at := request.consumed) < end:
            if wanted is not None and not wanted[at]:
                request.skip()
                continue
            room = min(self.limit, ring - at % ring, end - at)
            slots = []
            for k in range(room):
                if wanted is not None and not wanted[at + k]:
                    break
                slots.append(request.acquire())
            span = Span(slots)
            if self._on_host:
                span.synchronize()
            yield span
            span.release()

    def close(self) -> None:
        """Free the slots, once the kernels that read them are done."""
        self.streamer.close()
