"""Pin tensors where they lie, within a budget."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from strata.errors import HipError
from strata.pinned import register

__all__ = ["Pinned", "pin"]

_OUT_OF_MEMORY = 2  # hipErrorOutOfMemory: no more memory can be pinned


@dataclass
class Pinned:
    """What `pin` got: a context manager that unpins at its end.

    Attributes
    ----------
    tensors : list of torch.Tensor
        Those that are pinned now, kept alive.
    nbytes : int
        Their bytes; no more than these are pinned, pages at the ends apart.
    left : list of torch.Tensor
        Those that the budget did not reach, or that could not be pinned.
    why : str
        Why something was left; empty where nothing was.
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    nbytes: int = 0
    left: list[torch.Tensor] = field(default_factory=list)
    why: str = ""
    _ranges: list[Any] = field(default_factory=list, repr=False)

    def close(self) -> None:
        """Unpin everything. Idempotent."""
        while self._ranges:
            self._ranges.pop().__exit__(None, None, None)
        self.tensors, self.nbytes = [], 0

    def __enter__(self) -> Pinned:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def pin(tensors: Iterable[torch.Tensor], limit: int | None = None) -> Pinned:
    """Page-lock CPU tensors where they lie, in order, until the budget is spent.

    Parameters
    ----------
    tensors : iterable of torch.Tensor
        Contiguous, on the CPU. One that lies in an earlier one counts nothing. torch must not move one to shared memory
        while it is pinned.
    limit : int, optional
        Bytes at most. Default: no budget.

    Returns
    -------
    Pinned
        What it got. Nothing is rounded up: whole tensors, and the pages that they lie on.

    Raises
    ------
    TypeError, ValueError
        If one is no contiguous CPU tensor, or `tensors` is one itself, before anything is pinned. If one overlaps in
        part what is pinned.
    HipError
        If the runtime refuses for another reason than memory that cannot be pinned.
    """
    if isinstance(tensors, torch.Tensor):
        raise TypeError("tensors is a torch.Tensor; a list of them is wanted")
    wanted = list(tensors)
    for k, tensor in enumerate(wanted):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensors[{k}] is {type(tensor).__name__}; a torch.Tensor is wanted")
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError(f"tensors[{k}] lies on {tensor.device} with strides {tensor.stride()}; a contiguous "
                             "tensor on the CPU is wanted")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise ValueError(f"limit is {limit!r}; a number of bytes from 0 is wanted")
    got = Pinned()
    done: list[tuple[int, int]] = []  # sorted; registered ranges do not overlap
    try:
        for tensor in wanted:
            nbytes = tensor.numel() * tensor.element_size()
            begin = tensor.data_ptr()
            at = bisect.bisect_right(done, (begin, sys.maxsize))
            if at and begin + nbytes <= done[at - 1][1]:
                got.tensors.append(tensor)  # a view of one that came before it
                continue
            if got.left or (limit is not None and got.nbytes + nbytes > limit):
                got.left.append(tensor)
                got.why = got.why or f"the budget of {limit} bytes is spent"
                continue
            if nbytes:
                flat = tensor.detach().view(-1).view(torch.uint8).numpy()
                held = register(flat)
                try:
                    held.__enter__()
                except HipError as problem:
                    if problem.status != _OUT_OF_MEMORY:
                        raise
                    got.left.append(tensor)
                    got.why = str(problem)
                    continue
                got._ranges.append(held)
                done.insert(at, (begin, begin + nbytes))
            got.tensors.append(tensor)
            got.nbytes += nbytes
    except BaseException:
        got.close()
        raise
    return got
