"""strata for engines in Cython; see capi.pxd, which is the interface."""
from libc.stdint cimport INT64_MAX, UINT64_MAX, int64_t, uint8_t, uint64_t
from libcpp.atomic cimport memory_order_acquire

from strata cimport _hip
from strata.engine.consumption cimport (pipeline_acquire, pipeline_acquire_span, pipeline_command_of, pipeline_describe,
                                        pipeline_drop, pipeline_flush, pipeline_release, pipeline_release_span, pipeline_skip)
from strata.engine.command cimport Command, Rows, entry_is_dropped
from strata.engine.control cimport WHO_ENGINE, WHO_ISSUER, WHO_WORKER, Failure, control_fail, control_fail_memory
from strata.engine.pipeline cimport (STEP_BUSY, STEP_DROPPED, STEP_END, STEP_FAILED, STEP_HELD, STEP_HUNG, STEP_IDLE,
                                     STEP_INVALID, STEP_NO_MEMORY, STEP_OK, STEP_ORDER, STEP_STOPPED, AcquiredSlot,
                                     AcquiredSpan, Pipeline, pipeline_cancel, pipeline_extend, pipeline_shorten,
                                     pipeline_wait_published)
from strata._planner cimport PlanLimits, ownership_end, plan_copy_groups
from strata.engine.request cimport Request
from strata.engine.threads cimport now_ns, time_waited

cdef enum:
    SLICE_NS = 20000000

# Twins: what the interface declares again, so that it needs no C++, is the core's own to the byte. Checked by the compiler.
cdef extern from *:
    """
    #include <cstddef>
    #include <type_traits>
    #define STRATA_SAME(one, other) static_assert(int(one) == int(other), #one " differs from " #other)
    #define STRATA_SAME_SIZE(one, other) static_assert(sizeof(one) == sizeof(other), "twin structs differ in size")
    #define STRATA_SAME_FIELD(one, other, field) \\
      static_assert(offsetof(decltype(one), field) == offsetof(decltype(other), field) && \\
                    std::is_same<decltype(one.field), decltype(other.field)>::value, "twin structs differ in " #field)
    """
    void STRATA_SAME(int one, int other) nogil
    void STRATA_SAME_SIZE(...) nogil
    void STRATA_SAME_FIELD(...) nogil
    const int IN_ENTRY "entry"
    const int IN_SLOT "slot"
    const int IN_ADDRESS "address"
    const int IN_NBYTES "nbytes"
    const int IN_BEGIN "begin"
    const int IN_END "end"
    const int IN_STRIDE "stride"
    const int IN_GPU_RING "gpu_ring"
    const int IN_HOST_RING "host_ring"
    const int IN_COPY_BATCH "copy_batch"
    const int IN_STAGE_BATCH "stage_batch"
    const int IN_STAGE_COPY_BATCH "stage_copy_batch"
    const int IN_HOST_PINNED "host_pinned"


cdef void _twins(strata_slot slot, AcquiredSlot got, strata_span span, AcquiredSpan run, strata_limits limits,
                 PlanLimits plan) noexcept nogil:
    STRATA_SAME(STRATA_OK, STEP_OK)
    STRATA_SAME(STRATA_END, STEP_END)
    STRATA_SAME(STRATA_BUSY, STEP_BUSY)
    STRATA_SAME(STRATA_HELD, STEP_HELD)
    STRATA_SAME(STRATA_STOPPED, STEP_STOPPED)
    STRATA_SAME(STRATA_ORDER, STEP_ORDER)
    STRATA_SAME(STRATA_FAILED, STEP_FAILED)
    STRATA_SAME(STRATA_NO_MEMORY, STEP_NO_MEMORY)
    STRATA_SAME(STRATA_HUNG, STEP_HUNG)
    STRATA_SAME(STRATA_IDLE, STEP_IDLE)
    STRATA_SAME(STRATA_INVALID, STEP_INVALID)
    STRATA_SAME(STRATA_DROPPED, STEP_DROPPED)
    STRATA_SAME(STRATA_ENGINE, WHO_ENGINE)
    STRATA_SAME(STRATA_ISSUER, WHO_ISSUER)
    STRATA_SAME(STRATA_WORKER, WHO_WORKER)
    STRATA_SAME_SIZE(slot, got)
    STRATA_SAME_FIELD(slot, got, IN_ENTRY)
    STRATA_SAME_FIELD(slot, got, IN_SLOT)
    STRATA_SAME_FIELD(slot, got, IN_ADDRESS)
    STRATA_SAME_FIELD(slot, got, IN_NBYTES)
    STRATA_SAME_SIZE(span, run)
    STRATA_SAME_FIELD(span, run, IN_BEGIN)
    STRATA_SAME_FIELD(span, run, IN_END)
    STRATA_SAME_FIELD(span, run, IN_SLOT)
    STRATA_SAME_FIELD(span, run, IN_ADDRESS)
    STRATA_SAME_FIELD(span, run, IN_STRIDE)
    STRATA_SAME_SIZE(limits, plan)
    STRATA_SAME_FIELD(limits, plan, IN_GPU_RING)
    STRATA_SAME_FIELD(limits, plan, IN_HOST_RING)
    STRATA_SAME_FIELD(limits, plan, IN_COPY_BATCH)
    STRATA_SAME_FIELD(limits, plan, IN_STAGE_BATCH)
    STRATA_SAME_FIELD(limits, plan, IN_STAGE_COPY_BATCH)
    STRATA_SAME_FIELD(limits, plan, IN_HOST_PINNED)


