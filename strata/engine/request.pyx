# cython: nonecheck=True
"""The engine's side for Python: a request.

`acquire` and `release` keep the GIL on their fast path: giving it up beside a busy Python thread takes milliseconds.
"""
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t
from libc.string cimport memchr
from libcpp.atomic cimport memory_order_acquire

import logging
import warnings

from strata cimport _hip
from strata._arrays cimport values_of
from strata.engine.control cimport WHO_ENGINE, WHO_ISSUER
from strata.engine.command cimport Rows
from strata.engine.core cimport (PyThreadState, StreamerCore, as_counters, cause_error, let_python_run, nanoseconds,
                                 python_has_run, rows_of)
from strata.engine.counters cimport COUNTER_REFUSED_BATCHES, N_COUNTERS, read_counters
from strata.engine.consumption cimport (pipeline_acquire, pipeline_acquire_span, pipeline_drop, pipeline_flush,
                                        pipeline_only_dropped_left, pipeline_pass_dropped, pipeline_release,
                                        pipeline_release_span, pipeline_skip)
from strata.engine.pipeline cimport (STEP_BUSY, STEP_DROPPED, STEP_END, STEP_HELD, STEP_HUNG, STEP_NO_MEMORY, STEP_OK,
                                     STEP_ORDER, STEP_STOPPED, AcquiredSlot, AcquiredSpan, Pipeline,
                                     pipeline_cancel, pipeline_extend, pipeline_progress, pipeline_shorten,
                                     pipeline_wait_published)
from strata.engine.running cimport Running
from strata.engine.slot cimport Slot, new_slot
from strata.engine.span cimport Span
from strata.engine.teardown cimport pipeline_abort, pipeline_finish
from strata.engine.threads cimport now_ns, time_waited

import numpy as np

from strata.engine.core import check_timeout
from strata._entries import dropped_entries
from strata._host_memory import room
from strata.errors import HipError, RequestAborted, StrataError

logger = logging.getLogger("strata")

cdef enum:
    SLICE_NS = 20000000          # of a blocking wait, between two looks for Ctrl-C


