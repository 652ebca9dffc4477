"""What the engine does with entries: take them by one or by spans, give them back, pass them.

Everything here is called from one thread, the engine's. No function raises or needs the GIL; each returns a `Step`.
"""
from libc.stdint cimport int64_t

from strata.engine.command cimport Command
from strata.engine.pipeline cimport AcquiredSlot, AcquiredSpan, Pipeline

cdef int pipeline_acquire(Pipeline* p, AcquiredSlot* out) noexcept nogil
cdef int pipeline_acquire_span(Pipeline* p, int64_t limit, AcquiredSpan* out) noexcept nogil
cdef int pipeline_release(Pipeline* p, int64_t entry) noexcept nogil
cdef int pipeline_release_span(Pipeline* p, int64_t begin, int64_t end) noexcept nogil
cdef int pipeline_skip(Pipeline* p) noexcept nogil
cdef int pipeline_pass_dropped(Pipeline* p) noexcept nogil
cdef int pipeline_drop(Pipeline* p, const int64_t* entries, int64_t first, int64_t count, int64_t step) noexcept nogil
cdef int pipeline_flush(Pipeline* p) noexcept nogil
cdef bint pipeline_only_dropped_left(Pipeline* p) noexcept nogil
cdef Command* pipeline_command_of(Pipeline* p, int64_t entry) noexcept nogil
cdef void pipeline_describe(Pipeline* p, Command* command, int64_t entry, AcquiredSlot* out) noexcept nogil

# For `teardown`.
cdef int pipeline_record_held(Pipeline* p, int64_t* entry) noexcept nogil
