from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

import strata
from strata import _hip

NBYTES = 1500


class Engine:
    """An engine that issues its own copies: from a stager's buffer to the device, then back to be compared."""

    def __init__(self, jobs: int) -> None:
        self.stream = _hip.create_stream()
        self._device = _hip.malloc(max(jobs, 1) * NBYTES)
        self._seen = strata.pinned_empty((max(jobs, 1), NBYTES), np.uint8)
        self._seen[...] = 0xEE

    def copy(self, job: int, address: int, nbytes: int) -> None:
        """Queue the job's copy out of its host buffer."""
        if nbytes:
            _hip.memcpy_h2d_async(self._device + job * NBYTES, address, nbytes, self.stream)

    def arrived(self, jobs: int) -> npt.NDArray[np.uint8]:
        """Bytes that the first jobs' copies brought, after the device is done."""
        for job in range(jobs):
            _hip.memcpy_d2h_async(self._seen[job].ctypes.data, self._device + job * NBYTES, NBYTES, self.stream)
        _hip.synchronize_stream(self.stream)
        return self._seen[:jobs].copy()

    def close(self) -> None:
        """Give the stream and the memory back."""
        _hip.synchronize_stream(self.stream)
        _hip.destroy_stream(self.stream)
        _hip.free(self._device)
        del self._seen  # the fixture's function, and so its engines, live on with the test's arguments


@pytest.fixture
def make_engine(_nothing_left_alive: None) -> Iterator[Callable[[int], Engine]]:
    """Return a function that makes engines; they are closed at the end."""
    made: list[Engine] = []

    def make(jobs: int) -> Engine:
        made.append(Engine(jobs))
        return made[-1]

    yield make
    while made:  # pytest keeps the function, and with it the list, for longer than the test
        made.pop().close()


@pytest.fixture(params=["eager", "lazy", "random", "copies-first", "compute-first"])
def schedule(request: pytest.FixtureRequest, software) -> str:
    """Runs the test under each schedule of the software runtime that moves bytes."""
    software.configure(schedule=request.param, seed=11)
    return request.param
