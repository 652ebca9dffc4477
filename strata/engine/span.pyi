from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from strata.engine.slot import Slot

class Span:
    # Made by Request.acquire_span() alone: no call of it type-checks.
    """Neighbouring slots that hold the bytes of consecutive entries, from `Request.acquire_span` to `release`.

    Slot ``k`` of the span lies at ``address + k * stride`` and holds entry ``begin + k``. A context manager:
    leaving it releases the span.

    Attributes
    ----------
    begin, end : int
        The entries ``[begin, end)`` of the request.
    slot : int
        Index of the first slot in the GPU ring; the others follow it.
    address : int
        Device address of the first slot.
    stride : int
        Bytes from one slot to the next; at least a slot's bytes.

    Notes
    -----
    ``len()`` is the number of entries. ``span[k]`` makes a `Slot`; iterating makes one for each entry that is
    wanted. Kernels queued on the compute stream between `Request.acquire_span` and `release` see the bytes. The
    slots are released together. ``numpy.asarray(span)`` is `array` where the host can read
    the memory, and an error elsewhere. One thread, the engine's, uses a span.
    """
    def __init__(self, _made_by_acquire_span: NoReturn) -> None: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def wanted(self) -> npt.NDArray[np.bool_]:
        """(len,) bool, read-only: False where the entry was dropped, so that the slot holds no bytes for it."""
    @property
    def nbytes(self) -> npt.NDArray[np.int64]:
        """(len,) int64, read-only: bytes from each slot's start to the end of its entry's last segment; 0 if dropped."""
    @property
    def held(self) -> bool:
        """Whether the span was not released yet."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Slot: ...
    def __iter__(self) -> Iterator[Slot]: ...
    def check_held(self, problem: str = ...) -> None:
        """Raise `StrataError` unless the span is held."""
    def release(self) -> None:
        """Record that the kernels queued so far are the last readers of these slots, and give them back.

        Raises
        ------
        StrataError
            If the span was released before, or something older is still held.
        """
    def synchronize(self) -> None:
        """Block the host until the bytes of every entry have arrived. Ctrl-C, `cancel` and `stall_timeout` end the wait.

        Raises
        ------
        StrataError
            If the span was released before.
        StallError, RequestAborted, HipError
            As `Request.acquire`.
        """
    def tensors(self) -> Mapping[str, Any]:
        """The span's bytes as named tensors with one more dimension in front, (len, ...): see `Slot.tensors`.

        Returns
        -------
        mapping of str to torch.Tensor
            Views, made once; valid until `release`. On a GPU for kernels of the request's compute stream; on the CPU
            this waits until the bytes have arrived.

        Raises
        ------
        StrataError
            If the span was released before, the streamer is no `TorchStreamer`, or torch's current stream is another
            than the request's.
        """
    def array(self, wait: bool = True) -> npt.NDArray[np.uint8]:
        """All slots as one NumPy array, where device memory is host memory (software runtime).

        Parameters
        ----------
        wait : bool, optional
            False: do not wait until the bytes have arrived, for an engine that knows that they have.

        Returns
        -------
        ndarray of uint8, shape (len, slot_bytes), strides (stride, 1)
            It shows the entries until `release`, in row ``k`` only up to ``nbytes[k]``. It keeps memory of strata's own
            alive, past `ExpertStreamer.close`, too. Lent slots are the lender's to keep.

        Raises
        ------
        StrataError
            On a device whose memory the host cannot address.
        StrataError, StallError, RequestAborted, HipError
            As `synchronize`.
        """
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __reduce__(self) -> NoReturn: ...
    def __enter__(self) -> Span: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...
