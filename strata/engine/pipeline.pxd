"""One streamer in C: rings, threads and the engine's side of the contract.

Everything here is called from one thread, the engine's, but `pipeline_cancel`. No function raises or needs
the GIL; each returns a `Step`.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic

from strata.engine.control cimport Control
from strata.engine.counters cimport CounterBlock
from strata.engine.command cimport Command, Rows
from strata.engine.gpu_ring cimport GpuRing
from strata.engine.host_ring cimport HostRing
from strata.engine.issuer cimport Issuer
from strata._planner cimport PlanLimits

cdef enum Step:
    STEP_OK = 0
    STEP_END = 1         # past the end of the list
    STEP_BUSY = 2        # not published yet: wait, then again
    STEP_HELD = 3        # only a release by the caller itself could publish it
    STEP_STOPPED = 4     # a failure, or cancel()
    STEP_ORDER = 5       # released twice, or out of order
    STEP_FAILED = 6      # a HIP call of this step failed: `call`, `status`
    STEP_NO_MEMORY = 7   # host memory: `wanted` bytes
    STEP_HUNG = 8        # a strata thread has not come back: see its state
    STEP_IDLE = 9        # no request runs
    STEP_INVALID = 10    # an argument is out of range: nothing was done
    STEP_DROPPED = 11    # the entry was dropped: it cannot be taken

# The end of the last request on its compute stream, for a next one on another.
cdef enum LastEnd:
    END_UNMARKED = 0     # on the streamer's own stream: the next begin records it
    END_RECORDED = 1     # on a stream of the request's own: the fence holds it, the stream may be gone
    END_PASSED = 2       # the copy stream waits for it already, or there is nothing to wait for

cdef struct AcquiredSlot:
    int64_t entry
    int64_t slot
    uintptr_t address
    int64_t nbytes

cdef struct AcquiredSpan:
    int64_t begin
    int64_t end
    int64_t slot         # of the first entry
    uintptr_t address
    int64_t stride       # from one slot to the next, bytes

# What the engine has in hand, by the first slot of each: an entry, or a span.
cdef enum Held:
    HELD_NOTHING = 0
    HELD_ENTRY = 1
    HELD_SPAN = 2
    HELD_HOLES = 3       # a span of dropped entries alone: nothing reads it
    PASSED_SKIPPED = 4   # passed behind held ones: its turn comes with theirs
    PASSED_DROPPED = 5

cdef struct Pipeline:
    Control control
    CounterBlock counters
    GpuRing ring
    Issuer issuer
    HostRing* host
    int64_t host_ring_size
    int64_t host_room            # bytes that the host ring may take at most
    int n_workers
    int device
    bint switch_device           # more than one device: calls set it and restore the engine's
    bint timing
    uintptr_t owned_slots        # one allocation, or 0
    int64_t owned_stride
    bint owns_copy_stream
    bint owns_compute_stream
    uintptr_t fence              # event of the begin fence, and of the end of a request on a stream of its own
    uintptr_t home_compute_stream   # the streamer's own or lent one; a request may run on another
    uintptr_t last_compute_stream
    LastEnd last_end
    bint ran_before
    bint slots_are_lent
    # The request.
    bint running
    bint ending                  # its end is listed: nothing can be appended any more
    uint64_t generation
    PlanLimits limits
    int64_t length
    int64_t jobs
    # consumed <= released <= acquired: what lies below `consumed` (the issuer's) has its `used` record.
    int64_t acquired
    int64_t released
    int64_t pending              # releases that were read and have no record yet
    int64_t waited               # the compute stream has waited for the bytes of every entry below
    int64_t awaited              # entries that must be published before what was found busy can go on
    int64_t drops                # entries marked as dropped
    uint8_t* held                # per slot: `Held`, at the first slot of what is held
    int64_t* held_ends           # and the entry after its last
    Command* commands              # the chain, from the last request's final command on
    Command* cursor               # of the next acquire
    Command* oldest               # of the oldest entry without a `used` record, or an earlier one
    int64_t listed                # commands since the chain was last shortened, or that was last tried
    int64_t began_ns
    # The last failed call of this thread's own.
    int call
    int status
    int64_t failed_entry
    uintptr_t failed_stream
    int stranded                 # of hipSetDevice, where the engine's thread could not be given its device back
    int stranded_from            # that device
    size_t wanted
    bint broken
    # At the end: who takes care of what the streamer owns, and of the host ring that it had.
    atomic[int] disposal             # 0 open, 1 it is freed, 2 it is left to the device for good
    HostRing* leaving_host
    int64_t driver_timeout_ns    # how long a strata thread may stay in one call during a tear-down
    int64_t unmoved_ns           # waited for so far, while nothing moved
    int64_t seen_progress

cdef Pipeline* pipeline_new() noexcept nogil
cdef int pipeline_open(Pipeline* p, int64_t gpu_ring, int64_t slot_bytes, int64_t host_ring, int workers,
                       uintptr_t copy_stream, bint make_copy, uintptr_t compute_stream, bint make_compute,
                       bint own_slots) noexcept nogil

cdef int pipeline_begin(Pipeline* p, const PlanLimits* limits, int64_t window, const uintptr_t* lent_slots,
                        uintptr_t compute_stream) noexcept nogil
cdef int pipeline_extend(Pipeline* p, const Rows* rows, bint copy_arrays) noexcept nogil
cdef int pipeline_wait_published(Pipeline* p, int64_t timeout_ns) noexcept nogil
cdef int pipeline_slot_arrived(Pipeline* p, int64_t entry) noexcept nogil
cdef bint pipeline_shorten(Pipeline* p) noexcept nogil
cdef void pipeline_pause(Pipeline* p, int64_t nanoseconds) noexcept nogil
cdef void pipeline_cancel(Pipeline* p) noexcept nogil
cdef int64_t pipeline_progress(Pipeline* p) noexcept nogil

# For `consumption` and `teardown`.
cdef int pipeline_enter(Pipeline* p, int* restore, int* call) noexcept nogil
cdef int pipeline_engine_failed(Pipeline* p, int call, int status, int64_t entry) noexcept nogil
cdef void pipeline_enter_at_end(Pipeline* p, int* restore) noexcept nogil
cdef int pipeline_leave(Pipeline* p, int device) noexcept nogil
cdef void pipeline_submit(Pipeline* p, Command* command) noexcept nogil
