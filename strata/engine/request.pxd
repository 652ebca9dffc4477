"""The engine's side for Python: a request."""
from libc.stdint cimport int64_t, uintptr_t

from strata.engine.control cimport Failure
from strata.engine.counters cimport N_COUNTERS
from strata.engine.pipeline cimport Pipeline
from strata.engine.running cimport Running


cdef class Request(Running):
    cdef int64_t[N_COUNTERS] final    # its counters when it was over
    cdef int64_t final_length
    cdef int64_t final_issued
    cdef int64_t final_consumed
    cdef int64_t final_released
    cdef bint failed                  # the cause is known
    cdef bint broke                   # the streamer, with this request
    cdef Failure cause
    cdef object gone                  # which lent stream the cause says to be gone, or None
    cdef object stranded              # that the engine's thread is left on another device, or None
    cdef object settings_
    cdef readonly uintptr_t compute_stream
    cdef object __weakref__

    cdef Pipeline* _live(self) except? NULL
    cdef int64_t _check_limit(self, limit) except -1
    cdef int _pass_dropped(self) except -1
    cdef int _release_iterated(self) except -1
