"""The engine's side of a replay: a check pass reads every slot back, a timed pass only streams."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strata import _hip
from strata.copies import ExpertCopies
from strata.counters import Counters
from strata.pinned import pinned_empty
from strata.streamer import ExpertStreamer
from strata.tools.replay.pools import Sources

__all__ = ["Checked", "check_pass", "timed_pass", "warm_up", "wrong_bytes"]

_IN_FLIGHT = 4  # read-backs that wait to be compared

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Checked:
    """What a check pass found.

    Attributes
    ----------
    counters : Counters
        The request's.
    nbytes : int
        Bytes compared.
    wrong : int
        Bytes that differ from their source.
    first_wrong : tuple of int or None
        Entry and offset of the first of them.
    """

    counters: Counters
    nbytes: int
    wrong: int
    first_wrong: tuple[int, int] | None


def warm_up(streamer: ExpertStreamer, copies: ExpertCopies) -> None:
    """Stream a short request, after which every GPU slot, and every host buffer that will be, was used."""
    if len(copies) == 0:
        return
    some = np.arange(streamer.gpu_ring) % len(copies)
    staged = np.flatnonzero(copies.staged)[: streamer.host_ring]
    with streamer.begin(copies.take(np.concatenate([some, staged]))) as request:
        for _ in request:
            pass


def timed_pass(streamer: ExpertStreamer, copies: ExpertCopies) -> tuple[float, Counters]:
    """Acquire and release every entry.

    Returns
    -------
    seconds : float
        From before the request's begin until its last byte has arrived.
    counters : Counters
        The request's.
    """
    began = time.perf_counter()
    with streamer.begin(copies) as request:
        for _ in request:
            pass
    return time.perf_counter() - began, request.counters


def check_pass(streamer: ExpertStreamer, sources: Sources, progress: Progress) -> Checked:
    """Read every slot back on the compute stream, as a kernel would read it, and compare every byte.

    Parameters
    ----------
    streamer : ExpertStreamer
    sources : Sources
    progress : callable
        Called with the number of entries that were compared.

    Returns
    -------
    Checked
    """
    copies = sources.copies
    stream = streamer.compute_stream
    with _Scratch(streamer.slot_bytes, stream) as scratch, streamer.begin(copies) as request:
        pending: deque[int] = deque()
        for entry in range(len(copies)):
            if len(pending) == _IN_FLIGHT:
                scratch.compare(pending.popleft(), sources)
                progress(entry)
            slot = request.acquire()
            scratch.read_back(entry, slot.address, slot.nbytes)
            slot.release()
            pending.append(entry)
        for entry in pending:
            scratch.compare(entry, sources)
    return Checked(request.counters, scratch.nbytes, scratch.wrong, scratch.first_wrong)


class _Scratch:
    """Pinned buffers for what is read back, in turn, and the count of what was wrong in them."""

    def __init__(self, slot_bytes: int, stream: int) -> None:
        self.nbytes = 0
        self.wrong = 0
        self.first_wrong: tuple[int, int] | None = None
        self._stream = stream
        self._buffers = [pinned_empty(slot_bytes, np.uint8) for _ in range(_IN_FLIGHT)]
        self._events: list[int] = []

    def __enter__(self) -> _Scratch:
        for _ in self._buffers:
            self._events.append(_hip.create_event())
        return self

    def __exit__(self, *error: object) -> None:
        # A read-back may still be on its way after an error.
        _hip.synchronize_stream(self._stream)
        while self._events:
            _hip.destroy_event(self._events.pop())

    def read_back(self, entry: int, address: int, nbytes: int) -> None:
        turn = entry % _IN_FLIGHT
        _hip.memcpy_d2h_async(self._buffers[turn].ctypes.data, address, nbytes, self._stream)
        _hip.record_event(self._events[turn], self._stream)

    def compare(self, entry: int, sources: Sources) -> None:
        turn = entry % _IN_FLIGHT
        _hip.synchronize_event(self._events[turn])
        source = sources.source(entry)
        read = self._buffers[turn][: len(source)]
        wrong = wrong_bytes(read, source)
        if wrong and self.first_wrong is None:
            self.first_wrong = entry, int(np.argmax(read != source))
        self.wrong += wrong
        self.nbytes += len(source)


def wrong_bytes(read: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]) -> int:
    """Count the bytes that differ; both are uint8, of equal length."""
    whole = len(source) // 8 * 8
    if np.array_equal(read[:whole].view(np.uint64), source[:whole].view(np.uint64)) and np.array_equal(
        read[whole:], source[whole:]
    ):
        return 0
    return int(np.count_nonzero(read != source))
