"""A streamer's core: the owner of its rings, events and threads."""
cimport cython
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memset
from libcpp.atomic cimport memory_order_acquire, memory_order_relaxed

import logging
from dataclasses import fields

import numpy as np

from strata cimport _hip
from strata._arrays cimport values_of
from strata.engine.command cimport Command, Rows
from strata.engine.control cimport Failure
from strata.engine.counters cimport N_COUNTERS, N_SECONDS, CounterBlock, read_counters
from strata.engine.files cimport SourceFile
from strata.engine.host_ring cimport what_is_left, worker_states
from strata.engine.issuer cimport (ISSUER_PARKED, ISSUER_SUBMITS, ISSUER_WAITS_FOR_SOURCE, ISSUER_WAITS_FOR_WINDOW,
                                   SUBMIT_COALESCED, SUBMIT_GROUP, SUBMIT_SINGLE)
from strata.engine.pipeline cimport (STEP_FAILED, STEP_HUNG, STEP_NO_MEMORY, STEP_OK, Pipeline, pipeline_cancel,
                                     pipeline_new, pipeline_open, pipeline_progress)
from strata.engine.teardown cimport pipeline_close

from strata.counters import Counters
from strata.errors import StallError, StrataError
from strata._host_memory import room
from strata.sources.files import read_error

logger = logging.getLogger("strata")

# How long a thread of strata may stay in one driver call during a tear-down before the streamer is given up.
DRIVER_TIMEOUT_S = 30.0


_LONGEST_S = 2**62


def check_timeout(name, value):
    """Seconds from 0, as a float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; a number of seconds is wanted")
    if not value >= 0:
        raise ValueError(f"{name} is {value!r}; it must be at least 0 seconds")
    return float(min(value, _LONGEST_S))        # an int may be larger than any float


assert len(fields(Counters)) == N_COUNTERS
assert sizeof(CounterBlock) == N_COUNTERS * sizeof(int64_t)


#: How copies are submitted, as `StreamerCore` is told.
SUBMISSIONS = {"single": SUBMIT_SINGLE, "group": SUBMIT_GROUP, "coalesced": SUBMIT_COALESCED}


cdef object as_counters(const int64_t* values):
    """The Python twin of a counter block, whose fields come in the same order."""
    cdef int k
    counted = []
    for k in range(N_COUNTERS):
        counted.append(values[k] if k < N_COUNTERS - N_SECONDS else values[k] * 1e-9)
    return Counters(*counted)


cdef int rows_of(object copies, Rows* rows) except -1:
    """Point to the arrays of an ExpertCopies; they are its own, never change, and live as long as it does."""
    memset(rows, 0, sizeof(Rows))
    rows.n_entries = len(copies.staged)
    rows.entry_starts = <const int64_t*>values_of(copies.entry_starts, sizeof(int64_t))
    rows.staged = <const uint8_t*>values_of(copies.staged, 1)
    rows.addresses = <const uint64_t*>values_of(copies.addresses, sizeof(uint64_t))
    rows.nbytes = <const int64_t*>values_of(copies.nbytes, sizeof(int64_t))
    rows.offsets = <const int64_t*>values_of(copies.offsets, sizeof(int64_t))
    if copies.regions is not None:
        rows.regions = <const int64_t*>values_of(copies.regions, sizeof(int64_t))
    if copies._file_rows is not None:
        files, open_files = copies._file_rows
        rows.files = <const int32_t*>values_of(files, sizeof(int32_t))
        rows.open_files = <const SourceFile*>values_of(open_files, sizeof(int64_t))
    return 0


cdef object cause_error(const Failure* cause, int64_t slot):
    """The exception for a first cause: of a HIP call, of memory that the host did not give, or of a read of a file."""
    if cause.call == _hip.CALL_HOST_MEMORY:
        return MemoryError(f"no host memory for the host ring or plan: {cause.wanted} bytes were asked for" if cause.wanted
                           else "the system gives no more memory or threads")
    if cause.call == _hip.CALL_FILE_READ:
        return read_error(cause.file, cause.status, cause.offset, cause.entry, cause.got, cause.wanted)
    return _hip.status_error(cause.call, cause.status, cause.entry, slot)


def chain_length(StreamerCore core):
    """Commands that the streamer's threads have before them or may ask for, for tests."""
    cdef Command* command
    cdef int64_t n = 0
    core.check_open()
    command = core.p.commands
    while command != NULL:
        n += 1
        command = command.next.load(memory_order_acquire)
    return n


cdef int64_t nanoseconds(seconds) except -1:
    """Seconds as nanoseconds; what is longer than a century never ends."""
    return <int64_t>min(float(seconds) * 1e9, 4e18)


