"""The ends of a request and of a streamer; called from the engine's thread, without the GIL."""
from libc.stdint cimport int64_t

from strata.engine.pipeline cimport Pipeline

cdef int pipeline_finish(Pipeline* p, int64_t slice_ns) noexcept nogil
cdef int pipeline_abort(Pipeline* p) noexcept nogil
cdef int pipeline_close(Pipeline* p, int64_t timeout_ns, int* stranded) noexcept nogil
