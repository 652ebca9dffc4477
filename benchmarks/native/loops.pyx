# cython: language_level=3, boundscheck=False, wraparound=False
"""Loops over strata's published interface, and the same HIP calls without strata."""
from libc.stdint cimport int64_t, uint64_t

cimport strata.capi as strata
from strata cimport _hip


def plan(const int64_t[::1] jobs, int64_t[::1] ends, int64_t gpu_ring, int64_t host_ring, int64_t copy_batch,
         int64_t stage_batch, int64_t stage_copy_batch):
    """Plan the whole list into `ends`."""
    cdef strata.strata_limits limits
    cdef int status
    limits.gpu_ring = gpu_ring
    limits.host_ring = host_ring
    limits.copy_batch = copy_batch
    limits.stage_batch = stage_batch
    limits.stage_copy_batch = stage_copy_batch
    limits.host_pinned = NULL
    with nogil:
        status = strata.plan_groups(&limits, &jobs[0], jobs.shape[0], 0, &ends[0])
    if status != strata.STRATA_OK:
        raise ValueError(f"plan_groups gave {status}")


def until_issued(request, int64_t n):
    """Spin, without the GIL, until `n` entries are published."""
    cdef strata.strata_request handle = strata.request_handle(request)
    with nogil:
        while strata.issued(handle) < n:
            pass


def consume_spans(request):
    """Acquire and release runs of 32 neighbouring slots to the end of the list; gives the number of spans."""
    cdef strata.strata_request handle = strata.request_handle(request)
    cdef strata.strata_span span
    cdef int64_t n = 0
    cdef int status
    with nogil:
        while True:
            status = strata.acquire_span(handle, 32, &span, -1)
            if status != strata.STRATA_OK:
                break
            n += 1
            status = strata.release_span(handle, &span)
            if status != strata.STRATA_OK:
                break
    if status != strata.STRATA_END:
        raise RuntimeError(f"the request ended with status {status}")
    return n


def consume(request):
    """Acquire and release to the end of the list; gives the number of entries."""
    cdef strata.strata_request handle = strata.request_handle(request)
    cdef strata.strata_slot slot
    cdef int64_t n = 0
    cdef int status
    with nogil:
        while True:
            status = strata.acquire(handle, &slot, -1)
            if status != strata.STRATA_OK:
                break
            status = strata.release(handle, slot.entry)
            if status != strata.STRATA_OK:
                break
            n += 1
    if status != strata.STRATA_END:
        raise RuntimeError(f"entry {n} gave status {status}")
    return n


def issue_bare(const uint64_t[::1] sources, const uint64_t[::1] slots, const uint64_t[::1] copied,
               const uint64_t[::1] used, int64_t nbytes, int64_t batch, uint64_t stream):
    """The HIP calls of a warmed list of direct entries: a wait, the copies and a record for each group."""
    cdef int64_t n = sources.shape[0]
    cdef int64_t i = 0
    cdef int64_t end
    cdef int failed = 0
    with nogil:
        while i < n:
            end = min(i + batch, n)
            failed |= _hip.stream_wait_event(stream, used[end - 1])
            while i < end:
                failed |= _hip.copy_h2d(slots[i], sources[i], nbytes, stream)
                i += 1
            failed |= _hip.event_record(copied[end - 1], stream)
    if failed:
        raise RuntimeError(f"a HIP call gave a status: {failed}")


def consume_bare(const uint64_t[::1] copied, const uint64_t[::1] used, uint64_t stream):
    """The HIP calls of the engine's side at 1/1/1: a wait and a record for each entry."""
    cdef int64_t i
    cdef int failed = 0
    with nogil:
        for i in range(copied.shape[0]):
            failed |= _hip.stream_wait_event(stream, copied[i])
            failed |= _hip.event_record(used[i], stream)
    if failed:
        raise RuntimeError(f"a HIP call gave a status: {failed}")