cdef class abi_1:
    """The number of this interface, for modules that were compiled against it: see capi.pxd."""

    def __init__(self):
        raise TypeError("strata.capi is for Cython: cimport it")


def __getattr__(name):
    # A module that cimports this one asks for the class of its own number first.
    if name.startswith("abi_"):
        raise ImportError(f"this module was compiled against ABI {name[4:]} of strata.capi, and the installed strata has ABI "
                          f"{STRATA_ABI}: compile it again")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


cdef strata_request request_handle(object request) except NULL:
    if not isinstance(request, Request):
        raise TypeError(f"request is {type(request).__name__}; a strata.Request is wanted")
    (<Request>request).core.staging_begins()    # what is appended from here on may be staged, and comes without the GIL
    return <strata_request>(<Request>request).pipeline()


cdef int _wait(Pipeline* p, int64_t* left) noexcept nogil:
    """Until the next entry is published, in slices: a thread that has ended is noticed, and a process that was stopped
    has waited for one slice. `left` gets less by what was waited; negative: there is no end."""
    cdef int64_t pause = SLICE_NS if left[0] < 0 else min(left[0], <int64_t>SLICE_NS)
    cdef int64_t began = now_ns()
    if pause == 0:
        return STRATA_BUSY
    pipeline_wait_published(p, pause)
    if left[0] > 0:
        left[0] = max(<int64_t>0, left[0] - time_waited(began, pause))
    if p.issuer.exited.load(memory_order_acquire):
        p.broken = True
        return STRATA_HUNG
    return STRATA_OK


cdef int acquire(strata_request request, strata_slot* out, int64_t timeout_ns) noexcept nogil:
    cdef Pipeline* p = <Pipeline*>request
    cdef int step = pipeline_acquire(p, <AcquiredSlot*>out)
    while step == STEP_BUSY:
        step = _wait(p, &timeout_ns)
        if step != STRATA_OK:
            return step
        step = pipeline_acquire(p, <AcquiredSlot*>out)
    return step


cdef int release(strata_request request, int64_t entry) noexcept nogil:
    return pipeline_release(<Pipeline*>request, entry)


cdef int acquire_span(strata_request request, int64_t limit, strata_span* out, int64_t timeout_ns) noexcept nogil:
    cdef Pipeline* p = <Pipeline*>request
    cdef int step = pipeline_acquire_span(p, limit, <AcquiredSpan*>out)
    while step == STEP_BUSY:
        step = _wait(p, &timeout_ns)
        if step != STRATA_OK:
            return step
        step = pipeline_acquire_span(p, limit, <AcquiredSpan*>out)
    return step


cdef int release_span(strata_request request, const strata_span* span) noexcept nogil:
    return pipeline_release_span(<Pipeline*>request, span.begin, span.end)


cdef int span_slot(strata_request request, const strata_span* span, int64_t index, strata_slot* out) noexcept nogil:
    cdef Pipeline* p = <Pipeline*>request
    cdef Command* command
    if not p.running:
        return STRATA_IDLE
    if index < 0 or index >= span.end - span.begin or span.begin < p.released or span.end > p.acquired:
        return STRATA_INVALID
    command = pipeline_command_of(p, span.begin)
    if entry_is_dropped(command, span.begin + index - command.first_entry):
        return STRATA_DROPPED
    pipeline_describe(p, command, span.begin + index, <AcquiredSlot*>out)
    return STRATA_OK


cdef int drop(strata_request request, int64_t first, int64_t n) noexcept nogil:
    cdef Pipeline* p = <Pipeline*>request
    if not p.running:
        return STRATA_IDLE
    if n < 0 or first < p.acquired or first > p.length or n > p.length - first:
        return STRATA_INVALID
    return pipeline_drop(p, NULL, first, n, 1)


cdef int flush(strata_request request) noexcept nogil:
    return pipeline_flush(<Pipeline*>request)


cdef int skip(strata_request request, int64_t n, int64_t timeout_ns) noexcept nogil:
    cdef Pipeline* p = <Pipeline*>request
    cdef int step
    if n < 0:
        return STRATA_INVALID
    if n > p.length - p.acquired and not p.control.interrupted.load(memory_order_acquire):
        return STRATA_END if p.running else STRATA_IDLE
    while n > 0:
        step = pipeline_skip(p)
        if step == STEP_OK:
            n -= 1
            continue
        if step == STEP_BUSY:
            step = _wait(p, &timeout_ns)
        if step != STEP_OK:
            return step
    return STRATA_OK


