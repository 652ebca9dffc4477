from collections.abc import Callable
from typing import Any

from strata.counters import Counters

DRIVER_TIMEOUT_S: float
SUBMISSIONS: dict[str, int]

def check_timeout(name: str, value: object) -> float:
    """Seconds from 0, as a float."""

def chain_length(core: StreamerCore) -> int:
    """Commands that the streamer's threads have before them or may ask for, for tests."""

class StreamerCore:
    """Owner of a streamer's rings, events and threads. `strata.ExpertStreamer` is its face."""
    slot_bytes: int
    gpu_ring: int
    host_ring: int
    before_staging: Callable[[], object] | None
    tensors: Any
    @property
    def runtime(self) -> Any: ...
    def __init__(
        self,
        slot_bytes: int,
        gpu_ring: int,
        host_ring: int,
        workers: int,
        device: int,
        copy_stream: int | None,
        compute_stream: int | None,
        own_slots: bool,
        timing: bool,
        stall_timeout: float | None,
        submission: int = ...,
        share: bool = ...,
    ) -> None: ...
    @property
    def copy_stream(self) -> int: ...
    @property
    def compute_stream(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def broken(self) -> bool: ...
    @property
    def running(self) -> bool: ...
    @property
    def in_use(self) -> bool:
        """Whether a thread waits in this streamer right now."""
    def slot_addresses(self) -> tuple[int, ...]:
        """Addresses of the slots, in ring order."""
    def handles(self) -> dict[str, int]:
        """Streams and events by name, for findings of the happens-before checker."""
    def counters(self) -> Counters:
        """Counters of all requests so far, the running one included."""
    def cancel(self) -> None:
        """From any thread: have the engine's thread abort what it runs."""
    def close(self, timeout: float | None = None) -> None:
        """Abort what runs, end the threads, free everything. Idempotent."""
