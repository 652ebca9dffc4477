"""Reading slots back as a kernel would: device-to-host copies on the compute stream, compared later."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from strata import _hip
from strata.pinned import pinned_empty
from strata.tools.selftest.bench import Bench, Raw
from strata.tools.selftest.entries import Entries

__all__ = ["Look", "Readback"]

_POISON = 0xA5


class Readback:
    """Pinned rows that slots are copied into, and what each row must hold once its stream is drained.

    Parameters
    ----------
    bench : Bench
    rows : int
    slot_bytes : int
    """

    def __init__(self, bench: Bench, rows: int, slot_bytes: int) -> None:
        self._bench = bench
        self._bytes = pinned_empty((rows, slot_bytes), np.uint8)
        self._expected: list[tuple[Entries, int, str]] = []
        self.bytes_checked = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew. Only while no copy into the rows is on its way."""
        self._expected = []
        self._bytes[:] = _POISON
        self._bench.announce_write(self._bytes)

    def read(self, entries: Entries, entry: int, address: int, stream: int, what: str = "") -> None:
        """Queue the copy of a slot into the next row; the slot must hold `entry` of `entries`."""
        row = len(self._expected)
        nbytes = entries.extent(entry)
        if nbytes:
            _hip.memcpy_d2h_async(self._bytes[row].ctypes.data, address, nbytes, stream)
        self._expected.append((entries, entry, what))

    def problems(self) -> list[str]:
        """Compare all rows; their streams must have been synchronized. The texts name what is wrong."""
        found = []
        self._bench.announce_read(self._bytes)
        for row, (entries, entry, what) in enumerate(self._expected):
            self.bytes_checked += entries.extent(entry)
            wrong = entries.first_wrong(entry, self._bytes[row])
            if wrong is not None:
                found.append(f"{what + ', ' if what else ''}entry {entry}: wrong bytes from offset {wrong}")
        return found


class Look:
    """A look at a slot from beside all streams of a request: nothing there is waited for, nor held up.

    Parameters
    ----------
    bench : Bench
    raw : Raw
        Owns the stream.
    slot_bytes : int
    """

    def __init__(self, bench: Bench, raw: Raw, slot_bytes: int) -> None:
        self._bench = bench
        self._bytes = pinned_empty(slot_bytes, np.uint8)
        self._stream = 0 if bench.software else raw.stream()

    def at(self, address: int) -> npt.NDArray[np.uint8]:
        """(slot_bytes,) uint8: what lies there now. Valid until the next look."""
        if self._bench.software:
            # Behind the runtime's back, which would take a copy for one more reader.
            self._bytes[:] = np.frombuffer(ctypes.string_at(address, self._bytes.nbytes), np.uint8)
        else:
            _hip.memcpy_d2h_async(self._bytes.ctypes.data, address, self._bytes.nbytes, self._stream)
            _hip.synchronize_stream(self._stream)
        return self._bytes
