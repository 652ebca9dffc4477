from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn

import numpy.typing as npt

from strata.copies import ExpertCopies
from strata.counters import Counters
from strata.engine.slot import Slot
from strata.engine.span import Span
from strata.settings import BatchSettings

class Request:
    # Made by ExpertStreamer.begin() alone: no call of it type-checks.
    """One pass over one list of entries. Made by `strata.ExpertStreamer.begin`.

    A context manager: leaving it finishes the request where every entry was consumed, and aborts it
    otherwise, or when an exception passes. Iterating it acquires and releases slots in order.

    Attributes
    ----------
    compute_stream : int
        Handle of the stream that this request's kernels go on; known after its end, too.

    Notes
    -----
    One thread, the engine's, uses a request; `cancel` may come from any thread. A call that fails ends the
    request: it is aborted, and the first cause is raised.
    """
    def __init__(self, _made_by_begin: NoReturn) -> None: ...
    @property
    def settings(self) -> BatchSettings:
        """The batches that this request runs with, clamped."""
    @property
    def compute_stream(self) -> int: ...
    @property
    def issued(self) -> int:
        """Entries whose completion is recorded: the engine may queue waits on them."""
    @property
    def consumed(self) -> int:
        """Entries whose `used` record is submitted."""
    @property
    def released(self) -> int:
        """Entries that were given back or passed; `consumed` follows, where several share a record."""
    @property
    def counters(self) -> Counters:
        """A snapshot of the request's counters; the final ones once it is over."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Slot]: ...
    def __next__(self) -> Slot: ...
    def acquire(self, timeout: float | None = None) -> Slot:
        """The next entry's slot; the compute stream waits for its bytes, the host does not.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for publication. Default: without end (but see `stall_timeout`). Only time in which strata
            could run is counted, not such in which the process was stopped.

        Returns
        -------
        Slot

        Raises
        ------
        IndexError
            Past the list's end.
        TimeoutError
            After `timeout` without publication; the request goes on.
        StallError
            After the streamer's `stall_timeout` in which no thread got anything done.
        StrataError
            If only a release by the caller could let the entry be published.
        RequestAborted
            After `cancel`.
        HipError
            The first cause, if a HIP call of any thread failed.
        """
    def acquire_span(self, limit: int, timeout: float | None = None) -> Span:
        """The slots of the next entries, together: one wait of the compute stream for all of their bytes.

        Parameters
        ----------
        limit : int
            At most so many entries, 1 to the ring's depth. What may be held now cuts it.
        timeout : float, optional
            As for `acquire`.

        Returns
        -------
        Span
            The longest run of next entries whose slots lie at one distance from each other (those that strata
            allocates always do), not across the ring's wrap nor the end of an extension, and whose last copy group
            needs no further release. Entries that were dropped are holes in it: see `Span.wanted`.

        Raises
        ------
        TypeError, ValueError
            If `limit` is no integer, or none of 1 to the ring's depth; nothing was done.
        IndexError, TimeoutError, StallError, StrataError, RequestAborted, HipError
            As `acquire`.
        """
    def spans(self, limit: int) -> Iterator[Span]:
        """Iterate over the rest of the request by spans; each is released when the next one is asked for.

        Parameters
        ----------
        limit : int
            As for `acquire_span`.

        Returns
        -------
        iterator of Span
            It ends with the list. A loop that is left keeps its last span, as a loop over the request keeps its slot.

        Raises
        ------
        TypeError, ValueError
            If `limit` is no integer, or none of 1 to the ring's depth.
        IndexError, TimeoutError, StallError, StrataError, RequestAborted, HipError
            From the iterator, as `acquire`.
        """
    def drop(self, entries: int | slice | range | Sequence[int] | npt.NDArray[Any]) -> None:
        """Mark coming entries as unwanted, so that nothing of them is gathered or copied.

        Parameters
        ----------
        entries : int, slice, range, (n,) integers, or (len(request),) bools
            Entries of the request that nobody has acquired or passed yet. A slice is taken of the whole list, a
            mask marks the entries to drop.

        Raises
        ------
        IndexError
            If an entry is past the end of the list, or negative; nothing is dropped.
        ValueError
            If an entry was acquired or passed before, or a mask has another length; nothing is dropped.
        TypeError
            If `entries` is none of these.
        StrataError, RequestAborted, HipError
            As `acquire`.

        Notes
        -----
        Iteration, spans and `finish` pass over dropped entries; in a span they are holes. `acquire` refuses one, and
        `skip` passes it. What the issuer or a worker has taken already is copied all the same, which is no error:
        ``counters.dropped_late`` counts it. So that a drop is in time, bound how far the copies run ahead of the engine
        with `run_ahead`. Time is linear in the number of entries dropped.
        """
    def flush(self) -> None:
        """Record the `used` of everything that was released and shares a record that is still to come.

        For an engine that waits in a way of its own, so that the issuer may go on meanwhile; strata does it by itself
        before it waits. Without `share_dependencies` nothing is ever pending.

        Raises
        ------
        StrataError, RequestAborted, HipError
            As `acquire`.
        """
    def skip(self, n: int = 1) -> None:
        """Pass the next `n` entries unread: their `used` records advance, no wait is queued.

        An entry skipped behind held slots advances when those are released.

        Raises
        ------
        ValueError
            If `n` is negative.
        TypeError
            If `n` is no integer.
        IndexError
            If fewer than `n` entries are left; none is skipped then.
        StrataError, RequestAborted, HipError
            As `acquire`.
        """
    def extend(self, copies: ExpertCopies) -> None:
        """Append entries to the running request.

        Parameters
        ----------
        copies : ExpertCopies

        Raises
        ------
        TypeError
            If `copies` is no `ExpertCopies`.
        ValueError
            If an entry does not fit a slot, or torch has moved a storage of the list; nothing is appended.
        MemoryError
            If no host buffer can be allocated, with the bytes asked for.
        """
    def finish(self) -> None:
        """End the request: its list is complete and every entry was consumed.

        On return strata reads no source any more.

        Raises
        ------
        StrataError
            If entries were not consumed; the request is aborted then.
        RequestAborted, HipError
            As `acquire`.

        Notes
        -----
        Ctrl-C ends the wait for the device, not the request: that keeps its sources, takes no more entries, and ends
        with the next `finish`, `abort` or `ExpertStreamer.begin`.
        """
    def abort(self) -> None:
        """End the request early. The next one may begin at once. No-op where it is over.

        Raises
        ------
        StrataError
            If a driver call has not returned, or the device cannot be waited for: the streamer is broken then. If the
            calling thread could not be given its device back: the request has ended. If another thread waits in a call
            of the streamer's, or this is the child of a fork: nothing has happened then.

        Notes
        -----
        What the request had failed with before is not raised: it is given up. The wait is bounded, and Ctrl-C is seen after
        it.
        """
    def cancel(self) -> None:
        """From any thread: the engine's next call on this request aborts it and raises `RequestAborted`."""
    def __reduce__(self) -> NoReturn: ...
    def __enter__(self) -> Request: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...
