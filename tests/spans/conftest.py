from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from strata import _hip
from tests.support.latch import Latch

SCHEDULES = ("eager", "lazy", "random", "copies-first", "compute-first")


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest, software) -> str:
    """Runs the test under each schedule of the software runtime that moves bytes."""
    software.configure(schedule=request.param, seed=7)
    return request.param


@pytest.fixture
def pin_at_most(software) -> Callable[[int], None]:
    """Return a function that lets no more than so many further bytes be pinned."""

    def limit(nbytes: int) -> None:
        software.configure(pinned_limit=software.live()["pinned_bytes"] + nbytes)

    return limit


@pytest.fixture
def make_stream(_nothing_left_alive: None) -> Iterator[Callable[[], int]]:
    """Return a function that makes streams as an engine has them; they go at the end."""
    made: list[int] = []

    def make() -> int:
        made.append(_hip.create_stream())
        return made[-1]

    yield make
    for stream in made:
        _hip.destroy_stream(stream)


@pytest.fixture
def lend_slots(_nothing_left_alive: None) -> Iterator[Callable[..., list[int]]]:
    """Return a function that makes slots as an engine has them: apart, and not in order of address."""
    made: list[int] = []

    def lend(count: int, nbytes: int) -> list[int]:
        stride = nbytes + 48
        made.append(_hip.malloc(count * stride))
        places = [made[-1] + k * stride for k in range(count)]
        return places[::2] + places[1::2]

    yield lend
    for address in made:
        _hip.free(address)


@pytest.fixture
def hold(software) -> Iterator[Callable[[int], Latch]]:
    """Return a function that holds a stream back; what is still held at the end is let go."""
    made: list[Latch] = []

    def make(stream: int) -> Latch:
        made.append(Latch(software, stream))
        return made[-1]

    yield make
    for latch in made:
        latch.release()