cdef class SlotMemory:
    """The owned slots' allocation while arrays lie in it, which may outlive the streamer."""

    def __dealloc__(self):
        cdef uintptr_t address = self.address
        if address != 0 and not _hip.forked() and not _hip.leaving():
            with nogil:
                _hip.device_free(address)


@cython.no_gc_clear
cdef class StreamerCore:
    """Owner of a streamer's rings, events and threads. `strata.ExpertStreamer` is its face."""

    def __cinit__(self):
        self.p = NULL
        self.owners = []
        self.busy = False
        self.counting = False

    def __init__(self, int64_t slot_bytes, int64_t gpu_ring, int64_t host_ring, int workers, int device,
                 copy_stream, compute_stream, bint own_slots, bint timing, stall_timeout, int submission=SUBMIT_SINGLE,
                 bint share=False):
        cdef uintptr_t copy_handle = 0 if copy_stream is None else copy_stream
        cdef uintptr_t compute_handle = 0 if compute_stream is None else compute_stream
        cdef bint make_copy = copy_stream is None
        cdef bint make_compute = compute_stream is None
        cdef int step
        cdef int count = 0
        cdef int status
        _hip.check_usable()
        self.slot_bytes = slot_bytes
        self.gpu_ring = gpu_ring
        self.host_ring = host_ring
        memset(self.totals, 0, sizeof(self.totals))
        # 0 means that there is none: the shortest is a nanosecond.
        self.stall_ns = 0 if stall_timeout is None else max(1, nanoseconds(stall_timeout))
        with nogil:
            status = _hip.get_device_count(&count)
        _hip.raise_status(_hip.CALL_GET_DEVICE_COUNT, status)
        self.p = pipeline_new()
        if self.p == NULL:
            raise MemoryError("no memory for a streamer")
        self.p.device = device
        self.p.switch_device = count > 1
        self.p.timing = timing
        self.p.issuer.submission = submission
        self.p.ring.share = share
        self.p.driver_timeout_ns = self._driver_timeout()
        self.p.host_room = room()[0]
        with nogil:
            step = pipeline_open(self.p, gpu_ring, slot_bytes, host_ring, workers, copy_handle, make_copy,
                                 compute_handle, make_compute, own_slots)
        if step == STEP_OK:
            return
        problem = self.setup_problem(step)
        try:
            self.close()
        except StrataError as left:
            logger.error("%s", left)
        raise problem

    def _driver_timeout(self):
        # A tear-down waits for kernels, too, and what it gives up is lost: never sooner than a stall is one.
        return max(self.stall_ns, int(DRIVER_TIMEOUT_S * 1e9))

    cdef int check_open(self) except -1:
        _hip.check_usable()
        if self.p == NULL:
            raise StrataError("this streamer is closed")
        if self.busy:
            raise StrataError("this streamer is in use by another thread; a streamer serves one engine thread "
                              "(only cancel() may come from another)")
        return 0

    cdef int staging_begins(self) except -1:
        """The host ring is needed now, or may be: what the face has to say of it is said once."""
        say, self.before_staging = self.before_staging, None
        if say is not None:
            say()
        return 0

    cdef object slot_tensors(self):
        """The tensors that an integration has made of the slots."""
        if self.tensors is None:
            raise StrataError("tensors() needs a strata.integrations.torch.TorchStreamer; this is a plain ExpertStreamer")
        return self.tensors

    cdef object setup_problem(self, int step):
        """The exception for a step that failed with this thread's own call."""
        # Read first: what makes an exception is Python, and lets signal handlers and other threads close the streamer.
        cdef int call = self.p.call
        cdef int status = self.p.status
        cdef int64_t entry = self.p.failed_entry
        cdef uintptr_t stream = self.p.failed_stream
        wanted = self.p.wanted
        if step == STEP_FAILED:
            details = [self.gone(status, stream, 0), self.stranded()]
            error = _hip.status_error(call, status, entry, -1)
            if call == _hip.CALL_MALLOC:
                details.append(f"{wanted} bytes for {self.gpu_ring} slots of {self.slot_bytes} bytes")
            error.detail = "; ".join(filter(None, details)) or None
            return error
        if step == STEP_NO_MEMORY:
            return MemoryError(f"no host memory for {wanted} bytes" if wanted
                               else "the system gives no more memory or threads")
        if step == STEP_HUNG:
            return StrataError(f"this streamer is broken: {self.cause(self.p)}")
        return StrataError(f"unexpected step {step}")

    cdef object stranded(self):
        """That the calling thread is on another device than before, in words and once; or None."""
        cdef int status = self.p.stranded if self.p != NULL else 0
        if status == _hip.HIP_SUCCESS:
            return None
        self.p.stranded = _hip.HIP_SUCCESS
        return (f"the calling thread is left on device {self.p.device}: setting it back to device {self.p.stranded_from} "
                f"failed with {_hip.status_error(_hip.CALL_SET_DEVICE, status, -1, -1).name} ({status})")

    cdef object gone(self, int status, uintptr_t stream, uintptr_t of_request):
        """Which lent stream a status says to be gone, in words; or None.

        `of_request` is the request's own stream, or 0.
        """
        if stream == 0 or self.p == NULL or status not in (_hip.HIP_INVALID_HANDLE, _hip.HIP_CONTEXT_IS_DESTROYED):
            return None
        if stream == self.p.ring.copy_stream and not self.p.owns_copy_stream:
            return f"copy_stream {stream:#x}, which was lent to this streamer, is gone"
        if stream == of_request and stream != self.p.home_compute_stream:
            return f"compute_stream {stream:#x}, which was lent to this request, is gone"
        if stream == self.p.home_compute_stream and not self.p.owns_compute_stream:
            return f"compute_stream {stream:#x}, which was lent to this streamer, is gone"
        return None

    cdef object cause(self, Pipeline* p):
        """What broke the streamer, in words: the first failed call where there is one, and what each thread does."""
        cdef Failure failure
        states = self.thread_states(p)
        if p.control.failed.load(memory_order_acquire) != 2:
            return states
        failure = p.control.failure
        return f"{cause_error(&failure, failure.slot)}; {states}"

    @property
    def copy_stream(self):
        self.check_open()
        return self.p.ring.copy_stream

    @property
    def compute_stream(self):
        self.check_open()
        return self.p.home_compute_stream

    @property
    def device(self):
        self.check_open()
        return self.p.device

    @property
    def closed(self):
        return self.p == NULL

    @property
    def broken(self):
        return self.p != NULL and self.p.broken

    @property
    def running(self):
        return self.p != NULL and self.p.running

    def slot_addresses(self):
        """Addresses of the slots, in ring order."""
        cdef int64_t s
        self.check_open()
        return tuple(self.p.ring.addresses[s] for s in range(self.gpu_ring))

    def handles(self):
        """Streams and events by name, for findings of the happens-before checker."""
        cdef int64_t k
        self.check_open()
        named = {"copy": self.p.ring.copy_stream, "compute": self.p.ring.compute_stream, "begin fence": self.p.fence}
        for k in range(self.gpu_ring):
            named[f"copied[{k}]"] = self.p.ring.copied[k]
            named[f"used[{k}]"] = self.p.ring.used[k]
        if self.p.host != NULL and self.p.host.allocated:
            for k in range(self.host_ring):
                named[f"dma_done[{k}]"] = self.p.host.dma_done[k]
        return named

    def counters(self):
        """Counters of all requests so far, the running one included."""
        cdef int64_t[N_COUNTERS] now
        cdef int k
        _hip.refuse_child()
        memset(now, 0, sizeof(now))
        if self.p != NULL and self.counting:
            read_counters(&self.p.counters, now)
        for k in range(N_COUNTERS):
            now[k] += self.totals[k]
        return as_counters(now)

    cdef object thread_states(self, Pipeline* p=NULL):
        """What each thread of strata is doing, in words."""
        if p == NULL:
            p = self.p
        parts = []
        entry = p.issuer.entry.load(memory_order_relaxed)
        call = _hip.call_name(p.issuer.call.load(memory_order_relaxed)).decode()
        state = p.issuer.state.load(memory_order_relaxed)
        if p.issuer.exited.load(memory_order_acquire):
            parts.append("the issuer's thread has ended")
        elif state == ISSUER_PARKED:
            parts.append("the issuer waits for more entries")
        elif state == ISSUER_WAITS_FOR_WINDOW:
            parts.append(f"the issuer waits at entry {entry} for the engine to release slots")
        elif state == ISSUER_WAITS_FOR_SOURCE:
            parts.append(f"the issuer waits for the source of entry {entry}")
        elif state == ISSUER_SUBMITS:
            parts.append(f"the issuer is in {call} at entry {entry}, slot {entry % self.gpu_ring}")
        else:
            parts.append(f"the issuer ends the request, in {call}")
        if p.host != NULL:
            parts += worker_states(p.host)
        return "; ".join(parts)

    cdef int watch_stall(self, int64_t* progress, int64_t* unmoved, int64_t waited, object waiting_for) except -1:
        """After a wait: raise once nothing has moved for as long as the caller allows. What is counted is time waited,
        not what the clock says: a process that was stopped meanwhile is no stall."""
        cdef int64_t current = pipeline_progress(self.p)
        if current != progress[0]:
            progress[0] = current
            unmoved[0] = 0
            return 0
        unmoved[0] += waited
        if unmoved[0] >= self.stall_ns:
            raise StallError(f"{waiting_for} and nothing moved for {self.stall_ns * 1e-9:g} s: {self.thread_states()}")
        return 0

    def _check_entries(self, copies, int64_t first):
        """Every segment must lie within a slot; checked before anything starts."""
        cdef const int64_t* nbytes = <const int64_t*>values_of(copies.nbytes, sizeof(int64_t))
        cdef const int64_t* offsets = <const int64_t*>values_of(copies.offsets, sizeof(int64_t))
        cdef const int64_t* starts = <const int64_t*>values_of(copies.entry_starts, sizeof(int64_t))
        cdef int64_t n = len(copies)
        cdef int64_t i, s
        cdef int64_t bad = -1
        self.busy = True
        with nogil:
            for i in range(n):
                for s in range(starts[i], starts[i + 1]):
                    if nbytes[s] > 0 and offsets[s] > self.slot_bytes - nbytes[s]:
                        bad = i
                        break
                if bad >= 0:
                    break
        self.busy = False
        if bad >= 0:
            raise ValueError(
                f"entry {first + bad} needs {int(copies.entry_extents()[bad])} bytes and a slot has "
                f"{self.slot_bytes} (slot {(first + bad) % self.gpu_ring}): make slot_bytes larger")

    cdef SlotMemory slot_memory(self):
        """What an array over a slot has to keep; None where the slots are lent."""
        if self.p == NULL or self.p.owned_slots == 0 or self.p.slots_are_lent:
            return None
        if self.memory is None:
            self.memory = SlotMemory.__new__(SlotMemory)
        return self.memory

    cdef SlotMemory part_with_memory(self):
        """Before the end: where arrays lie in the slots, their memory is theirs from here on."""
        cdef SlotMemory memory = self.memory
        self.memory = None
        if memory is None or self.p.owned_slots == 0 or Py_REFCNT(memory) == 1:
            return None
        memory.address = self.p.owned_slots
        self.p.owned_slots = 0
        return memory

    def close(self, timeout=None):
        """Abort what runs, end the threads, free everything. Idempotent."""
        cdef Pipeline* p = self.p
        cdef int step
        cdef int stranded = _hip.HIP_SUCCESS
        cdef int64_t limit
        if p == NULL:
            return
        if _hip.forked():
            self.p = NULL
            return
        if self.busy:
            raise StrataError("this streamer is in use by another thread: cancel() its request there first")
        limit = self._driver_timeout() if timeout is None else int(timeout * 1e9)
        problem = None
        request = self.current() if self.current is not None else None
        while p.running and request is not None and not p.broken:
            p.driver_timeout_ns = limit
            try:
                request._abort("its streamer was closed")
            except StrataError as left:
                problem = left              # of a broken one more is said below
            # Letting go of the sources may run Python: it may have closed the streamer, or begun another request.
            p = self.p
            if p == NULL:
                return
            if self.busy:
                raise StrataError("this streamer is in use by another thread: cancel() its request there first")
            following = self.current()
            request = following if following is not request else None
        slots = p.owned_stride * self.gpu_ring if p.owned_slots != 0 else 0
        left = f"{slots} bytes of slots, {what_is_left(p.host)}, events and the issuer's thread"
        memory = self.part_with_memory()
        # From here on no other thread finds the pipeline: cancel() may come at any time.
        self.p = NULL
        with nogil:
            step = pipeline_close(p, limit, &stranded)
        if step == STEP_HUNG:
            _hip.abandon(self.owners)
            _hip.abandon(memory)
            _hip.abandon(self.tensors)
            raise StrataError(f"closing a broken streamer: {self.cause(p)}; left as they are on purpose: {left}")
        self.owners = []
        if problem is None and stranded != _hip.HIP_SUCCESS:
            problem = _hip.status_error(_hip.CALL_SET_DEVICE, stranded, -1, -1)
            problem.detail = "this streamer is closed, and the calling thread is left on its device"
        if problem is not None:
            raise problem

    def cancel(self):
        """From any thread: have the engine's thread abort what it runs."""
        if self.p != NULL and not _hip.forked():
            pipeline_cancel(self.p)

    @property
    def in_use(self):
        """Whether a thread waits in this streamer right now."""
        return bool(self.busy)

    def __reduce__(self):
        raise TypeError("a StreamerCore cannot be copied or pickled: it owns threads and device memory of this process")

    def __dealloc__(self):
        # Only where nobody closed it. Without the GIL: the threads may need it for a moment.
        cdef Pipeline* p = self.p
        cdef int step = STEP_OK
        cdef int stranded = 0
        memory = None
        if p != NULL and not _hip.forked():
            memory = self.part_with_memory()
        self.p = NULL
        if p != NULL and not _hip.forked():
            with nogil:
                step = pipeline_close(p, 5000000000, &stranded)
            if step == STEP_HUNG:
                _hip.abandon(self.owners)
                _hip.abandon(memory)
                _hip.abandon(self.tensors)
