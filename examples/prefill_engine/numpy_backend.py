"""NumPy in stream order: each piece of work is a host function on a stream of the software runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from rocm.bindings import hip

import strata
from examples.prefill_engine.backend import Groups

__all__ = ["NumpyBackend", "NumpyOps"]

_ALIGNMENT = 256
_NON_BLOCKING = 1


class NumpyOps:
    """Array functions; see `examples.prefill_engine.backend.Ops`."""

    xp = np
    minus_infinity = np.float32(-np.inf)

    def asarray(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.array(values)

    def empty(self, *shape: int) -> npt.NDArray[np.float32]:
        return np.empty(shape, np.float32)

    def zeros(self, *shape: int) -> npt.NDArray[np.float32]:
        return np.zeros(shape, np.float32)

    def silu(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return x * self.sigmoid(x)

    def sigmoid(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return 0.5 * (np.tanh(0.5 * x) + 1.0)

    def arange(self, end: int) -> npt.NDArray[np.int64]:
        return np.arange(end)

    def softmax(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    def largest(self, x: npt.NDArray[np.float32], count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        chosen = np.argsort(-x, axis=-1, kind="stable")[..., :count]
        return np.take_along_axis(x, chosen, axis=-1), chosen

    def sort(self, x: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        order = np.argsort(x, kind="stable")
        return x[order], order

    def first_places(self, x: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        return np.searchsorted(x, values).astype(np.int32)

    def grouped(self, x: npt.NDArray[np.float32], weights: npt.NDArray[np.uint16],
                groups: Groups) -> npt.NDArray[np.float32]:
        out = np.empty((x.shape[0], weights.shape[1]), np.float32)
        begin = 0
        for expert, end in enumerate(groups.ends.tolist()):
            if end > begin:
                # The bits of bfloat16 are the upper half of float32's.
                matrix = (weights[expert].astype(np.uint32) << 16).view(np.float32)
                out[begin:end] = x[begin:end] @ matrix.T
            begin = end
        return out

    def multiply_add(self, added: npt.NDArray[Any], left: npt.NDArray[Any],
                     right: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return added + left @ right

    def solve_unit_lower(self, lower: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.linalg.solve(lower + np.eye(lower.shape[-1], dtype=lower.dtype), right)


class NumpyBackend:
    """See `examples.prefill_engine.backend.Backend`. The software runtime's device memory is host memory.

    Raises
    ------
    RuntimeNotFound, StrataError
        If the process runs on another runtime than *software*.
    """

    name = "numpy"
    torch_stream: Any = None

    def __init__(self) -> None:
        strata.runtime.use("software")
        self.ops = NumpyOps()
        self._hip_stream: Any = _checked("hipStreamCreateWithFlags", hip.hipStreamCreateWithFlags(_NON_BLOCKING))
        self.stream = int(self._hip_stream)
        self._memory: Any = None
        self._slots: npt.NDArray[np.uint16] = np.empty((0, 0), np.uint16)
        self._failure: BaseException | None = None

    def submit(self, work: Callable[[], object]) -> None:
        strata.runtime.launch_host(self.stream, lambda: self._run(work))

    def _run(self, work: Callable[[], object]) -> None:
        """On a thread of the runtime: what is raised is kept for `synchronize`, and nothing after it runs."""
        if self._failure is not None:
            return
        try:
            with np.errstate(all="ignore"):  # what is not finite is the engine's to report, not a warning's
                work()
        except BaseException as problem:
            self._failure = problem

    def synchronize(self) -> None:
        _checked("hipStreamSynchronize", hip.hipStreamSynchronize(self._hip_stream))
        if self._failure is not None:
            problem, self._failure = self._failure, None
            raise problem

    def to_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.array(array)

    def allocate_slots(self, count: int, nbytes: int) -> list[int]:
        stride = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = _checked("hipMalloc", hip.hipMalloc(count * stride))
        base = int(self._memory)
        block = np.ctypeslib.as_array((ctypes.c_uint8 * (count * stride)).from_address(base))
        self._slots = block.reshape(count, stride).view(np.uint16)[:, :nbytes // 2]
        return [base + k * stride for k in range(count)]

    def slots(self, first: int, count: int, step: int = 1) -> npt.NDArray[np.uint16]:
        return self._slots[first:first + (count - 1) * step + 1:step]

    def read_slot(self, index: int) -> npt.NDArray[np.uint8]:
        return self._slots[index].view(np.uint8).copy()

    def close(self) -> None:
        self._slots = np.empty((0, 0), np.uint16)
        if self._hip_stream is not None:
            _checked("hipStreamSynchronize", hip.hipStreamSynchronize(self._hip_stream))
            _checked("hipStreamDestroy", hip.hipStreamDestroy(self._hip_stream))
            self._hip_stream = None
        if self._memory is not None:
            _checked("hipFree", hip.hipFree(self._memory))
            self._memory = None


def _checked(call: str, result: tuple[Any, ...]) -> Any:
    """The value of a call of hip-python, which gives its status first."""
    if result[0] != hip.hipError_t.hipSuccess:
        raise RuntimeError(f"{call}: {result[0].name}")
    return result[1] if len(result) > 1 else None
