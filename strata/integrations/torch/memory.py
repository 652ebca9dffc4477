"""The slots' memory: torch's own on a GPU, the software runtime's on the host."""

from __future__ import annotations

import weakref

import numpy as np
import torch

from strata import _hip

__all__ = ["device_slots", "host_slots"]


def device_slots(count: int, stride: int, device: torch.device) -> torch.Tensor:
    """Allocate slots from torch's caching allocator: (count, stride) bytes."""
    with torch.inference_mode(False):
        return torch.empty((count, stride), dtype=torch.uint8, device=device)


class _SoftwareMemory:
    """Device memory of the software runtime, which is host memory; freed with its last view."""

    def __init__(self, nbytes: int) -> None:
        address = _hip.malloc(nbytes)
        weakref.finalize(self, _free, address).atexit = False
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def host_slots(count: int, stride: int) -> torch.Tensor:
    """Allocate slots from the software runtime, as a tensor on the CPU: (count, stride) bytes."""
    flat = np.asarray(_SoftwareMemory(count * stride))
    with torch.inference_mode(False):
        return torch.from_numpy(flat).view(count, stride)


def _free(address: int) -> None:
    if not _hip.is_forked():
        _hip.free(address)
