"""A span: a run of neighbouring slots that the engine holds together."""
from libc.stdint cimport int64_t, uintptr_t

from strata.engine.running cimport Running


cdef class Span:
    cdef Running request
    cdef Running origin               # kept after the release
    cdef readonly int64_t begin
    cdef readonly int64_t end
    cdef readonly int64_t slot
    cdef readonly uintptr_t address
    cdef readonly int64_t stride
    cdef object nbytes_
    cdef object wanted_
    cdef object viewed                # what the array interface has lent out
