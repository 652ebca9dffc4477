"""The ring that an engine writes with torch alone: what strata is compared with.

One copy stream; a ``copied`` and a ``used`` event a slot; ``copy_(source, non_blocking=True)`` for each segment,
from pinned memory and from pageable memory as it lies. All of it is on the engine's thread: releasing a slot queues
the copy of the entry that comes to it next, so that copies are ahead by as many entries as there are slots.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

import strata

__all__ = ["TorchRequest", "TorchRing", "TorchSlot", "TorchSpan"]


class TorchRing:
    """Streams experts into lent slots, with the face of `strata.ExpertStreamer`.

    Parameters
    ----------
    slots : sequence of torch.Tensor
        One-dimensional, contiguous, on the device.
    compute_stream : torch.cuda.Stream
        Where the kernels are queued that read the slots.

    Attributes
    ----------
    settings : strata.BatchSettings
        1/1/1: each entry has dependencies of its own.
    counters : strata.Counters
        Of all requests that are over.

    Notes
    -----
    For one thread, with one request at a time. Tensors over sources and slots are made at first use and kept, as an
    engine that has its experts in tensors would; so the sources are kept alive until `close`.

    *Staged* entries of the counters are those in pageable memory; here nothing is staged by the host, so their copy
    calls count segments. Seconds are of the host: ``wait_publication_s`` those in `TorchRequest.acquire`, which
    queues a wait on the device and never waits itself; ``submission_s`` those in ``copy_``, which for pageable memory
    may return only when the bytes have been read; ``dependency_calls_s`` those in calls that record an event or queue
    a wait. What strata has and a ring like this has not stays 0.
    """

    def __init__(self, slots: Sequence[torch.Tensor], compute_stream: torch.cuda.Stream) -> None:
        self.settings = strata.BatchSettings()
        self.counters = strata.Counters()
        self._slots = [slot.view(torch.uint8) for slot in slots]
        self._compute_stream = compute_stream
        self._copy_stream = torch.cuda.Stream()
        self._copied = [torch.cuda.Event() for _ in slots]
        self._used = [torch.cuda.Event() for _ in slots]
        self._sources: dict[tuple[int, int], torch.Tensor] = {}  # by address and bytes
        self._targets: dict[tuple[int, int, int], torch.Tensor] = {}  # by slot, offset and bytes
        self._owners: dict[int, object] = {}
        self._running: TorchRequest | None = None
        self._closed = False

    def begin(self, copies: strata.ExpertCopies | None = None, *, long_prefill: bool = True) -> TorchRequest:
        """Begin a request; `long_prefill` makes no difference.

        Parameters
        ----------
        copies : strata.ExpertCopies, optional
            The list, or its beginning.
        long_prefill : bool, optional

        Raises
        ------
        strata.StrataError
            If a request is still running, or the ring is closed.
        """
        if self._closed:
            raise strata.StrataError("this ring is closed")
        if self._running is not None:
            raise strata.StrataError("a request of this ring is still running")
        request = TorchRequest(self)
        self._running = request
        if copies is not None:
            try:
                request.extend(copies)
            except BaseException:
                request.abort()
                raise
        return request

    def close(self) -> None:
        """Abort what runs, wait for the copies, let go of everything. Idempotent."""
        if self._running is not None:
            self._running.abort()
        if not self._closed:
            self._closed = True
            self._copy_stream.synchronize()
        self._slots = []
        self._copied, self._used = [], []
        self._sources, self._targets, self._owners = {}, {}, {}

    def __enter__(self) -> TorchRing:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _source(self, address: int, nbytes: int) -> torch.Tensor:
        try:
            return self._sources[address, nbytes]
        except KeyError:
            memory = (ctypes.c_uint8 * nbytes).from_address(address)
            tensor = self._sources[address, nbytes] = torch.frombuffer(memory, dtype=torch.uint8)
            return tensor

    def _target(self, slot: int, offset: int, nbytes: int) -> torch.Tensor:
        try:
            return self._targets[slot, offset, nbytes]
        except KeyError:
            tensor = self._targets[slot, offset, nbytes] = self._slots[slot][offset:offset + nbytes]
            return tensor


class TorchRequest:
    """One pass over one list of entries, with the face of `strata.Request`. Made by `TorchRing.begin`."""

    def __init__(self, ring: TorchRing) -> None:
        self._ring = ring
        self._began = time.perf_counter()
        self._parts: list[strata.ExpertCopies] = []
        #: Segments of each entry, as (address, offset, bytes).
        self._entries: list[list[tuple[int, int, int]]] = []
        self._issued = 0
        self._consumed = 0
        self._skipped = 0
        self._dropped: list[int] = []
        self._released = 0
        self._free = [True] * len(ring._slots)
        self._acquire_s = self._submission_s = self._dependency_s = self._wall_s = 0.0
        self._over = False
        # What was queued before, of an earlier request or not, may read the slots.
        ring._copy_stream.wait_stream(ring._compute_stream)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def counters(self) -> strata.Counters:
        """What the request did so far."""
        # Nearly all of it follows from how many entries were issued, so the loop need not count.
        copies = strata.ExpertCopies.concatenate(self._parts)
        issued, starts = self._issued, copies.entry_starts
        filled = np.concatenate([np.zeros(1, np.int64), np.cumsum(copies.nbytes > 0)])[starts]
        calls, nbytes = np.diff(filled)[:issued], copies.entry_bytes()[:issued]
        counts: dict[str, int] = {}
        kept = np.ones(len(self), bool)
        kept[self._dropped] = False
        left = ~kept[:issued]
        for kind, mine in (("direct", kept[:issued] & (copies.staged[:issued] == 0)),
                           ("staged", kept[:issued] & (copies.staged[:issued] == 1))):
            counts |= {
                f"{kind}_copies": int(mine.sum()), f"{kind}_copy_calls": int(calls[mine].sum()),
                f"{kind}_bytes": int(nbytes[mine].sum()), f"{kind}_copied_records": int(mine.sum()),
                f"{kind}_reuse_waits": int(mine[len(self._free):].sum()),
            }
        return strata.Counters(
            **counts, copied_waits=self._consumed - self._skipped, used_records=self._released, skipped=self._skipped,
            dropped=int(left.sum()), dropped_bytes=int(nbytes[left].sum()), begin_waits=1,
            wait_publication_s=self._acquire_s, submission_s=self._submission_s,
            dependency_calls_s=self._dependency_s, wall_s=self._wall_s)

    def extend(self, copies: strata.ExpertCopies) -> None:
        """Append entries, and queue the copies of those that have a free slot.

        Raises
        ------
        ValueError
            If an entry does not fit a slot; nothing is appended.
        """
        self._check_running()
        ring = self._ring
        room = len(ring._slots[0])
        extents = copies.entry_extents()
        if len(copies) and int(extents.max()) > room:
            entry = int(extents.argmax())
            raise ValueError(f"copies[{entry}] takes {int(extents[entry])} bytes: a slot has {room}")
        ring._owners.update((id(owner), owner) for owner in copies.owners)
        segments = list(zip(copies.addresses.tolist(), copies.offsets.tolist(), copies.nbytes.tolist(), strict=True))
        starts = copies.entry_starts.tolist()
        self._entries += [segments[begin:end] for begin, end in pairwise(starts)]
        self._parts.append(copies)
        self._issue()

    def acquire(self) -> TorchSlot:
        """The next entry's slot; the compute stream waits for its bytes, the host does not.

        Raises
        ------
        IndexError
            Past the list's end.
        strata.StrataError
            If the entry's slot is still held by an earlier one.
        """
        entry = self._next()
        slot = entry % len(self._free)
        began = time.perf_counter()
        self._ring._compute_stream.wait_event(self._ring._copied[slot])
        seconds = time.perf_counter() - began
        self._acquire_s += seconds
        self._dependency_s += seconds
        self._consumed += 1
        return TorchSlot(self, entry, slot)

    def acquire_span(self, limit: int) -> TorchSpan:
        """The slots of the next entries, one after another: at most `limit`, not past the ring's end, nor the copies.

        Raises
        ------
        IndexError, strata.StrataError
            As `acquire`.
        """
        first = self.acquire()
        held = [first]
        last = min(self._issued, self._consumed - 1 + limit, first.entry - first.slot + len(self._free))
        while self._consumed < last:
            held.append(self.acquire())
        return TorchSpan(held)

    def drop(self, entries: npt.NDArray[np.int64]) -> None:
        """Copy nothing of coming entries, as far as their copies are not queued."""
        self._check_running()
        for entry in entries.tolist():
            if entry >= self._issued:
                self._entries[entry] = []
                self._dropped.append(entry)

    def skip(self, n: int = 1) -> None:
        """Pass the next `n` entries unread: no wait, and no ``used`` event.

        Raises
        ------
        IndexError, strata.StrataError
            As `acquire`.
        """
        for _ in range(n):
            # Copies follow one another on their stream, so the slot may be overwritten as it is.
            self._free[self._next() % len(self._free)] = True
            self._skipped += 1
            self._consumed += 1
            self._issue()

    def finish(self) -> None:
        """Wait for the copies and end.

        Raises
        ------
        strata.StrataError
            If entries were not consumed; the request is aborted then.
        """
        self._check_running()
        consumed, listed = self._consumed, len(self)
        self._end()
        if consumed < listed:
            raise strata.StrataError(f"finish() with {consumed} of {listed} entries consumed: the request was aborted")

    def abort(self) -> None:
        """End early: nothing more is queued, and what was is waited for. No-op where it is over."""
        if not self._over:
            self._end()

    def __enter__(self) -> TorchRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is None:
            self.abort()
        else:
            with suppress(Exception):  # what queued work raises now comes after the first cause
                self.abort()

    def _check_running(self) -> None:
        if self._over:
            raise strata.RequestAborted("this request is over")

    def _next(self) -> int:
        self._check_running()
        if self._consumed >= len(self):
            raise IndexError(f"all {len(self)} entries of the request were consumed")
        if self._consumed >= self._issued:
            raise strata.StrataError(f"entry {self._consumed} waits for the release of a slot that is held")
        return self._consumed

    def _issue(self) -> None:
        """Queue the copies of the entries whose slots are free."""
        if not (self._issued < len(self) and self._free[self._issued % len(self._free)]):
            return
        ring, slots = self._ring, len(self._free)
        with torch.cuda.stream(ring._copy_stream):
            while self._issued < len(self) and self._free[self._issued % slots]:
                slot = self._issued % slots
                pairs = [(ring._target(slot, offset, nbytes), ring._source(address, nbytes))
                         for address, offset, nbytes in self._entries[self._issued] if nbytes]
                began = time.perf_counter()
                if self._issued >= slots:
                    ring._copy_stream.wait_event(ring._used[slot])
                waited = time.perf_counter()
                for target, source in pairs:
                    target.copy_(source, non_blocking=True)
                copied = time.perf_counter()
                ring._copied[slot].record(ring._copy_stream)
                self._submission_s += copied - waited
                self._dependency_s += waited - began + time.perf_counter() - copied
                self._free[slot] = False
                self._issued += 1

    def _release(self, slot: int) -> None:
        if self._over:
            return
        began = time.perf_counter()
        self._ring._used[slot].record(self._ring._compute_stream)
        self._dependency_s += time.perf_counter() - began
        self._released += 1
        self._free[slot] = True
        self._issue()

    def _end(self) -> None:
        self._over = True
        self._ring._running = None
        try:
            self._ring._copy_stream.synchronize()
        finally:
            self._wall_s = time.perf_counter() - self._began
            self._ring.counters += self.counters


class TorchSpan:
    """Entries in neighbouring slots, with the face of `strata.Span`. Made by `TorchRequest.acquire_span`."""

    __slots__ = ("_held", "slot")

    def __init__(self, held: list[TorchSlot]) -> None:
        self._held = held
        self.slot = held[0].slot

    def __len__(self) -> int:
        return len(self._held)

    def __enter__(self) -> TorchSpan:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        for slot in self._held:
            slot.release()


class TorchSlot:
    """An entry in its slot, with the face of `strata.Slot`. Made by `TorchRequest.acquire`."""

    __slots__ = ("_request", "entry", "slot")

    def __init__(self, request: TorchRequest, entry: int, slot: int) -> None:
        self._request: TorchRequest | None = request
        self.entry = entry
        self.slot = slot

    def release(self) -> None:
        """Count what was queued on the compute stream before as the slot's last use. Idempotent."""
        request, self._request = self._request, None
        if request is not None:
            request._release(self.slot)
