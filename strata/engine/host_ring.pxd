"""The host ring: buffers, the jobs that fill them, and the worker threads that do."""
from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libcpp.atomic cimport atomic

from strata.engine.control cimport Control
from strata.engine.counters cimport CounterBlock
from strata.engine.command cimport Command
from strata.engine.threads cimport Condition, Thread, Watermark

# A status of `host_ring_finish` that is none of HIP's: a thread or the device has not come back within the slice.
cdef enum:
    HOST_RING_BUSY = -1

cdef enum WorkerState:
    WORKER_PARKED = 0
    WORKER_WAITS_FOR_SUBMISSION = 1   # of the ownership group that used the buffer before
    WORKER_WAITS_FOR_DMA = 2          # in hipEventSynchronize on that group's dma_done
    WORKER_COPIES = 3

cdef struct Worker:
    HostRing* ring
    int index
    atomic[int] state
    atomic[int64_t] job
    atomic[int] exited
    # Where the worker's jobs lie in the chain of commands; both move forward only.
    int64_t generation
    Command* command
    Command* reused
    void* bounce                # aligned room for direct reads that are not; made at the first one
    Thread thread

cdef struct HostRing:
    int64_t size
    int64_t buffer_bytes
    int64_t stage_batch
    int device
    bint timing
    Control* control
    CounterBlock* counters
    # Buffers, made at the first staged entry.
    bint allocated
    uintptr_t* buffers
    uint8_t* pinned
    uintptr_t* dma_done
    int64_t pageable
    # Jobs of the request.
    Command* first
    int64_t generation
    atomic[int64_t] available   # jobs below this exist
    atomic[int64_t] claimed     # jobs below this were claimed
    atomic[int64_t] chunks      # of source bytes gathered so far: a sign of life
    Watermark* ready            # per buffer: job + 1
    Watermark dma_published     # jobs below this lie in ownership groups whose dma_done is recorded
    # With shared dependencies one worker waits for an ownership group's `dma_done`. Both per terminal buffer.
    bint share
    atomic[int64_t]* dma_waiter  # the end of the latest group that somebody waits for
    Watermark* dma_found         # and of the latest one that was found done
    # Submission side: one thread.
    int64_t submitted
    Command* submit_command
    uintptr_t stream
    bint finished
    bint ending                 # no claims, no submissions: what is left is to wait
    int end_status              # of the last group's own record, or of the wait for it
    int end_call
    int64_t end_event           # index in `dma_done`; -1: nothing was submitted
    # Threads.
    atomic[int] closing         # no new claims
    atomic[int] active          # workers between claim and end of job
    atomic[int] shutdown
    Condition work
    Condition idle
    int n_workers
    Worker* workers
    bint started

cdef HostRing* host_ring_new(int64_t size, int64_t buffer_bytes, int n_workers, int device, Control* control,
                             CounterBlock* counters) noexcept nogil
cdef bint host_ring_start_workers(HostRing* ring) noexcept nogil
cdef void host_ring_delete(HostRing* ring, bint leak) noexcept nogil

cdef int host_ring_allocate(HostRing* ring, int* call) noexcept nogil
cdef void host_ring_begin(HostRing* ring, int64_t stage_batch, bint timing) noexcept nogil
cdef void host_ring_append(HostRing* ring, Command* command) noexcept nogil
cdef bint host_ring_at_rest(HostRing* ring) noexcept nogil
cdef void host_ring_restart_at(HostRing* ring, Command* command) noexcept nogil
cdef bint host_ring_wait_ready(HostRing* ring, int64_t job, int64_t timeout_ns) noexcept nogil
cdef int host_ring_submitted(HostRing* ring, int64_t job, uintptr_t stream) noexcept nogil
cdef int host_ring_finish(HostRing* ring, int* call, int64_t slice_ns) noexcept nogil
cdef list worker_states(HostRing* ring)
cdef object what_is_left(HostRing* ring)
cdef bint host_ring_is_pinned(const HostRing* ring, int64_t job) noexcept nogil
cdef uintptr_t host_ring_buffer(HostRing* ring, int64_t job) noexcept nogil
