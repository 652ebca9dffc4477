"""torch on a GPU. Its stream and its memory are lent to strata: a raw stream handle, and the slots' addresses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from examples.prefill_engine.backend import Groups

__all__ = ["TorchBackend", "TorchOps"]

_ALIGNMENT = 256
# Each group of rows by a matrix of its own, in one launch. Where torch has none, a loop.
_GROUPED: Callable[..., torch.Tensor] | None = getattr(
    torch.nn.functional, "grouped_mm", getattr(torch, "_grouped_mm", None))


class TorchOps:
    """Array functions on a device; see `examples.prefill_engine.backend.Ops`."""

    xp = torch

    def __init__(self, device: str) -> None:
        self._device = device
        self.minus_infinity = torch.tensor(-float("inf"), device=device)

    def asarray(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.array(values)).to(self._device)

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self._device)

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=self._device)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    def arange(self, end: int) -> torch.Tensor:
        return torch.arange(end, device=self._device)

    def softmax(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    def largest(self, x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        # Sorted, not torch.topk: of equal shares the first is taken, always.
        values, chosen = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[..., :count], chosen[..., :count]

    def sort(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, order = torch.sort(x, stable=True)
        return values, order

    def first_places(self, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(x, values, out_int32=True)

    def grouped(self, x: torch.Tensor, weights: torch.Tensor, groups: Groups) -> torch.Tensor:
        x = x.to(torch.bfloat16)
        if _GROUPED is not None:
            return _GROUPED(x, weights.transpose(-2, -1), offs=groups.on_device)
        out = torch.empty((x.shape[0], weights.shape[1]), dtype=torch.bfloat16, device=x.device)
        begin = 0
        for expert, end in enumerate(groups.ends.tolist()):
            if end > begin:
                out[begin:end] = torch.nn.functional.linear(x[begin:end], weights[expert])
            begin = end
        return out

    def multiply_add(self, added: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(added, left, right)

    def solve_unit_lower(self, lower: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)


class TorchBackend:
    """See `examples.prefill_engine.backend.Backend`.

    Raises
    ------
    RuntimeError
        If torch sees no GPU.
    """

    name = "torch"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU: run on the software runtime (--runtime software) instead")
        # The numbers are compared bit by bit, so float32 means float32.
        torch.backends.cuda.matmul.allow_tf32 = False
        self.ops = TorchOps("cuda")
        self.torch_stream = torch.cuda.Stream()
        self.stream = int(self.torch_stream.cuda_stream)
        # Until close: what the engine makes outside `submit` goes on this stream, too.
        self._contexts = ExitStack()
        self._contexts.enter_context(torch.cuda.stream(self.torch_stream))
        self._contexts.enter_context(torch.inference_mode())
        self._slots: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def submit(self, work: Callable[[], object]) -> None:
        work()

    def synchronize(self) -> None:
        self.torch_stream.synchronize()

    def to_host(self, array: torch.Tensor) -> npt.NDArray[Any]:
        return array.cpu().numpy()

    def allocate_slots(self, count: int, nbytes: int) -> list[int]:
        stride = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._slots = torch.empty((count, stride), dtype=torch.uint8, device="cuda")
        self._values = self._slots.view(torch.bfloat16)[:, :nbytes // 2]
        return [row.data_ptr() for row in self._slots]

    def slots(self, first: int, count: int, step: int = 1) -> torch.Tensor:
        assert self._values is not None
        return self._values[first:first + (count - 1) * step + 1:step]

    def read_slot(self, index: int) -> npt.NDArray[np.uint8]:
        return self.slots(index, 1)[0].view(torch.uint8).cpu().numpy()

    def close(self) -> None:
        self.torch_stream.synchronize()
        self._contexts.close()
        self._values = self._slots = None
