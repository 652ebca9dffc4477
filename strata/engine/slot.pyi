from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

class Slot:
    # Made by Request.acquire() alone: no call of it type-checks.
    """A slot that holds an entry's bytes, from `Request.acquire` to `release`. A context manager: leaving it releases it.

    Attributes
    ----------
    entry : int
        Number of the entry in its request.
    slot : int
        Index in the GPU ring.
    address : int
        Device address of the slot.
    nbytes : int
        Bytes from the slot's start to the end of the entry's last segment.

    Notes
    -----
    Kernels queued on the compute stream between `acquire` and `release` see the bytes. After `release` the
    slot is strata's again.
    ``numpy.asarray(slot)`` is `array` where the host can read the memory, and an error elsewhere.
    """
    def __init__(self, _made_by_acquire: NoReturn) -> None: ...
    @property
    def entry(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def held(self) -> bool:
        """Whether the slot, or the span that it is a part of, was not released yet."""
    def check_held(self, problem: str = ...) -> None:
        """Raise `StrataError` unless the slot is held."""
    def __enter__(self) -> Slot: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...
    def release(self) -> None:
        """Record that the kernels queued so far are the slot's last readers, and give it back.

        Raises
        ------
        StrataError
            If it was released before, or an older slot is still held.
        """
    def synchronize(self) -> None:
        """Block the host until the bytes have arrived. Ctrl-C, `cancel` and `stall_timeout` end the wait.

        Raises
        ------
        StrataError
            If the slot was released before.
        StallError, RequestAborted, HipError
            As `Request.acquire`.
        """
    def tensors(self) -> Mapping[str, Any]:
        """The slot's bytes as named tensors, by the layout of a `strata.integrations.torch.TorchStreamer`.

        Returns
        -------
        mapping of str to torch.Tensor
            Views, made once; valid until `release`. On a GPU for kernels of the request's compute stream; on the CPU
            this waits until the bytes have arrived.

        Raises
        ------
        StrataError
            If the slot was released before, the streamer is no `TorchStreamer`, or torch's current stream is another
            than the request's.
        """
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def array(self, wait: bool = True) -> npt.NDArray[np.uint8]:
        """The slot's bytes as a NumPy array, where device memory is host memory (software runtime).

        Parameters
        ----------
        wait : bool, optional
            False: do not wait until the bytes have arrived, for an engine that knows that they have.

        Returns
        -------
        ndarray of uint8, shape (nbytes,)
            It shows the entry until `release`; after that the slot's next bytes. It keeps memory of strata's own alive,
            past `ExpertStreamer.close`, too. Lent slots are the lender's to keep.

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
