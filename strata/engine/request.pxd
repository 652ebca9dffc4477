"""The engine's side for Python: a request, a slot."""
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from strata.engine.control cimport Failure
from strata.engine.core cimport StreamerCore
from strata.engine.pipeline cimport Pipeline


cdef class Request:
    cdef StreamerCore core
    cdef uint64_t generation
    cdef object ended                 # why the request is over, or None
    cdef int64_t[27] final            # its counters then
    cdef int64_t final_length
    cdef int64_t final_issued
    cdef int64_t final_consumed
    cdef bint failed                  # the cause is known
    cdef bint broke                   # the streamer, with this request
    cdef Failure cause
    cdef object gone                  # which lent stream the cause says to be gone, or None
    cdef object stranded              # that the engine's thread is left on another device, or None
    cdef Slot iterated
    cdef object settings_
    cdef readonly uintptr_t compute_stream
    cdef object __weakref__

    cdef Pipeline* pipeline(self) except NULL
    cdef int _let_handlers_run(self) except -1


cdef class Slot:
    cdef Request request
    cdef readonly int64_t entry
    cdef readonly int64_t slot
    cdef readonly uintptr_t address
    cdef readonly int64_t nbytes
