# cython: language_level=3
"""An engine in Cython, built against the installed package: what strata.capi promises, used as documented."""
from libc.stdint cimport int64_t, uint8_t, uint64_t

cimport strata.capi as strata


def consume(request):
    """Acquire and release everything without the GIL."""
    cdef strata.strata_request handle = strata.request_handle(request)
    cdef strata.strata_slot slot
    cdef int64_t n = 0
    cdef int status
    with nogil:
        while True:
            status = strata.acquire(handle, &slot, -1)
            if status != strata.STRATA_OK:
                break
            n += 1
            status = strata.release(handle, slot.entry)
            if status != strata.STRATA_OK:
                break
    return n, status


def poll(request, int64_t timeout_ns):
    cdef strata.strata_slot slot
    cdef strata.strata_request handle = strata.request_handle(request)
    cdef int status
    with nogil:
        status = strata.acquire(handle, &slot, timeout_ns)
    return status, (slot.entry, slot.slot, slot.address, slot.nbytes) if status == strata.STRATA_OK else None


def release(request, int64_t entry):
    return strata.release(strata.request_handle(request), entry)


def skip(request, int64_t n):
    cdef strata.strata_request handle = strata.request_handle(request)
    cdef int status
    with nogil:
        status = strata.skip(handle, n, -1)
    return status


def consume_spans(request, int64_t limit):
    """Acquire and release everything by spans; entries that are wanted, and the spans' ends."""
    cdef strata.strata_request handle = strata.request_handle(request)
    cdef strata.strata_span span
    cdef strata.strata_slot slot
    cdef int64_t k
    cdef int status
    wanted, ends = [], []
    while True:
        with nogil:
            status = strata.acquire_span(handle, limit, &span, -1)
        if status != strata.STRATA_OK:
            return wanted, ends, status
        for k in range(span.end - span.begin):
            status = strata.span_slot(handle, &span, k, &slot)
            if status == strata.STRATA_OK:
                assert slot.address == span.address + <uint64_t>(k * span.stride)
                assert (slot.entry, slot.slot) == (span.begin + k, span.slot + k)
                wanted.append(slot.entry)
            else:
                assert status == strata.STRATA_DROPPED
        assert strata.span_slot(handle, &span, span.end - span.begin, &slot) == strata.STRATA_INVALID
        ends.append(span.end)
        status = strata.release_span(handle, &span)
        if status != strata.STRATA_OK:
            return wanted, ends, status
        if strata.release_span(handle, &span) != strata.STRATA_ORDER:
            return wanted, ends, -1


def drop(request, int64_t first, int64_t n):
    return strata.drop(strata.request_handle(request), first, n)


def flush(request):
    cdef strata.strata_request handle = strata.request_handle(request)
    return strata.flush(handle), strata.released(handle), strata.consumed(handle)


def cancel(request):
    return strata.cancel(strata.request_handle(request))


def extend(request, const uint64_t[::1] addresses, const int64_t[::1] nbytes, const int64_t[::1] offsets,
           const int64_t[::1] starts, const uint8_t[::1] staged):
    cdef strata.strata_request handle = strata.request_handle(request)
    cdef int status
    with nogil:
        status = strata.extend(handle, &addresses[0], &nbytes[0], &offsets[0], &starts[0], &staged[0],
                               starts.shape[0] - 1)
    return status


def extend_without(request, missing):
    """One entry of one segment, with a null pointer for one of the arrays."""
    cdef uint64_t address = 4096
    cdef int64_t nbytes = 8
    cdef int64_t offset = 0
    cdef int64_t[2] starts = [0, 1]
    cdef uint8_t staged = 0
    return strata.extend(strata.request_handle(request), NULL if missing == "addresses" else &address,
                         NULL if missing == "nbytes" else &nbytes, NULL if missing == "offsets" else &offset, starts,
                         &staged, 1)


def progress(request):
    cdef strata.strata_request handle = strata.request_handle(request)
    return strata.issued(handle), strata.consumed(handle), strata.length(handle)


def plan(const int64_t[::1] jobs, int64_t[::1] ends, int64_t gpu_ring, int64_t host_ring, int64_t copy_batch,
         int64_t stage_batch, int64_t stage_copy_batch):
    cdef strata.strata_limits limits
    cdef int64_t end = -1
    limits.gpu_ring = gpu_ring
    limits.host_ring = host_ring
    limits.copy_batch = copy_batch
    limits.stage_batch = stage_batch
    limits.stage_copy_batch = stage_copy_batch
    limits.host_pinned = NULL
    status = strata.plan_groups(&limits, &jobs[0], jobs.shape[0], 0, &ends[0])
    owner = strata.plan_ownership_end(&limits, 0, jobs.shape[0], &end)
    return status, owner, end, strata.plan_window(&limits, gpu_ring, 0), strata.plan_window(&limits, gpu_ring + 1, 0)


def cause(request_or_handle):
    """Of a request that may be over: the handle is taken before its end."""
    cdef strata.strata_cause why
    cdef strata.strata_request handle
    cdef int status
    if isinstance(request_or_handle, int):
        handle = <strata.strata_request><void*><size_t>request_or_handle
    else:
        handle = strata.request_handle(request_or_handle)
    with nogil:
        status = strata.cause(handle, &why)
    if status != strata.STRATA_OK:
        return status
    return why.who, why.worker, why.call.decode(), why.status, why.name.decode(), why.entry, why.slot, why.wanted


def abi():
    return strata.STRATA_ABI
