"""What the engine asks of a compute back end: arrays, one stream, slots in device memory.

`numpy_backend` computes in host functions on a stream of the software runtime, `torch_backend` on a GPU. The
model's formulas and the engine are written once over this interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import strata

__all__ = ["Array", "Backend", "Groups", "Ops", "make_backend"]

#: An array of the back end: ``numpy.ndarray`` or ``torch.Tensor``.
Array = Any


@dataclass(frozen=True)
class Groups:
    """How rows are shared out among consecutive experts.

    Attributes
    ----------
    ends : (n,) int64
        Exclusive end of each group, counted from the first row of all.
    on_device : (n,) Array
        The same on the device, int32.
    """

    ends: npt.NDArray[np.int64]
    on_device: Array


class Ops(Protocol):
    """Array functions: the array module, and what differs between NumPy and torch."""

    minus_infinity: Any

    @property
    def xp(self) -> Any:
        """The array module."""

    def asarray(self, values: npt.NDArray[Any]) -> Array:
        """A copy on the device."""

    def empty(self, *shape: int) -> Array:
        """Float32, its contents arbitrary."""

    def zeros(self, *shape: int) -> Array:
        """Float32 zeros."""

    def silu(self, x: Array) -> Array:
        """``x`` times its sigmoid."""

    def sigmoid(self, x: Array) -> Array:
        """Logistic function."""

    def arange(self, end: int) -> Array:
        """Int64 from 0 on, `end` excluded."""

    def softmax(self, x: Array) -> Array:
        """Over the last axis."""

    def sort(self, x: Array) -> tuple[Array, Array]:
        """Values ascending and where each was, int64; equal ones in their order. `x` is one-dimensional."""

    def first_places(self, x: Array, values: Array) -> Array:
        """Int32: for each value the first place in ascending `x` that holds no smaller one."""

    def largest(self, x: Array, count: int) -> tuple[Array, Array]:
        """The largest values of the last axis and their indices; of equal ones the first."""

    def grouped(self, x: Array, weights: Array, groups: Groups) -> Array:
        """Multiply each group of rows by a matrix of its own.

        `x` is (rows, in), `weights` (n, out, in) bfloat16 in slots as the back end has them. The result is (rows, out).
        """

    def multiply_add(self, added: Array, left: Array, right: Array) -> Array:
        """``added + left @ right``, of batches of matrices, in one step."""

    def solve_unit_lower(self, lower: Array, right: Array) -> Array:
        """Solve ``(I + lower) y = right`` for strictly lower triangular matrices."""


class Backend(Protocol):
    """One device, one compute stream, one block of slots.

    Attributes
    ----------
    name : str
    stream : int
        Handle of the compute stream.
    torch_stream : torch.cuda.Stream or None
        The same stream as torch has it; None where torch has none.
    """

    name: str
    stream: int
    torch_stream: Any

    @property
    def ops(self) -> Ops:
        """Its array functions."""

    def submit(self, work: Callable[[], object]) -> None:
        """Have `work` done in stream order. It may run at once (and queue kernels), or later, on another thread."""

    def synchronize(self) -> None:
        """Wait until all submitted work is done; raises what it raised first."""

    def to_host(self, array: Array) -> npt.NDArray[Any]:
        """A copy in host memory, of an array whose work is done."""

    def allocate_slots(self, count: int, nbytes: int) -> list[int]:
        """Allocate the cache's slots; their device addresses."""

    def slots(self, first: int, count: int, step: int = 1) -> Array:
        """Every `step`-th slot from `first` on as rows of bfloat16 values, (count, values), without a copy.

        On NumPy their bits, uint16. To be read by submitted work only.
        """

    def read_slot(self, index: int) -> npt.NDArray[np.uint8]:
        """A slot's bytes, copied to the host; all work on it is done."""

    def close(self) -> None:
        """Free stream and slots. Idempotent."""


def make_backend() -> Backend:
    """The back end for the runtime of this process: NumPy on *software*, torch elsewhere.

    Raises
    ------
    RuntimeNotFound, StrataError
        As `strata.runtime.ensure`.
    ImportError
        If torch is wanted and not there.
    """
    if strata.runtime.ensure() == "software":
        from examples.prefill_engine.numpy_backend import NumpyBackend

        return NumpyBackend()
    from examples.prefill_engine.torch_backend import TorchBackend

    return TorchBackend()
