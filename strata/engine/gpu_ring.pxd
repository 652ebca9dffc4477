"""The GPU ring: slots, their two events, and which event covers each slot's last use."""
from libc.stdint cimport int64_t, uint64_t, uintptr_t

# A ring has at most 2**20 slots, and 2**44 records are more than a streamer makes.
cdef enum:
    SLOT_BITS = 20

cdef struct GpuRing:
    int64_t size
    int64_t slot_bytes
    uintptr_t copy_stream
    uintptr_t compute_stream
    uintptr_t* addresses      # of the slots, as the request uses them
    int64_t* reach            # slots from this one on that lie at one distance, to the ring's end at most
    int64_t pitch             # the stride of a single slot
    uintptr_t* copied         # event: the slot's bytes, and all before them on the copy stream, have arrived
    uintptr_t* used           # event: the kernels that read the slot are done
    # Per slot: the number of the record that covers its last use, and whose event that was recorded on, in one word
    # that grows with the record: ``record << SLOT_BITS | slot``. 0: never used.
    uint64_t* last_use
    uint64_t records          # orders given so far
    uint64_t waited_order     # the copy stream waits for every use up to this one
    bint share                # what is waited for already is not waited for again
    int64_t window            # entries beyond `consumed` that may be submitted, at most the ring's size
    bint one_allocation       # of all slots, so that a copy may reach from one into the next

cdef int gpu_ring_init(GpuRing* ring, int64_t size, int64_t slot_bytes, int* call) noexcept nogil
cdef void gpu_ring_clear(GpuRing* ring) noexcept nogil
cdef void gpu_ring_forget_uses(GpuRing* ring) noexcept nogil
cdef uintptr_t gpu_ring_latest_use(const GpuRing* ring, int64_t begin, int64_t end,
                                   uint64_t* order) noexcept nogil
cdef void gpu_ring_measure(GpuRing* ring) noexcept nogil
cdef int64_t gpu_ring_stride(const GpuRing* ring, int64_t slot) noexcept nogil
cdef int gpu_ring_record_used(GpuRing* ring, int64_t begin, int64_t end) noexcept nogil
cdef int gpu_ring_wait_uses(GpuRing* ring) noexcept nogil
