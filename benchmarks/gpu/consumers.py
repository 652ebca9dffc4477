"""What is done with an expert that arrived, on the compute stream: the same for every peer.

*null* does nothing, so that the transfer shows. *kernel* is one torch kernel that reads the whole expert and adds
it, word by word, to an accumulator, which after a pass must be the host's own sum. *matvec* multiplies the expert,
as a bf16 matrix, by a vector, as an engine does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["Consumer"]

Consume = Callable[[torch.Tensor], object]


class Consumer:
    """A consumer for experts of one size.

    Parameters
    ----------
    name : {"null", "kernel", "matvec"}
    nbytes : int
        Bytes that it sees of an expert.
    hidden : int
        Columns of the matrix.
    device : torch.device

    Attributes
    ----------
    consume : callable or None
        Takes an expert as `typed` made it, and queues its kernel on the current stream; None for *null*.

    Raises
    ------
    ValueError
        If there is no consumer of this name.
    """

    def __init__(self, name: str, nbytes: int, hidden: int, device: torch.device) -> None:
        self.name = name
        self._hidden = hidden
        self._sum: torch.Tensor | None = None
        self.consume: Consume | None = None
        if name == "kernel":
            self._sum = torch.zeros(nbytes // 4, dtype=torch.int32, device=device)
            self.consume = self._sum.add_
        elif name == "matvec":
            vector = torch.ones(hidden, dtype=torch.bfloat16, device=device)
            product = torch.empty(nbytes // 2 // hidden, dtype=torch.bfloat16, device=device)

            def multiply(matrix: torch.Tensor) -> None:
                torch.mv(matrix, vector, out=product)

            self.consume = multiply
        elif name != "null":
            raise ValueError(f"name is {name!r}; 'null', 'kernel' or 'matvec' is allowed")

    def typed(self, expert: torch.Tensor) -> torch.Tensor:
        """View an expert's bytes, (nbytes,) uint8, as the consumer takes them."""
        if self.name == "kernel":
            return expert.view(torch.int32)
        if self.name == "matvec":
            return expert.view(torch.bfloat16).view(-1, self._hidden)
        return expert

    def clear(self) -> None:
        """Forget what was added up."""
        if self._sum is not None:
            self._sum.zero_()

    def matches(self, total: torch.Tensor) -> bool:
        """Say whether what was added up since `clear` is this, word by word."""
        assert self._sum is not None
        return bool(torch.equal(self._sum.cpu(), total))
