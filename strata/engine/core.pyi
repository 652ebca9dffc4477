from typing import Any

from strata.counters import Counters

DRIVER_TIMEOUT_S: float
SUBMISSIONS: dict[str, int]

def check_timeout(name: str, value: object) -> float: ...

def chain_length(core: StreamerCore) -> int: ...

class StreamerCore:
    slot_bytes: int
    gpu_ring: int
    host_ring: int
    tensors: Any
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
    def in_use(self) -> bool: ...
    def slot_addresses(self) -> tuple[int, ...]: ...
    def handles(self) -> dict[str, int]: ...
    def counters(self) -> Counters: ...
    def cancel(self) -> None: ...
    def close(self, timeout: float | None = None) -> None: ...