cdef int extend(strata_request request, const uint64_t* addresses, const int64_t* nbytes,
                const int64_t* offsets, const int64_t* entry_starts, const uint8_t* staged,
                int64_t n_entries) noexcept nogil:
    cdef Pipeline* p = <Pipeline*>request
    cdef Rows rows
    cdef int64_t i, s, k
    cdef int step
    if n_entries < 0:
        return STRATA_INVALID
    if n_entries == 0:
        return STRATA_OK
    if entry_starts == NULL or staged == NULL or entry_starts[0] != 0:
        return STRATA_INVALID
    if entry_starts[n_entries] > 0 and (addresses == NULL or nbytes == NULL or offsets == NULL):
        return STRATA_INVALID
    for i in range(n_entries):
        if entry_starts[i + 1] < entry_starts[i]:
            return STRATA_INVALID
        for s in range(entry_starts[i], entry_starts[i + 1]):
            if (nbytes[s] < 0 or offsets[s] < 0 or (nbytes[s] > 0 and addresses[s] == 0)
                    or offsets[s] > p.ring.slot_bytes - nbytes[s]
                    or (nbytes[s] > 0 and addresses[s] > UINT64_MAX - <uint64_t>nbytes[s] + 1)):
                return STRATA_INVALID
            for k in range(entry_starts[i], s):         # a handful: gate, up and down
                if (nbytes[s] > 0 and nbytes[k] > 0 and offsets[k] < offsets[s] + nbytes[s]
                        and offsets[s] < offsets[k] + nbytes[k]):
                    return STRATA_INVALID
    rows.n_entries = n_entries
    rows.addresses = addresses
    rows.nbytes = nbytes
    rows.offsets = offsets
    rows.entry_starts = entry_starts
    rows.staged = staged
    rows.regions = NULL
    rows.files = NULL
    rows.open_files = NULL
    pipeline_shorten(p)
    step = pipeline_extend(p, &rows, True)
    # What could not be appended ends the request, as in Python: whoever comes next hears the cause.
    if step == STEP_FAILED:
        control_fail(&p.control, WHO_ENGINE, -1, p.call, p.status, p.failed_entry, -1, p.failed_stream)
    elif step == STEP_NO_MEMORY:
        control_fail_memory(&p.control, p.wanted)
    return step


cdef int cause(strata_request request, strata_cause* out) noexcept nogil:
    cdef Pipeline* p = <Pipeline*>request
    cdef Failure* failure = &p.control.failure
    if p.control.failed.load(memory_order_acquire) != 2:
        return STRATA_END
    out.who = failure.who
    out.worker = failure.worker
    out.call = _hip.call_name(failure.call)
    out.status = failure.status
    out.name = _hip.status_name(failure.status)
    out.entry = failure.entry
    out.slot = failure.slot if failure.slot >= 0 or failure.entry < 0 else failure.entry % p.ring.size
    out.wanted = failure.wanted if failure.call == _hip.CALL_HOST_MEMORY else 0
    if failure.call == _hip.CALL_FILE_READ:
        out.name = "errno"
    return STRATA_OK


cdef int cancel(strata_request request) noexcept nogil:
    pipeline_cancel(<Pipeline*>request)
    return STRATA_OK


cdef int64_t issued(strata_request request) noexcept nogil:
    return (<Pipeline*>request).issuer.issued.get()


cdef int64_t consumed(strata_request request) noexcept nogil:
    return (<Pipeline*>request).issuer.consumed.get()


cdef int64_t released(strata_request request) noexcept nogil:
    return (<Pipeline*>request).released


cdef int64_t length(strata_request request) noexcept nogil:
    return (<Pipeline*>request).length


cdef int _check(const strata_limits* limits) noexcept nogil:
    if (limits == NULL or limits.gpu_ring < 1 or limits.host_ring < 1 or limits.copy_batch < 1
            or limits.stage_batch < 1 or limits.stage_copy_batch < 1):
        return STRATA_INVALID
    return STRATA_OK


cdef int plan_groups(const strata_limits* limits, const int64_t* jobs, int64_t n, int64_t first_entry,
                     int64_t* ends) noexcept nogil:
    cdef int64_t i
    if _check(limits) != STRATA_OK or n < 0 or first_entry < 0:
        return STRATA_INVALID
    for i in range(n):
        if jobs[i] < -1:
            return STRATA_INVALID
    plan_copy_groups(<const PlanLimits*>limits, jobs, n, first_entry, ends, NULL)
    return STRATA_OK


cdef int plan_ownership_end(const strata_limits* limits, int64_t job, int64_t jobs_end,
                            int64_t* end) noexcept nogil:
    # Beyond that the end of a turn of the ring may be no int64 any more.
    if _check(limits) != STRATA_OK or job < 0 or job >= jobs_end or job > INT64_MAX - limits.host_ring:
        return STRATA_INVALID
    end[0] = ownership_end(limits.host_ring, limits.stage_batch, job, jobs_end)
    return STRATA_OK


cdef int plan_window(const strata_limits* limits, int64_t group_end, int64_t entries_consumed) noexcept nogil:
    if _check(limits) != STRATA_OK:
        return STRATA_INVALID
    return STRATA_OK if group_end <= entries_consumed + limits.gpu_ring else STRATA_BUSY
