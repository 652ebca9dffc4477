"""The counters as the threads of a streamer write them; strata.counters.Counters is their Python twin.

Each field has one writing thread, so an increment is a relaxed load and a relaxed store: plain moves
on today's processors. A snapshot reads them while they are written.
"""
from libc.stdint cimport int64_t
from libcpp.atomic cimport atomic, memory_order_relaxed

# Kinds of entries, as an index.
cdef enum:
    DIRECT = 0
    STAGED = 1

cdef struct KindCounters:
    atomic[int64_t] copies
    atomic[int64_t] copy_calls
    atomic[int64_t] nbytes
    atomic[int64_t] copied_records
    atomic[int64_t] reuse_waits
    atomic[int64_t] reuse_waits_shared

cdef struct CounterBlock:
    KindCounters kinds[2]             # issuer
    atomic[int64_t] dma_done_records  # issuer
    atomic[int64_t] host_reuse_waits  # workers: fetch_add
    atomic[int64_t] fences            # the engine's thread
    atomic[int64_t] fence_errors      # the engine's thread
    atomic[int64_t] pageable_buffers  # the engine's thread
    atomic[int64_t] copied_waits      # the engine's thread
    atomic[int64_t] used_records      # the engine's thread
    atomic[int64_t] skipped           # the engine's thread
    atomic[int64_t] begin_waits       # the engine's thread
    atomic[int64_t] host_reuse_waits_shared  # workers: fetch_add
    atomic[int64_t] copied_waits_shared      # the engine's thread
    atomic[int64_t] used_records_shared      # the engine's thread
    atomic[int64_t] dropped           # issuer
    atomic[int64_t] dropped_bytes     # issuer
    atomic[int64_t] dropped_late      # the engine's thread
    atomic[int64_t] batch_calls       # issuer
    atomic[int64_t] refused_batches   # issuer
    # Nanoseconds, with timing on.
    atomic[int64_t] wait_publication_ns  # the engine's thread
    atomic[int64_t] wait_window_ns       # issuer
    atomic[int64_t] wait_source_ns       # issuer
    atomic[int64_t] wait_host_reuse_ns   # workers: fetch_add
    atomic[int64_t] host_memcpy_ns       # workers: fetch_add
    atomic[int64_t] submission_ns        # issuer
    atomic[int64_t] dependency_calls_ns  # issuer and the engine's thread: fetch_add
    atomic[int64_t] wall_ns              # the engine's thread

# The block is an array of like counters, too: for reading all of them at once.
cdef enum:
    N_PER_KIND = 6
    N_COUNTS = 17
    COUNTER_REFUSED_BATCHES = 2 * N_PER_KIND + N_COUNTS - 1
    N_SECONDS = 8
    N_COUNTERS = 2 * N_PER_KIND + N_COUNTS + N_SECONDS


cdef inline void read_counters(CounterBlock* block, int64_t* values) noexcept nogil:
    """Copy every counter, in the order of the fields."""
    cdef atomic[int64_t]* counters = <atomic[int64_t]*>block
    cdef int k
    for k in range(N_COUNTERS):
        values[k] = counters[k].load(memory_order_relaxed)


cdef inline void clear_counters(CounterBlock* block) noexcept nogil:
    cdef atomic[int64_t]* counters = <atomic[int64_t]*>block
    cdef int k
    for k in range(N_COUNTERS):
        counters[k].store(0, memory_order_relaxed)


cdef inline void add(atomic[int64_t]& counter, int64_t n) noexcept nogil:
    """Add to a counter that only this thread writes."""
    counter.store(counter.load(memory_order_relaxed) + n, memory_order_relaxed)


cdef inline void add_shared(atomic[int64_t]& counter, int64_t n) noexcept nogil:
    """Add to a counter that several threads write."""
    counter.fetch_add(n, memory_order_relaxed)
