"""The engine's part in a test: it reads every slot back on the compute stream, as a kernel would."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

import strata
from strata import _hip
from tests.support.sources import Material


class Reader:
    """Copies slots back to the host, in stream order, and compares them once the stream is drained.

    Nothing here waits for bytes before `wrong` does: an entry that is overwritten too early, or published
    too early, shows other bytes.
    """

    def __init__(self, rows: int, nbytes: int) -> None:
        self._images = strata.pinned_empty((max(rows, 1), nbytes), np.uint8)
        self._images[...] = 0xA5
        self._entries: list[tuple[int, int]] = []
        self._streams: set[int] = set()

    def read(self, slot: strata.Slot, stream: int) -> None:
        """Queue a copy of the slot's bytes on the compute stream."""
        row = len(self._entries)
        self._entries.append((slot.entry, slot.nbytes))
        self._streams.add(stream)
        if slot.nbytes:
            _hip.memcpy_d2h_async(self._images[row].ctypes.data, slot.address, slot.nbytes, stream)

    def wrong(self, material: Material, *, closed: bool = False) -> int:
        """Wait for the stream; count wrong bytes of all that was read since the last call.

        `closed`: the streamer was closed, and its own compute stream with it. Closing has waited for every
        released slot's readers, so there is nothing to wait for.
        """
        for stream in () if closed else self._streams:
            _hip.synchronize_stream(stream)
        bad = 0
        for row, (entry, nbytes) in enumerate(self._entries):
            assert nbytes == material.extent(entry), f"entry {entry}"
            bad += material.wrong(entry, self._images[row])
        self._entries.clear()
        return bad

    @property
    def entries(self) -> list[int]:
        """Entries that were read and not yet compared, in order."""
        return [entry for entry, _ in self._entries]


def read_rest(request: strata.Request, reader: Reader, stream: int, skipped: Iterable[int] = ()) -> None:
    """Acquire, read and release everything that is listed; skip some entries."""
    left_out = set(skipped)
    for entry in range(request.consumed, len(request)):
        if entry in left_out:
            request.skip()
            continue
        slot = request.acquire()
        assert slot.entry == entry
        reader.read(slot, stream)
        slot.release()


def stream_all(streamer: strata.ExpertStreamer, material: Material, skipped: Iterable[int] = ()) -> strata.Counters:
    """One whole request: every byte is checked; its counters are returned."""
    reader = Reader(len(material), streamer.slot_bytes)
    with streamer.begin(material.copies) as request:
        read_rest(request, reader, streamer.compute_stream, skipped)
    assert reader.wrong(material) == 0
    return request.counters
