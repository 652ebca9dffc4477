"""Maximal copy groups, ownership groups, and the contract's steps on the streams. It knows no threads."""
from libc.stdint cimport int64_t, uint8_t

from strata.engine.counters cimport KindCounters
from strata.engine.gpu_ring cimport GpuRing

# The twin of strata.settings.BatchSettings, clamped, with the rings that clamp it.
cdef struct PlanLimits:
    int64_t gpu_ring
    int64_t host_ring
    int64_t copy_batch
    int64_t stage_batch
    int64_t stage_copy_batch
    const uint8_t* host_pinned      # per host buffer, or NULL where all are pinned

cdef void plan_copy_groups(const PlanLimits* limits, const int64_t* jobs, int64_t n, int64_t first_entry,
                           int64_t* ends, int64_t* groups) noexcept nogil
cdef int64_t ownership_end(int64_t host_ring, int64_t stage_batch, int64_t job, int64_t jobs_end) noexcept nogil

cdef bint window_is_open(const GpuRing* ring, int64_t group_end, int64_t consumed) noexcept nogil
cdef int begin_group(GpuRing* ring, int64_t begin, int64_t end, KindCounters* counters) noexcept nogil
cdef int end_group(GpuRing* ring, int64_t end, KindCounters* counters) noexcept nogil
