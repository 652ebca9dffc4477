"""Host memory to stream from: random bytes, so that no two places in it look alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strata.pinned import pinned_empty
from strata.tools.selftest.bench import Bench

__all__ = ["Pool"]

_Bytes = npt.NDArray[np.uint8]
_SPOILT = 0xEE


class Pool:
    """Random bytes in pinned or in pageable memory. Payloads are windows into them, at any offset.

    Two windows that begin at different offsets differ nearly everywhere, even where they overlap, so a
    payload that comes from the wrong place, or from the right one of another generation, is seen.
    """

    def __init__(self, bench: Bench, nbytes: int, *, pinned: bool) -> None:
        self._bench = bench
        self._reference: _Bytes = np.random.default_rng([bench.seed, int(pinned), 71]).integers(
            0, 256, nbytes, np.uint8)
        self._bytes: _Bytes = pinned_empty(nbytes, np.uint8) if pinned else np.empty(nbytes, np.uint8)
        self.restore()
        self.address = int(self._bytes.ctypes.data)
        self.pinned = pinned

    def offset(self, generation: int, index: int, nbytes: int) -> int:
        """Where the payload `index` of a generation begins; different for neighbours in either."""
        return (generation * 1_000_003 + index * 69_061) % (len(self._bytes) - nbytes + 1)

    def window(self, offset: int, nbytes: int) -> _Bytes:
        """The bytes that a payload must have, read from elsewhere than where it is streamed from."""
        return self._reference[offset : offset + nbytes]

    def spoil(self) -> None:
        """Write over the memory, as its owner may once a request is over."""
        self._bytes.fill(_SPOILT)
        self._bench.announce_write(self._bytes)

    def restore(self) -> None:
        """Write the payloads again, for the next request."""
        self._bytes[:] = self._reference
        self._bench.announce_write(self._bytes)
