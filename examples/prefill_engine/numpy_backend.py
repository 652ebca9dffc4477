"""NumPy in stream order: each piece of work is a host function on a stream of the software runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from rocm.bindings import hip

import strata

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

    def softmax(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    def largest(self, x: npt.NDArray[np.float32], count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        chosen = np.argsort(-x, axis=-1, kind="stable")[..., :count]
        return np.take_along_axis(x, chosen, axis=-1), chosen

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
        self._slots: list[npt.NDArray[np.float32]] = []
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
        self._slots = [block[k * stride:k * stride + nbytes].view(np.float32) for k in range(count)]
        return [base + k * stride for k in range(count)]

    def slot(self, index: int) -> npt.NDArray[np.float32]:
        return self._slots[index]

    def read_slot(self, index: int) -> npt.NDArray[np.uint8]:
        return self._slots[index].view(np.uint8).copy()

    def close(self) -> None:
        self._slots = []
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
