"""What all tests share: the software runtime, chosen once, and a look at what a test left alive."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import strata
from strata import _hip
from strata.runtime.software import control

# benchmarks/ and examples/ lie in the checkout and are not installed. Last: the installed strata is the one to test.
sys.path.append(str(Path(__file__).resolve().parents[1]))

#: These folders make HIP objects of their own, or none, and count them themselves.
OWN_ACCOUNTS = ("software_runtime", "cuda_runtime")

#: What is compared. Threads and pending operations of a destroyed stream end a moment later.
HANDLES = (
    "streams",
    "events",
    "device_allocations",
    "device_bytes",
    "pinned_allocations",
    "pinned_bytes",
    "registered_ranges",
    "registered_bytes",
)

_passed = pytest.StashKey[bool]()

# A shell starts background jobs with Ctrl-C ignored, and whoever a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What pytest holds of thousands of tests is left out of every later collection: many tests ask for one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _software_runtime() -> None:
    """Every test of this process runs on the software runtime; the bindings open one library for good."""
    strata.runtime.use("software")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    return report


@pytest.fixture(autouse=True)
def _nothing_left_alive(request: pytest.FixtureRequest, _software_runtime: None) -> Iterator[None]:
    """Streams, events and memory are back to what they were, and so is HIP's last error. (A failed test's frames keep
    theirs.)"""
    if any(part in OWN_ACCOUNTS for part in request.node.path.parts):
        yield
        return
    before, error = control.live(), _hip.last_error()
    yield
    if not request.node.stash.get(_passed, False):
        return
    if more_than(before):
        gc.collect()  # slow, so only where something may be waiting for it
        assert more_than(before) == {}
    assert _hip.last_error() == error


def more_than(before: dict[str, int]) -> dict[str, int]:
    """What there is more of than before. (Less: an earlier, failed test had kept it.)"""
    return {key: n for key, n in control.live().items() if key in HANDLES and n > before[key]}


@pytest.fixture
def software(_nothing_left_alive: None) -> Iterator[object]:
    """`strata.runtime.software.control`, with configuration, faults and costs put back afterwards."""
    configuration = control.configuration()
    yield control
    control.clear_injections()
    control.release_hangs()
    control.clear_costs()
    control.configure(**configuration)
