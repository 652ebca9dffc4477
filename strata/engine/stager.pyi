from strata.copies import ExpertCopies
from strata.counters import Counters

class StagerCore:
    """Owner of a host ring and its threads."""
    buffer_bytes: int
    host_ring: int
    stage_batch: int
    def __init__(self, buffer_bytes: int, host_ring: int, workers: int, stage_batch: int, device: int) -> None: ...
    @property
    def running(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def jobs(self) -> int:
        """Jobs of the request."""
    def start(self, copies: ExpertCopies, stage_batch: int) -> None:
        """Offer the list's staged entries to the workers."""
    def wait(self, job: int, timeout: float | None) -> int:
        """Address of the job's buffer once its bytes lie there."""
    def submitted(self, job: int, stream: int) -> None:
        """After the copy of the job was queued on the stream."""
    def finish(self) -> None:
        """End the request; see `strata.HostStager.finish`."""
    def abort(self) -> None:
        """End the request early; see `strata.HostStager.abort`."""
    @property
    def broken(self) -> bool: ...
    def counters(self) -> Counters:
        """A snapshot of the host ring's counters."""
    def pinned_buffers(self) -> tuple[bool, ...]:
        """Which buffers are pinned; empty before the first staged entry."""
    def close(self, timeout: float | None = None) -> None:
        """End what runs, end the threads, free the buffers. Idempotent.

        With a timeout, in seconds: at the interpreter's end, and no signal comes through.
        """
