from __future__ import annotations

from collections.abc import Iterator

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import Hip

SCHEDULES = ("eager", "lazy", "random", "copies-first", "compute-first")


class Device:
    """Makes HIP objects and gives back at the end of the test what the test did not."""

    def __init__(self, hip: Hip) -> None:
        self.hip = hip
        self._made: list[tuple[str, int]] = []

    def _keep(self, release: str, handle: int) -> int:
        self._made.append((release, handle))
        return handle

    def stream(self, flags: int = 1) -> int:
        return self._keep("StreamDestroy", self.hip.stream(flags))

    def event(self, flags: int = 2) -> int:
        return self._keep("EventDestroy", self.hip.event(flags))

    def malloc(self, nbytes: int) -> int:
        return self._keep("Free", self.hip.malloc(nbytes))

    def host_malloc(self, nbytes: int) -> int:
        return self._keep("HostFree", self.hip.host_malloc(nbytes))

    def close(self) -> None:
        for release, handle in reversed(self._made):
            getattr(self.hip, release)(handle)  # the test may have released it


@pytest.fixture(scope="session")
def hip() -> Hip:
    return Hip()


@pytest.fixture(autouse=True)
def _as_it_was(hip: Hip) -> Iterator[None]:
    """Every test leaves configuration, faults, checker and live objects as it found them."""
    before = control.live()
    configuration = control.configuration()
    yield
    control.clear_injections()
    control.release_hangs()
    control.call_log(False)
    control.checker(False)
    control.clear_costs()
    hip.GetLastError()
    assert control.live()["pending_operations"] == 0
    control.configure(**configuration)
    after = control.live()
    for key in ("streams", "events", "device_allocations", "pinned_bytes", "registered_ranges"):
        assert after[key] == before[key], key


@pytest.fixture
def device(hip: Hip, _as_it_was: None) -> Iterator[Device]:
    made = Device(hip)
    yield made
    made.close()


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest, _as_it_was: None) -> str:
    """Runs the test under each schedule that moves bytes."""
    control.configure(schedule=request.param, seed=20)
    return request.param
