"""The host ring by itself, for an engine that issues its own copies. `strata.HostStager` is its face."""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libcpp.atomic cimport memory_order_acquire, memory_order_relaxed

import logging

from strata cimport _hip
from strata.engine.control cimport WHO_ENGINE, Control, control_fail, control_reset, control_stop
from strata.engine.counters cimport N_COUNTERS, CounterBlock, clear_counters, read_counters
from strata.engine.command cimport Command, Rows
from strata.engine.core cimport as_counters, cause_error, rows_of
from strata.engine.host_ring cimport (HOST_RING_BUSY, HostRing, host_ring_allocate, host_ring_append, host_ring_begin, host_ring_buffer,
                                      host_ring_delete, host_ring_finish, host_ring_new, host_ring_start_workers,
                                      host_ring_submitted, host_ring_wait_ready, what_is_left, worker_states)
from strata._planner cimport ownership_end
from strata.engine.threads cimport destroy, make

from strata.engine import core
from strata.counters import Counters
from strata.errors import StrataError
from strata._host_memory import check_room

logger = logging.getLogger("strata")

cdef enum:
    SLICE_NS = 20000000


cdef struct StagerState:
    Control control
    CounterBlock counters
    Command command


cdef class StagerCore:
    """Owner of a host ring and its threads."""
    cdef StagerState* state
    cdef HostRing* ring
    cdef readonly int64_t buffer_bytes
    cdef readonly int64_t host_ring
    cdef readonly int64_t stage_batch
    cdef object copies
    cdef bint busy
    cdef readonly bint broken         # a thread or a DMA has not come back: its buffers may be read for ever
    cdef bint stream_known
    cdef int64_t patience_ns
    cdef object __weakref__

    def __cinit__(self):
        self.state = NULL
        self.ring = NULL

    def __init__(self, int64_t buffer_bytes, int64_t host_ring, int workers, int64_t stage_batch, int device):
        _hip.check_usable()
        self.buffer_bytes = buffer_bytes
        self.host_ring = host_ring
        self.stage_batch = stage_batch
        self.patience_ns = int(core.DRIVER_TIMEOUT_S * 1e9)
        self.state = make[StagerState]()
        if self.state == NULL:
            raise MemoryError("no memory for a host stager")
        self.ring = host_ring_new(host_ring, buffer_bytes, workers, device, &self.state.control,
                                  &self.state.counters)
        if self.ring == NULL or not host_ring_start_workers(self.ring):
            self.close()
            raise MemoryError("the system gives no more memory or threads for a host stager")

    cdef int check_open(self) except -1:
        _hip.check_usable()
        if self.ring == NULL:
            raise StrataError("this stager is closed")
        if self.busy:
            raise StrataError("this stager is in use by another thread")
        return 0

    @property
    def running(self):
        return self.ring != NULL and not self.ring.finished

    @property
    def jobs(self):
        """Jobs of the request."""
        return 0 if self.state == NULL else self.state.command.n_jobs

    def start(self, copies, int64_t stage_batch):
        """Offer the list's staged entries to the workers."""
        cdef Rows rows
        cdef Command* command
        cdef int64_t i
        cdef int64_t n = 0
        cdef int64_t pageable = 0
        cdef int status
        cdef int call = 0
        self.check_open()
        if not self.ring.allocated and copies.staged.any():
            check_room(f"no host memory for the host ring ({self.host_ring} buffers of {self.buffer_bytes} bytes)",
                       self.host_ring * self.buffer_bytes)
        self.check_open()                   # what came before may have run Python
        if self.broken:
            raise StrataError(f"this stager is broken, so its buffers are not reused: {_cause(self.ring, self.state)}")
        if not self.ring.finished:
            raise StrataError("a request of this stager is still running: finish() it first")
        clear_counters(&self.state.counters)
        control_reset(&self.state.control)
        rows_of(copies, &rows)
        command = &self.state.command
        free(command.job_entries)
        command.job_entries = NULL
        command.n_jobs = 0
        for i in range(rows.n_entries):
            n += rows.staged[i] != 0
        if n:
            self.busy = True
            with nogil:
                status = host_ring_allocate(self.ring, &call)
            self.busy = False
            if status != _hip.HIP_SUCCESS:
                if call == _hip.CALL_HOST_MALLOC and status == _hip.HIP_OUT_OF_MEMORY:
                    raise MemoryError(f"no host memory for the host ring: {self.host_ring * self.buffer_bytes} bytes "
                                      f"were asked for ({self.host_ring} buffers of {self.buffer_bytes} bytes)")
                _hip.raise_status(call, status)
            command.job_entries = <int64_t*>malloc(n * sizeof(int64_t))
            if command.job_entries == NULL:
                raise MemoryError(f"no host memory for {n * sizeof(int64_t)} bytes")
            n = 0
            for i in range(rows.n_entries):
                if rows.staged[i]:
                    command.job_entries[n] = i
                    n += 1
            self.state.counters.pageable_buffers.store(self.ring.pageable, memory_order_relaxed)
            pageable = self.ring.pageable
        command.first_entry = 0
        command.n_entries = rows.n_entries
        command.first_job = 0
        command.n_jobs = n
        command.addresses = rows.addresses
        command.nbytes = rows.nbytes
        command.offsets = rows.offsets
        command.entry_starts = rows.entry_starts
        command.files = rows.files
        command.open_files = rows.open_files
        self.copies = copies
        self.stream_known = False
        host_ring_begin(self.ring, stage_batch, False)
        host_ring_append(self.ring, command)
        if pageable:                        # last: a handler of the log's may end all this
            logger.warning("%d of %d host buffers of %d bytes could not be pinned", pageable, self.host_ring,
                           self.buffer_bytes)

    def wait(self, int64_t job, timeout):
        """Address of the job's buffer once its bytes lie there."""
        cdef bint there
        cdef int64_t before, generation
        self._check_job(job)
        generation = self.ring.generation
        self._raise_failure()
        if job < self.ring.submitted:
            raise ValueError(f"job {job} was submitted before; the next one is {self.ring.submitted}")
        if job >= self.host_ring:
            # The job that had the buffer before must be submitted, and its ownership group to its end.
            before = ownership_end(self.host_ring, self.ring.stage_batch, job - self.host_ring,
                                   self.state.command.n_jobs) - 1
            if before >= self.ring.submitted:
                raise StrataError(f"job {job} cannot be ready before job {before} is submitted: "
                                  f"the ring has {self.host_ring} buffers")
        there = self.ring.ready[job % self.host_ring].get() >= job + 1
        if there:
            there = host_ring_wait_ready(self.ring, job, 0)
        left = None if timeout is None else int(min(timeout * 1e9, 4e18))
        while not there:
            self._raise_failure()
            if left is not None and left <= 0:
                raise TimeoutError(f"job {job} was not ready within {timeout} s")
            there = self._slice(job, SLICE_NS if left is None else min(left, SLICE_NS))
            if left is not None:
                left -= SLICE_NS
            PyErr_CheckSignals()
            self._check_job(job)            # a signal handler may have finished the request, or closed the stager
            if self.ring.generation != generation:
                raise StrataError(f"job {job} was waited for in a request that is over: another one was started meanwhile")
        return host_ring_buffer(self.ring, job)

    cdef bint _slice(self, int64_t job, int64_t nanoseconds):
        cdef bint there
        self.busy = True
        with nogil:
            there = host_ring_wait_ready(self.ring, job, nanoseconds)
        self.busy = False
        return there

    def _check_job(self, int64_t job):
        self.check_open()
        if self.ring.finished:
            raise StrataError("no request of this stager runs: start() one first")
        if self.ring.ending:
            raise StrataError("this stager's request is at its end: a finish() was interrupted. finish() or abort() it")
        if not 0 <= job < self.state.command.n_jobs:
            raise ValueError(f"job is {job}; the list has {self.state.command.n_jobs} staged entries")

    def _raise_failure(self):
        if self.state.control.failed.load(memory_order_acquire) == 2:
            raise cause_error(&self.state.control.failure, -1)

    def submitted(self, int64_t job, uintptr_t stream):
        """After the copy of the job was queued on the stream."""
        cdef int status
        self._check_job(job)
        if not self.stream_known and stream != 0:
            _hip.check_stream("stream", stream)         # lets other threads run
            self._check_job(job)
        self._raise_failure()
        if job != self.ring.submitted:
            raise ValueError(f"job is {job}; jobs are submitted in order, the next one is {self.ring.submitted}")
        if self.ring.ready[job % self.host_ring].get() < job + 1:
            raise ValueError(f"job {job} is not ready yet: wait({job}) for it before its copy is queued")
        if self.stream_known and stream != self.ring.stream:
            raise ValueError(f"stream is {stream:#x}; this request's copies go on {self.ring.stream:#x}")
        self.stream_known = True
        if _hip.gil_is_wanted():
            self.busy = True
            with nogil:
                status = host_ring_submitted(self.ring, job, stream)
            self.busy = False
        else:
            status = host_ring_submitted(self.ring, job, stream)
        if status != _hip.HIP_SUCCESS:
            # Without the record nobody can tell when the buffers of its group are free: the request is over.
            control_fail(&self.state.control, WHO_ENGINE, -1, _hip.CALL_EVENT_RECORD, status,
                         self.state.command.job_entries[job], -1)
            _hip.raise_status(_hip.CALL_EVENT_RECORD, status, self.state.command.job_entries[job])

    def finish(self):
        """End the request; see `strata.HostStager.finish`."""
        if not self._end():
            return
        # Letting go of the sources comes last: it may run Python, which may close the stager.
        _copies, self.copies = self.copies, None
        self._raise_failure()

    def abort(self):
        """End the request early; see `strata.HostStager.abort`."""
        if self.ring != NULL and not _hip.forked() and not self.busy and not self.ring.finished:
            control_stop(&self.state.control)
        if self._end():
            self.copies = None

    cdef bint _end(self) except -1:
        """End what runs, in slices, so that Ctrl-C gets through; whether it was this call that did."""
        cdef int status = HOST_RING_BUSY
        cdef int call = 0
        cdef int64_t waited = 0              # not what the clock says: a paused process is no stall
        cdef int64_t generation, chunks
        if self.ring == NULL:
            return False
        self.check_open()
        if self.ring.finished or self.broken:
            return False                    # how it ended was said
        generation = self.ring.generation
        chunks = self.ring.chunks.load(memory_order_relaxed)
        while status == HOST_RING_BUSY:
            self.busy = True
            with nogil:
                status = host_ring_finish(self.ring, &call, SLICE_NS)
            self.busy = False
            if status != HOST_RING_BUSY:
                break
            waited = waited + SLICE_NS if chunks == self.ring.chunks.load(memory_order_relaxed) else 0
            chunks = self.ring.chunks.load(memory_order_relaxed)
            if waited >= self.patience_ns:
                break
            PyErr_CheckSignals()
            self.check_open()               # a signal handler may have ended the request, or closed the stager
            if self.ring.finished or self.ring.generation != generation:
                return False
        if status == _hip.HIP_SUCCESS:
            return True
        self.broken = True
        _hip.abandon(self.copies)
        if status == HOST_RING_BUSY:
            raise StrataError("this stager is broken, since a driver call has not returned or a DMA has not ended: "
                              f"{_cause(self.ring, self.state)}")
        _hip.raise_status(call, status)

    def counters(self):
        """A snapshot of the host ring's counters."""
        cdef int64_t[N_COUNTERS] now
        _hip.refuse_child()
        if self.state == NULL:
            return Counters()
        read_counters(&self.state.counters, now)
        return as_counters(now)

    def pinned_buffers(self):
        """Which buffers are pinned; empty before the first staged entry."""
        _hip.refuse_child()
        if self.ring == NULL or not self.ring.allocated:
            return ()
        return tuple(bool(self.ring.pinned[b]) for b in range(self.host_ring))

    def close(self, timeout=None):
        """End what runs, end the threads, free the buffers. Idempotent.

        With a timeout, in seconds: at the interpreter's end, and no signal comes through.
        """
        cdef int64_t patience = self.patience_ns if timeout is None else int(timeout * 1e9)
        cdef HostRing* ring
        cdef StagerState* state
        cdef bint free_it
        if self.busy and not _hip.forked():
            raise StrataError("this stager is in use by another thread")
        if _hip.forked():
            self.ring = NULL
            return
        if timeout is None:
            try:
                self.abort()
            except StrataError:
                pass                        # broken: said below
        ring = self.ring
        state = self.state
        # From here on it is this call's alone, however often, and from wherever, it is closed again.
        self.ring = NULL
        self.state = NULL
        copies, self.copies = self.copies, None
        if ring != NULL:
            with nogil:
                # Once more where it is broken: what came back since then need not be left to the device.
                free_it = _ended(ring, 0 if self.broken else patience)
            if not free_it:
                words = f"{_cause(ring, state)}; left as they are on purpose: {what_is_left(ring)}"
                with nogil:
                    host_ring_delete(ring, True)
                _hip.abandon(copies)
                raise StrataError(f"closing a broken stager: {words}")
            with nogil:
                host_ring_delete(ring, False)
        if state != NULL:
            free(state.command.job_entries)
            destroy(state)

    def __reduce__(self):
        raise TypeError("a HostStager cannot be copied or pickled: it owns threads and pinned memory of this process")

    @property
    def closed(self):
        return self.ring == NULL

    def __dealloc__(self):
        cdef bint free_it
        cdef HostRing* ring = self.ring
        if ring != NULL and not _hip.forked():
            with nogil:
                free_it = _ended(ring, 5000000000)
                host_ring_delete(ring, not free_it)
            if not free_it:
                _hip.abandon(self.copies)
            elif self.state != NULL:
                free(self.state.command.job_entries)
                destroy(self.state)


cdef object _cause(HostRing* ring, StagerState* state):
    """The first failure, where there is one, and what each thread does, in words."""
    states = "; ".join(worker_states(ring)) or "no worker is busy"
    if state.control.failed.load(memory_order_acquire) != 2:
        return states
    return f"{cause_error(&state.control.failure, -1)}; {states}"


cdef bint _ended(HostRing* ring, int64_t patience_ns) noexcept nogil:
    """Whether the ring has come to its end within the patience: nobody is in there, and no DMA reads it."""
    cdef int call = 0
    cdef int status = HOST_RING_BUSY
    cdef int64_t waited = 0
    cdef int before = _hip.unread_error()
    control_stop(ring.control)
    while status == HOST_RING_BUSY and waited <= patience_ns:
        status = host_ring_finish(ring, &call, SLICE_NS)
        waited += SLICE_NS
    _hip.restore_error(before)
    return status == _hip.HIP_SUCCESS
