"""The slots as one tensor, and a streamer over them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

import strata
from strata.engine.request import Request
from strata.engine.span import Span

__all__ = ["Ring"]

_ALIGNMENT = 256


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
        self.limit = max(1, slots // 3)

    def begin(self) -> Request:
        """Begin a request whose kernels go on torch's current stream."""
        if self._on_host:
            return self.streamer.begin()
        return self.streamer.begin(compute_stream=torch.cuda.current_stream(self.device).cuda_stream)

    def spans(self, request: Request, begin: int, end: int) -> Iterator[Span]:
        """Take the entries from `begin`, which is next, to `end` in runs of neighbouring slots.

        Each is released when the next is asked for. No run crosses `end` where a list ends there.
        """
        at = begin
        while at < end:
            span = request.acquire_span(self.limit)
            if self._on_host:
                # Nothing is queued on a CPU: the host itself reads the slots.
                span[-1].synchronize()
            at = span.end
            yield span
            span.release()      # not after an exception: the abort knows what is held

    def close(self) -> None:
        """Free the slots, once the kernels that read them are done."""
        self.streamer.close()
