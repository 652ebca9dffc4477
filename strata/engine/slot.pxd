"""A slot that the engine holds, by itself or as a part of a span."""
from libc.stdint cimport int64_t, uintptr_t

from strata.engine.pipeline cimport AcquiredSlot
from strata.engine.running cimport Running

cdef class Slot:
    cdef Running request
    cdef object span                  # that it is a part of, or None
    cdef readonly int64_t entry
    cdef readonly int64_t slot
    cdef readonly uintptr_t address
    cdef readonly int64_t nbytes
    cdef object viewed                # what the array interface has lent out


cdef Slot new_slot(Running request, object span, const AcquiredSlot* got)
