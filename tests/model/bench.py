"""A streamer beside its model, and the fault that waits for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st

import strata
from strata.runtime.software import control
from tests.model import contract
from tests.model.material import Entry

#: hipErrorInitializationError, for which the bindings take the GIL; out of memory; a fault on the device.
STATUSES = (3, 2, 719)

#: Who makes a call that fails, and which; how many of its kind from then on; with which status.
FAULTS = st.tuples(
    st.sampled_from([
        *[("engine", call) for call in ("hipStreamWaitEvent", "hipEventRecord")],
        *[("issuer", call) for call in ("hipMemcpyAsync", "hipMemcpyAsync", "hipStreamWaitEvent", "hipEventRecord")],
        ("worker", "hipEventSynchronize"),
    ]),
    st.integers(1, 8),
    st.sampled_from(STATUSES),
)


@dataclass
class Fault:
    """A call that fails.

    ``at``: of the engine's calls, how many are left until it strikes, that one included; of another thread's,
    which of its kind in the request it is, from 1.
    """

    who: str
    call: str
    status: int
    injection: control.Injection
    at: int


@dataclass(repr=False, eq=False)
class Bench:
    """A streamer, its model, and the request that runs."""

    number: int
    streamer: strata.ExpertStreamer
    slots: contract.Slots
    batches: contract.Batches
    host_ring: int
    workers: int
    pinned: list[bool]
    lent: list[int] | None
    memory: int
    #: Where the engine's kernels go: of the streamer, and of the latest request.
    default: int
    compute: int
    grouped: bool
    host_ring_made: bool = False
    requests: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    hold: control.Hold | None = None
    # Of the request.
    request: strata.Request | None = None
    model: contract.Request | None = None
    listed: list[Entry] = field(default_factory=list)
    held: list[strata.Slot | strata.Span] = field(default_factory=list)
    #: The slot or span that a loop over the request holds: its next turn, or finish(), releases it.
    iterated: strata.Slot | strata.Span | None = None
    #: So many entries are known to be published.
    lowest: int = 0
    fault: Fault | None = None
    cancelled: bool = False

    @property
    def running(self) -> tuple[contract.Request, strata.Request]:
        """The request that runs, as the model has it and as strata has it."""
        assert self.model is not None
        assert self.request is not None
        return self.model, self.request

    def role(self, who: str = "engine") -> str:
        """The name that its threads have, or the engine's thread while it calls."""
        return f"{who}{self.number}"

    def call_of(self, call: str) -> str:
        """Where direct groups are submitted in one call each, that one may fail in place of a copy."""
        return "hipMemcpyBatchAsync" if call == "hipMemcpyAsync" and self.grouped and self.number % 3 else call

    def __repr__(self) -> str:
        """Short: a failure prints it at every step."""
        return f"streamer {self.number}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))