cdef class Request(Running):
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

    def __init__(self):
        raise TypeError("a Request is made by ExpertStreamer.begin()")

    cdef Pipeline* _live(self) except? NULL:
        """Its pipeline while it runs; NULL once it is over."""
        _hip.refuse_child()
        return self.core.p if self.ended is None else NULL

    def __len__(self):
        cdef Pipeline* p = self._live()
        return self.final_length if p == NULL else p.length

    @property
    def settings(self):
        """The batches that this request runs with, clamped."""
        return self.settings_

    @property
    def issued(self):
        """Entries whose completion is recorded: the engine may queue waits on them."""
        cdef Pipeline* p = self._live()
        return self.final_issued if p == NULL else p.issuer.issued.get()

    @property
    def consumed(self):
        """Entries whose `used` record is submitted."""
        cdef Pipeline* p = self._live()
        return self.final_consumed if p == NULL else p.issuer.consumed.get()

    @property
    def released(self):
        """Entries that were given back or passed; `consumed` follows, where several share a record."""
        cdef Pipeline* p = self._live()
        return self.final_released if p == NULL else p.released

    @property
    def counters(self):
        """A snapshot of the request's counters; the final ones once it is over."""
        cdef int64_t[N_COUNTERS] now
        cdef Pipeline* p = self._live()
        if p == NULL:
            return as_counters(self.final)
        read_counters(&p.counters, now)
        return as_counters(now)

    # --- taking entries -------------------------------------------------------------------------------------

    def acquire(self, timeout=None):
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
        cdef StreamerCore core = self.core
        cdef PyThreadState* state
        cdef AcquiredSlot got
        cdef Pipeline* p
        cdef int step
        if timeout is not None:
            timeout = check_timeout("timeout", timeout)
        p = self.pipeline()
        state = let_python_run(core)
        step = pipeline_acquire(p, &got)
        python_has_run(core, state)
        if step != STEP_OK:
            while step == STEP_BUSY:
                self._block(timeout)
                state = let_python_run(core)
                step = pipeline_acquire(p, &got)
                python_has_run(core, state)
            if step != STEP_OK:
                self._raise(step)
        return new_slot(self, None, &got)

    def acquire_span(self, limit, timeout=None):
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
        cdef StreamerCore core = self.core
        cdef PyThreadState* state
        cdef AcquiredSpan got
        cdef Span span
        cdef Pipeline* p
        cdef int64_t most = 0
        cdef int overflow = 0
        cdef int step
        if timeout is not None:
            timeout = check_timeout("timeout", timeout)
        p = self.pipeline()
        if type(limit) is int:                  # without the general check, which costs as much as the rest
            most = PyLong_AsLongLongAndOverflow(limit, &overflow)
        if most < 1 or most > p.ring.size:
            most = self._check_limit(limit)
            p = self.pipeline()
        state = let_python_run(core)
        step = pipeline_acquire_span(p, most, &got)
        python_has_run(core, state)
        if step != STEP_OK:
            while step == STEP_BUSY:
                self._block(timeout)
                state = let_python_run(core)
                step = pipeline_acquire_span(p, most, &got)
                python_has_run(core, state)
            if step != STEP_OK:
                self._raise(step)
        span = Span.__new__(Span)
        span.request = self
        span.origin = self
        span.begin = got.begin
        span.end = got.end
        span.slot = got.slot
        span.address = got.address
        span.stride = got.stride
        return span

    cdef int64_t _check_limit(self, limit) except -1:
        self.pipeline()
        if isinstance(limit, (bool, np.bool_)) or not isinstance(limit, (int, np.integer)):
            raise TypeError(f"limit is {limit!r}; a number of entries, an integer, is wanted")
        if not 1 <= int(limit) <= self.core.gpu_ring:
            raise ValueError(f"limit is {limit}; it must be from 1 to {self.core.gpu_ring}, the ring's depth")
        return int(limit)

    def spans(self, limit):
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
        return self._spans(self._check_limit(limit))

    def _spans(self, int64_t limit):
        cdef Pipeline* p
        cdef Span span
        while True:
            self._release_iterated()
            p = self.pipeline()
            if p.acquired >= p.length and not p.control.interrupted.load(memory_order_acquire):
                return
            span = self.acquire_span(limit)
            self.loop_takes(<void*>span, span.begin, span.end, True)
            yield span
            span = None

    cdef int _release_iterated(self) except -1:
        """A loop's turn is over: give back what it holds, if anything."""
        cdef Pipeline* p
        cdef StreamerCore core
        cdef PyThreadState* state
        cdef int64_t begin = self.looped_begin
        cdef int64_t end = self.looped_end
        cdef int step
        if begin < 0:
            return 0
        held = <object>self.looped if self.looped != NULL else None
        self.looped_begin = -1
        self.looped = NULL
        if held is not None:
            if held.held:
                held.release()
            return 0
        p = self.pipeline()                     # the object is gone, the entries are held all the same
        core = self.core
        state = let_python_run(core)
        step = pipeline_release_span(p, begin, end) if self.looped_span else pipeline_release(p, begin)
        python_has_run(core, state)
        if step == STEP_ORDER:
            raise StrataError(f"entry {begin} cannot be released before entry {p.released}: "
                              "what was acquired is released in order")
        if step != STEP_OK:
            self._raise(step)
        return 0

    cdef int _pass_dropped(self) except -1:
        """Pass over what was dropped, up to the next entry that was not."""
        cdef Pipeline* p = self.pipeline()
        cdef StreamerCore core = self.core
        cdef PyThreadState* state
        cdef int step
        while True:
            state = let_python_run(core)
            step = pipeline_pass_dropped(p)
            python_has_run(core, state)
            if step == STEP_OK:
                return 0
            if step != STEP_BUSY:
                self._raise(step)
            self._block(None)

    def drop(self, entries):
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
        cdef Pipeline* p = self.pipeline()
        cdef int step
        each = dropped_entries(entries, p.length)
        p = self.pipeline()
        if len(each) == 0:
            return
        first, last = each[0], each[len(each) - 1]   # not [-1]: without wraparound NumPy 2.5 refuses it
        least, most = min(first, last), max(first, last)
        if least < 0 or most >= p.length:
            raise IndexError(f"entries has {least if least < 0 else most}; the list has {p.length} entries")
        if least < p.acquired:
            raise ValueError(f"entries has {least}; what comes before entry {p.acquired} was acquired or passed already")
        if isinstance(each, range):
            if each.step < 0:
                each = each[::-1]
            step = pipeline_drop(p, NULL, each.start, len(each), each.step)
        else:
            step = pipeline_drop(p, <const int64_t*>values_of(each, sizeof(int64_t)), 0, len(each), 0)
        if step != STEP_OK:
            self._raise(step)

    def flush(self):
        """Record the `used` of everything that was released and shares a record that is still to come.

        For an engine that waits in a way of its own, so that the issuer may go on meanwhile; strata does it by itself
        before it waits. Without `share_dependencies` nothing is ever pending.

        Raises
        ------
        StrataError, RequestAborted, HipError
            As `acquire`.
        """
        cdef Pipeline* p = self.pipeline()
        cdef StreamerCore core = self.core
        cdef PyThreadState* state = let_python_run(core)
        cdef int step = pipeline_flush(p)
        python_has_run(core, state)
        if step != STEP_OK:
            self._raise(step)

    def skip(self, n=1):
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
        cdef StreamerCore core = self.core
        cdef PyThreadState* state
        cdef Pipeline* p
        cdef int step
        cdef int64_t left
        self.pipeline()
        if isinstance(n, (bool, np.bool_)) or not isinstance(n, (int, np.integer)):
            raise TypeError(f"n is {n!r}; an integer from 0 is wanted")
        n = int(n)                              # a plain one: what a subclass does comes before `p`
        if n < 0:
            raise ValueError(f"n is {n}; it must be at least 0")
        p = self.pipeline()
        if n > p.length - p.acquired and not p.control.interrupted.load(memory_order_acquire):
            raise IndexError(f"entry {p.length} is past the end of the list ({p.length} entries): n is {n}, and "
                             f"{p.length - p.acquired} entries are left")
        left = min(n, max(p.length, 1))         # less only where the request is stopped already
        while left > 0:
            state = let_python_run(core)
            step = pipeline_skip(p)
            python_has_run(core, state)
            if step == STEP_BUSY:
                self._block(None)
                continue
            if step != STEP_OK:
                self._raise(step)
            left -= 1

    def __iter__(self):
        return self

    def __next__(self):
        cdef Slot slot
        cdef Pipeline* p = self.pipeline()
        if self.looped_begin >= 0:
            self._release_iterated()
            p = self.pipeline()
        if p.drops > 0:
            self._pass_dropped()
            p = self.pipeline()
        if p.acquired >= p.length and not p.control.interrupted.load(memory_order_acquire):
            raise StopIteration
        slot = self.acquire()
        self.loop_takes(<void*>slot, slot.entry, slot.entry + 1, False)
        return slot

    def extend(self, copies):
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
        from strata.copies import ExpertCopies
        cdef Pipeline* p
        cdef Rows rows
        cdef int step
        cdef int64_t pageable
        self.pipeline()
        if not isinstance(copies, ExpertCopies):
            raise TypeError(f"copies is {type(copies).__name__}; a strata.ExpertCopies is wanted")
        copies._check_in_place()
        if pipeline_shorten(self.pipeline()):
            owners, self.core.owners = self.core.owners, []
            owners = None                       # letting go may run Python
        most, whose = None, None
        rows_of(copies, &rows)
        p = self.pipeline()
        if (p.host == NULL or not p.host.allocated) and memchr(rows.staged, 1, rows.n_entries) != NULL:
            self.core.staging_begins()
            most, whose = room()                # what it reads costs more than ten steps of a growing request
        self.core._check_entries(copies, self.pipeline().length)
        # From here to pipeline_extend() nothing is Python: no signal handler, and no other thread, comes in between.
        p = self.pipeline()
        if p.ending:
            raise StrataError("this request is at its end: a finish() was interrupted. finish() it again, or abort() it")
        if rows.n_entries == 0:
            return
        if most is not None:
            p.host_room = most
        pageable = 0 if p.host == NULL else p.host.pageable
        self.core.owners.append(copies)
        if p.host == NULL or not p.host.allocated:
            # It may have to pin the host ring: a driver may wait for the device in there.
            self.core.busy = True
            with nogil:
                step = pipeline_extend(p, &rows, False)
            self.core.busy = False
        else:
            step = pipeline_extend(p, &rows, False)
        if step == STEP_OK:
            if p.host != NULL and p.host.pageable > pageable:
                logger.warning("%d of %d host buffers of %d bytes could not be pinned; their copies go from "
                               "pageable memory, one by one", p.host.pageable, p.host.size, p.host.buffer_bytes)
            return
        self.core.owners.pop()
        wanted = p.wanted
        buffers = f"{p.host_ring_size} buffers of {p.ring.slot_bytes} bytes"
        if step == STEP_STOPPED:
            self._raise(step)
        if step == STEP_NO_MEMORY and wanted:
            more = f"; there are {most}, {whose}" if most is not None and wanted > most else ""
            problem = MemoryError(f"no host memory for the host ring or plan: {wanted} bytes were asked for ({buffers}){more}")
        else:
            try:
                problem = self.core.setup_problem(step)
            except BaseException:               # a signal handler's
                self._end_quietly()
                raise
        self._end_quietly()                     # what could not be appended ends the request
        raise problem

    # --- ends -----------------------------------------------------------------------------------------------

    def finish(self):
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
        cdef Pipeline* p
        cdef StreamerCore core = self.core
        cdef int step = STEP_BUSY
        self.pipeline()
        self._release_iterated()
        p = self.pipeline()
        if p.drops > 0 and pipeline_only_dropped_left(p):
            self._pass_dropped()
            p = self.pipeline()
        if p.released < p.length and not p.control.interrupted.load(memory_order_acquire):
            consumed = p.released
            listed = p.length
            self._abort("finish() came before every entry was consumed")
            raise StrataError(f"finish() with {consumed} of {listed} entries consumed: the request was aborted")
        p.unmoved_ns = 0                        # of a wait that was interrupted
        while step == STEP_BUSY:
            core.busy = True
            with nogil:
                step = pipeline_finish(p, SLICE_NS)
            core.busy = False
            if step == STEP_BUSY:
                self.let_handlers_run()
        if step != STEP_OK:
            self._raise(step)
        self._over("finished")
        if self.stranded:
            raise StrataError(f"the request is finished, but {self.stranded}")

    def abort(self):
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
        if self.ended is not None:
            return
        self.pipeline()
        self._abort("it was aborted")

    def cancel(self):
        """From any thread: the engine's next call on this request aborts it and raises `RequestAborted`."""
        cdef Pipeline* p = self.core.p if self.ended is None and not _hip.forked() else NULL
        if p != NULL and p.generation == self.generation:
            pipeline_cancel(p)

    def _abort(self, why, tell=True):
        cdef Pipeline* p = self.core.p
        cdef int step
        if self.ended is not None or p == NULL:
            return                              # a signal handler came first
        self.core.busy = True
        with nogil:
            step = pipeline_abort(p)
        self.core.busy = False
        states = self.core.thread_states() if step == STEP_HUNG else None
        self._over(why)
        if step == STEP_HUNG:
            raise StrataError(f"a driver call has not returned: {states}; the streamer is broken")
        if tell and self.stranded and not self.failed:
            raise StrataError(f"the request has ended ({why}), but {self.stranded}")

    def _drain(self):
        """End what an interrupted finish() has begun, and raise what has failed meanwhile."""
        self._abort("its finish() was interrupted")
        if self.failed:
            self._raise_cause()

    def _over(self, why):
        """Keep what may still be asked of the request, and let go of its sources."""
        cdef Pipeline* p = self.core.p
        cdef int k
        if self.ended is not None:
            return
        self.ended = why
        if p == NULL:
            return
        read_counters(&p.counters, self.final)
        for k in range(N_COUNTERS):
            self.core.totals[k] += self.final[k]
        self.core.counting = False
        self.final_length = p.length
        self.final_issued = p.issuer.issued.get()
        self.final_consumed = p.issuer.consumed.get()
        self.final_released = p.released
        self.broke = p.broken
        self.failed = p.control.failed.load(memory_order_acquire) == 2
        if self.failed:
            self.cause = p.control.failure
            self.gone = self.core.gone(self.cause.status, self.cause.stream, self.compute_stream)
        self.looped_begin = -1
        self.looped = NULL
        owners = self.core.owners
        self.core.owners = []
        # Only now what may run Python, as letting go of objects does.
        self.stranded = self.core.stranded()
        if self.broke:
            _hip.abandon(owners)                 # the device may still read them
        refused = self.final[COUNTER_REFUSED_BATCHES]
        if refused and self.core.totals[COUNTER_REFUSED_BATCHES] == refused:       # this streamer's first
            logger.warning("hipMemcpyBatchAsync answered hipErrorNotSupported for %d groups: their copies were submitted "
                           "one by one (counted as refused_batches)", refused)

    def _end_quietly(self):
        """After another error: abort, and keep that error the one that is raised."""
        if self.ended is None and self.core.p != NULL and self.core.p.running:
            try:
                self._abort("it failed")
            except StrataError:
                logger.exception("aborting a failed request")

    def __enter__(self):
        self.pipeline()
        return self

    def __exit__(self, kind, value, traceback):
        cdef Pipeline* p
        if self.ended is not None or self.core.p == NULL or _hip.forked():
            return False
        p = self.pipeline()
        if kind is not None:
            self._abort("an exception left its context")
        elif (p.released < p.length and not pipeline_only_dropped_left(p)
                and not p.control.interrupted.load(memory_order_acquire)):
            consumed = p.released
            listed = p.length
            self._abort("its context was left early")
            logger.warning("the context of a request was left with %d of %d entries consumed: it was aborted. abort() says "
                           "that this is meant", consumed, listed)
        else:
            self.finish()
        return False

    def __del__(self):
        if self.ended is None and self.core is not None and self.core.p != NULL and not _hip.forked():
            if self.core.p.running and self.core.p.generation == self.generation and not self.core.busy:
                ending = self.core.p.ending
                self._end_quietly()         # first: the warning may be an error
                if ending:                  # a finish() was interrupted: it was not forgotten
                    if self.failed:
                        logger.error("a request was dropped whose finish() was interrupted, and it failed: %s failed with "
                                     "status %d", _hip.call_name(self.cause.call).decode(), self.cause.status)
                    return
                warnings.warn("a request was dropped without finish() or abort(): aborted", ResourceWarning,
                              stacklevel=1)

    def __reduce__(self):
        raise TypeError("a Request cannot be copied or pickled: it is one pass over one list")

    def __repr__(self):
        if self.core is None:
            return "<strata.Request that no streamer has begun>"
        if _hip.forked():
            return "<strata.Request of a process that was forked>"
        state = self.ended or "running"
        return f"<strata.Request of {len(self)} entries, {self.consumed} consumed, {state}>"

    # --- waiting and raising ----------------------------------------------------------------------------------

    def _block(self, timeout):
        """Wait for the next entry's publication, without the GIL, in slices."""
        cdef Pipeline* p = self.core.p
        cdef StreamerCore core = self.core
        cdef int64_t left = 0
        cdef int64_t progress = pipeline_progress(p)
        cdef int64_t unmoved = 0
        cdef int64_t slice_ns, began, waited
        cdef int64_t target = p.awaited
        if timeout is not None:
            left = nanoseconds(timeout)
        while p.issuer.issued.get() < target and not p.control.interrupted.load(memory_order_acquire):
            slice_ns = SLICE_NS
            if timeout is not None:
                slice_ns = min(slice_ns, left)
                if slice_ns <= 0:
                    raise TimeoutError(f"entry {target - 1} was not published within {timeout} s: "
                                       f"{core.thread_states()}")
            core.busy = True
            with nogil:
                began = now_ns()
                pipeline_wait_published(p, slice_ns)
                waited = time_waited(began, slice_ns)
            core.busy = False
            left -= waited
            self.let_handlers_run()
            if p.issuer.exited.load(memory_order_acquire):
                p.broken = True
                raise StrataError(f"entry {target - 1} will never be published: {core.thread_states()}")
            if core.stall_ns and p.issuer.issued.get() < target:
                core.watch_stall(&progress, &unmoved, waited, f"entry {target - 1} was not published")

    cdef int end_with(self, int step) except -1:
        self._raise(step)
        return 0

    def _raise(self, int step):
        """End the request where the step demands it, and raise what the engine must know."""
        cdef Pipeline* p = self.core.p
        entry = p.acquired
        if step == STEP_END:
            raise IndexError(f"entry {entry} is past the end of the list ({p.length} entries)")
        if step == STEP_HELD:
            held = entry - p.released
            raise StrataError(
                f"entry {entry} cannot be published while {held} slots are held: only a release can free its "
                f"group's slots. At most {p.ring.window - max(p.limits.copy_batch, p.limits.stage_copy_batch) + 1} "
                "slots (max_held) can always be held")
        if step == STEP_DROPPED:
            raise StrataError(f"entry {entry} was dropped and cannot be acquired: skip() passes it")
        if step == STEP_STOPPED:
            if p.running:
                self._abort("it failed" if p.control.failed.load(memory_order_acquire) else "it was cancelled", False)
            else:
                self._over("it failed")
            if self.failed:
                self._raise_cause()
            raise RequestAborted("; ".join(filter(None, (f"the request was cancelled at entry {entry}", self.stranded))))
        if step == STEP_HUNG:
            states = self.core.thread_states()
            self._over("a driver call has not returned")
            raise StrataError(f"a driver call has not returned: {states}; the streamer is broken")
        if step == STEP_NO_MEMORY:
            self._over("it failed")
            raise MemoryError("the system gives no more memory: the request could not be ended")
        raise StrataError(f"unexpected step {step}")

    def _raise_cause(self):
        # What `_over` has kept: the streamer may be closed by now, or serve another request.
        entry = self.cause.entry
        slot = self.cause.slot
        if entry >= 0 and slot < 0:
            slot = entry % self.core.gpu_ring
        error = cause_error(&self.cause, slot)
        who = self.cause.who
        details = [self.gone] if self.gone else []
        if who == WHO_ISSUER:
            details.append("in the issuer's thread")
        elif who != WHO_ENGINE:
            details.append(f"in worker {self.cause.worker}'s thread")
        if self.broke:
            details.append("the device cannot be waited for any more: the streamer is broken")
        if self.stranded:
            details.append(self.stranded)
        if isinstance(error, HipError):
            error.detail = "; ".join(details) or None
        elif self.stranded:
            logger.error("%s", self.stranded)
        raise error
