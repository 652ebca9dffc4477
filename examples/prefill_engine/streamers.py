"""What the engine asks of a streamer: what strata offers, and what can be put in its place to compare."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

import strata
from examples.prefill_engine.backend import Backend
from examples.prefill_engine.config import RunConfig
from examples.prefill_engine.errors import InputError

__all__ = ["STREAMERS", "Request", "Span", "Streamer", "check_streamer", "make_streamer"]

#: Names on the command line.
STREAMERS = ("strata", "torch-ring")


class Span(Protocol):
    """Consecutive entries in neighbouring slots, as `strata.Span`. A context manager: leaving it releases it."""

    @property
    def slot(self) -> int:
        """Index of the first slot in the ring."""

    def __len__(self) -> int:
        """How many entries."""

    def __enter__(self) -> Span:
        """Return the span."""

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> bool | None:
        """What was queued before counts as the slots' last use."""


class Request(Protocol):
    """One pass over one list of entries, as `strata.Request`. A context manager."""

    @property
    def counters(self) -> strata.Counters:
        """What it did."""

    def extend(self, copies: strata.ExpertCopies) -> None:
        """Append entries."""

    def acquire_span(self, limit: int) -> Span:
        """The slots of the next entries, at most `limit`; the compute stream waits for their bytes."""

    def drop(self, entries: npt.NDArray[np.int64]) -> None:
        """These coming entries, in order, are not wanted: what is not on its way yet does not come."""

    def skip(self, n: int = 1) -> None:
        """Pass entries unread."""

    def __enter__(self) -> Request:
        """Return the request."""

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> bool | None:
        """End it: no source is read, and nothing copied, after that."""


class Streamer(Protocol):
    """Copies entries into the slots of a ring, as `strata.ExpertStreamer`."""

    @property
    def settings(self) -> strata.BatchSettings:
        """How many entries share a dependency."""

    @property
    def counters(self) -> strata.Counters:
        """Of all requests that are over."""

    def begin(self, copies: strata.ExpertCopies | None = None, *, long_prefill: bool = True) -> Request:
        """Begin a request."""

    def close(self) -> None:
        """Free everything. Idempotent."""


def check_streamer(name: str, backend: Backend) -> None:
    """Raise `InputError` if there is no streamer of this name, or the back end cannot have it."""
    if name not in STREAMERS:
        raise InputError(f"streamer is {name!r}: one of {', '.join(STREAMERS)} is wanted")
    if name == "torch-ring" and backend.torch_stream is None:
        raise InputError(f"streamer is torch-ring, which needs torch on a GPU: this is the {backend.name} back end, on "
                         f"the {strata.runtime.current()} runtime")


def make_streamer(name: str, backend: Backend, slot_bytes: int, first_slot: int, addresses: list[int], run: RunConfig,
                  settings: strata.BatchSettings) -> Streamer:
    """Make the streamer that the slots of the back end are lent to.

    Parameters
    ----------
    name : {"strata", "torch-ring"}
    backend : Backend
    slot_bytes : int
    first_slot : int
        Index in the back end of the first slot that is lent.
    addresses : list of int
        Of the lent slots.
    run : RunConfig
    settings : strata.BatchSettings
        *torch-ring* has no use for them: it has one dependency an entry.

    Raises
    ------
    InputError
        strata refuses one of the sizes.
    """
    if name == "torch-ring":
        from examples.prefill_engine.torch_ring import TorchRing

        lent = range(first_slot, first_slot + len(addresses))
        return TorchRing([backend.slots(index, 1)[0] for index in lent], backend.torch_stream)
    try:
        return strata.ExpertStreamer(slot_bytes, slots=addresses, compute_stream=backend.stream,
                                     host_ring=run.host_ring, workers=run.workers, settings=settings, timing=True)
    except ValueError as problem:  # a host ring that is larger than the memory, say
        raise InputError(str(problem)) from None
