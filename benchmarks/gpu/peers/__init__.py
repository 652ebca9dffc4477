"""One peer a module: ``available()`` says why it cannot be run, ``run(case, bench)`` measures a case."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from benchmarks.gpu.cases import PEERS, Case, Size
from benchmarks.gpu.consumers import Consumer
from benchmarks.gpu.measuring import Pace, Result, timed_passes
from benchmarks.gpu.sources import Sources

__all__ = ["Bench", "Peer", "load"]


@dataclass
class Bench:
    """What a peer is given: the sources of one size, the device, how often to repeat.

    Parameters
    ----------
    size : Size
    sources : Sources
    device : torch.device
    pace : Pace
    """

    size: Size
    sources: Sources
    device: torch.device
    pace: Pace

    def slots(self, count: int) -> torch.Tensor:
        """(count, nbytes) uint8 on the device, in one allocation."""
        return torch.empty((count, self.size.nbytes), dtype=torch.uint8, device=self.device)

    def consumer(self, case: Case, nbytes: int | None = None) -> Consumer:
        """The case's consumer, for so many bytes of an expert (default: all)."""
        return Consumer(case.consumer, self.size.nbytes if nbytes is None else nbytes, self.size.hidden, self.device)

    def synchronize(self) -> None:
        """Return once the device is done."""
        torch.cuda.synchronize(self.device)

    def measure(self, case: Case, one_pass: Callable[[], object], consumer: Consumer | None = None) -> Result:
        """Time passes; with the *kernel* consumer, check one that is not counted against the host's sum.

        Raises
        ------
        ValueError
            If the device's sum is not the host's: nothing is timed then.
        """
        verified = None
        if consumer is not None and consumer.name == "kernel":
            consumer.clear()
            self.synchronize()
            one_pass()
            self.synchronize()
            verified = consumer.matches(self.sources.total(case.memory, case.entries))
            if not verified:
                raise ValueError("the sum over what arrived on the device is not the host's")
        result = timed_passes(case, one_pass, self.synchronize, self.pace, warm=verified is not None)
        result.verified = verified
        return result


class Peer(Protocol):
    """What a module of this package has."""

    def available(self) -> str | None:
        """Why the peer cannot be run here; None where it can."""

    def run(self, case: Case, bench: Bench) -> Result:
        """Measure a case; an exception's text becomes the reason why there is no measurement."""


def load(name: str) -> Peer:
    """Import a peer's module.

    Raises
    ------
    ValueError
        If there is none of this name.
    """
    if name not in PEERS:
        raise ValueError(f"name is {name!r}; one of {', '.join(PEERS)} is allowed")
    return cast(Peer, importlib.import_module(f"{__name__}.{name}"))
