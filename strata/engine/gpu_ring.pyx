"""The GPU ring: slots, their two events, and which event covers each slot's last use."""
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from strata cimport _hip


cdef int gpu_ring_init(GpuRing* ring, int64_t size, int64_t slot_bytes, int* call) noexcept nogil:
    """Make the events. On failure the status is returned, `call` says which call, and all is undone."""
    cdef int64_t s
    cdef int status = _hip.HIP_SUCCESS
    ring.size = size
    ring.slot_bytes = slot_bytes
    ring.pitch = slot_bytes
    ring.window = size
    ring.waited_order = 0
    ring.records = 0
    ring.addresses = <uintptr_t*>calloc(size, sizeof(uintptr_t))
    ring.reach = <int64_t*>calloc(size, sizeof(int64_t))
    ring.copied = <uintptr_t*>calloc(size, sizeof(uintptr_t))
    ring.used = <uintptr_t*>calloc(size, sizeof(uintptr_t))
    ring.last_use = <uint64_t*>calloc(size, sizeof(uint64_t))
    call[0] = _hip.CALL_EVENT_CREATE
    if (ring.addresses == NULL or ring.reach == NULL or ring.copied == NULL or ring.used == NULL
            or ring.last_use == NULL):
        gpu_ring_clear(ring)
        return _hip.HIP_OUT_OF_MEMORY
    for s in range(size):
        # Not blocking: streams wait on them, the host hardly ever does, and on some devices a record of a
        # blocking event costs the stream an interrupt.
        status = _hip.event_create(&ring.copied[s], False)
        if status == _hip.HIP_SUCCESS:
            status = _hip.event_create(&ring.used[s], False)
        if status != _hip.HIP_SUCCESS:
            gpu_ring_clear(ring)
            return status
    return _hip.HIP_SUCCESS


cdef void gpu_ring_clear(GpuRing* ring) noexcept nogil:
    """Destroy the events and free the tables. The slots' memory is its owner's."""
    cdef int64_t s
    for s in range(ring.size):
        if ring.copied != NULL and ring.copied[s] != 0:
            _hip.event_destroy(ring.copied[s])
        if ring.used != NULL and ring.used[s] != 0:
            _hip.event_destroy(ring.used[s])
    free(ring.addresses)
    free(ring.reach)
    free(ring.copied)
    free(ring.used)
    free(ring.last_use)
    ring.addresses = NULL
    ring.reach = NULL
    ring.copied = NULL
    ring.used = NULL
    ring.last_use = NULL


cdef void gpu_ring_forget_uses(GpuRing* ring) noexcept nogil:
    """Count every slot as fresh: a fence on the copy stream covers all that was queued."""
    cdef int64_t s
    for s in range(ring.size):
        ring.last_use[s] = 0


cdef uintptr_t gpu_ring_latest_use(const GpuRing* ring, int64_t begin, int64_t end,
                                   uint64_t* order) noexcept nogil:
    """The most recently recorded `used` event among the slots of entries ``[begin, end)``, or 0.

    All of them are recorded on one ordered stream, so the most recent covers the others. It is not
    always the last slot's: after a request that was shorter than the ring, it is another's.
    """
    cdef int64_t s = begin % ring.size
    cdef int64_t last = s + (end - begin)
    cdef uint64_t latest = 0
    while s < last:                      # a group never crosses the wrap
        if ring.last_use[s] > latest:
            latest = ring.last_use[s]
        s += 1
    order[0] = latest >> SLOT_BITS
    return 0 if latest == 0 else _event_of(ring, latest)


cdef inline uintptr_t _event_of(const GpuRing* ring, uint64_t use) noexcept nogil:
    return ring.used[use & ((<uint64_t>1 << SLOT_BITS) - 1)]


cdef void gpu_ring_measure(GpuRing* ring) noexcept nogil:
    """How far each slot's run of equal strides reaches, so that a span is cut without a walk over slots."""
    cdef int64_t s
    cdef uintptr_t stride
    cdef uintptr_t following = 0         # the next slot's stride, 0 where it begins no run
    for s in range(ring.size - 1, -1, -1):
        stride = 0
        if s + 1 < ring.size and ring.addresses[s + 1] > ring.addresses[s]:
            stride = ring.addresses[s + 1] - ring.addresses[s]
        if stride < <uintptr_t>ring.slot_bytes:
            stride = 0
        if stride == 0:
            ring.reach[s] = 1
        elif stride == following:
            ring.reach[s] = ring.reach[s + 1] + 1
        else:
            ring.reach[s] = 2
        following = stride


cdef int64_t gpu_ring_stride(const GpuRing* ring, int64_t slot) noexcept nogil:
    """Bytes from a slot to the next one of its run."""
    if ring.reach[slot] == 1:
        return ring.pitch
    return <int64_t>(ring.addresses[slot + 1] - ring.addresses[slot])


cdef int gpu_ring_record_used(GpuRing* ring, int64_t begin, int64_t end) noexcept nogil:
    """Record that what was queued on the compute stream so far covers the uses of entries ``[begin, end)``.

    The event is that of the last one's slot.
    """
    cdef int64_t first = begin % ring.size
    cdef int64_t last = (end - 1) % ring.size
    cdef uint64_t use
    cdef int64_t s
    cdef int status = _hip.event_record(ring.used[last], ring.compute_stream)
    if status != _hip.HIP_SUCCESS:
        return status
    ring.records += 1
    use = ring.records << SLOT_BITS | <uint64_t>last
    if first > last:                     # what is pending may lie across the wrap
        for s in range(first, ring.size):
            ring.last_use[s] = use
        first = 0
    for s in range(first, last + 1):
        ring.last_use[s] = use
    return _hip.HIP_SUCCESS


cdef int gpu_ring_wait_uses(GpuRing* ring) noexcept nogil:
    """Block the host until the last `used` of every slot has completed."""
    cdef int64_t s
    cdef int status
    for s in range(ring.size):
        if ring.last_use[s] != 0 and (s == 0 or ring.last_use[s] != ring.last_use[s - 1]):
            status = _hip.event_synchronize(_event_of(ring, ring.last_use[s]))
            if status != _hip.HIP_SUCCESS:
                return status
    return _hip.HIP_SUCCESS
